//! The weights of a model by name, and the projections and norms that backends make from them.

use std::collections::HashMap;

use anyhow::{Context, Result, anyhow, ensure};
use architectures::exchange::HeadOrder;
use architectures::{HeadLayout, Norm, Projection, Rows, View};
use formats::codec;
use protocol::LoadRequest;

use crate::adapters::{Adapters, Factor, Factors};
use crate::backend::{Backend, LowRank, MatrixSource, NormOf, WeightSource};
use crate::mapped::{self, Blobs, MappedTensor, Mapper};

/// All tensors of a load plan, mapped.
#[derive(Debug)]
pub(crate) struct Weights {
    tensors: HashMap<String, MappedTensor>,
    adapters: Adapters,
}

/// The layout of a projection's rows, if RoPE is applied to its heads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadRows {
    pub(crate) layout: HeadLayout,
    /// Number of rows of a head.
    pub(crate) head_dim: u64,
}

impl Weights {
    /// Maps the tensors of a plan.
    pub(crate) fn map(plan: &LoadRequest, blobs: &Blobs) -> Result<Self> {
        let mapper = Mapper(blobs);
        let tensors = plan
            .tensors
            .iter()
            // Tensors that no layer uses may have any type: buffers, counters.
            .filter_map(|tensor| mapped::encoding(tensor).map(|encoding| (tensor, encoding)))
            .map(|(tensor, encoding)| Ok((tensor.name.clone(), mapper.tensor(tensor, encoding)?)))
            .collect::<Result<_>>()?;
        let adapters = Adapters::map(&plan.adapters, mapper)?;
        Ok(Self { tensors, adapters })
    }

    /// Returns the bytes of all tensors.
    pub(crate) fn size(&self) -> u64 {
        self.tensors.values().chain(self.adapters.tensors()).map(|tensor| tensor.size() as u64).sum()
    }

    /// Returns the bytes of a tensor; 0 if there is none of this name.
    pub(crate) fn size_of(&self, name: &str) -> u64 {
        self.tensors.get(name).map_or(0, |tensor| tensor.size() as u64)
    }

    /// Returns the stored tensor, or item of a stack, that `tensor` is a part of. The bytes stay
    /// mapped.
    fn stored(&self, tensor: &architectures::Tensor) -> Result<MappedTensor> {
        let name = &tensor.name;
        let stored = self
            .tensors
            .get(name)
            .with_context(|| format!("tensor `{name}` is missing, or of a type that is not known"))?;
        let encoding = stored.encoding();
        ensure!(codec::can_decode(encoding), "tensor `{name}` has type {encoding}, which is not supported for weights");
        match tensor.view.item {
            None => Ok(stored.clone()),
            Some(index) => stored.item(index).map_err(|reason| part_of(name, &reason)),
        }
    }

    /// Returns a tensor of this shape.
    fn get(&self, tensor: &architectures::Tensor, shape: &[usize]) -> Result<MappedTensor> {
        let found = self.part(tensor)?;
        ensure!(found.shape == shape, "tensor `{}` has the shape {:?}, expected {shape:?}", tensor.name, found.shape);
        Ok(found)
    }

    /// Returns the tensor that is viewed, whose rows must be contiguous.
    fn part(&self, tensor: &architectures::Tensor) -> Result<MappedTensor> {
        let (name, view) = (&tensor.name, tensor.view);
        ensure!(!view.transposed, "a part of tensor `{name}`: only a projection can be transposed");
        let stored = self.stored(tensor)?;
        let Some(rows) = view.rows else { return Ok(stored) };
        ensure!(rows.block == rows.count, "a part of tensor `{name}`: its rows do not lie together");
        stored.rows(rows.first, rows.count).map_err(|reason| part_of(name, &reason))
    }

    /// Returns the numbers of a small tensor: a norm, a bias, a depthwise convolution. Dimensions
    /// of 1 do not matter, because sources store them in different places.
    pub(crate) fn numbers(&self, tensor: &architectures::Tensor, shape: &[usize]) -> Result<Vec<f32>> {
        let apart = tensor.view.rows.filter(|rows| rows.block != rows.count);
        let Some(rows) = apart else {
            let (name, found) = (&tensor.name, self.part(tensor)?);
            let is_same = without_ones(&found.shape).eq(without_ones(shape));
            ensure!(is_same, "tensor `{name}` has the shape {:?}, expected {shape:?}", found.shape);
            return Ok(found.numbers());
        };
        // Elements of a small tensor that are not contiguous.
        let all = self.stored(tensor)?;
        let (name, found) = (&tensor.name, [rows.count as usize]);
        let fits = all.shape.len() == 1 && rows.end().is_some_and(|end| end <= all.shape[0] as u64);
        ensure!(fits && found == shape, "tensor `{name}` has the shape {:?}, expected {shape:?} of it", all.shape);
        let numbers = all.numbers();
        Ok((0..rows.count).map(|row| numbers[rows.stored(row) as usize]).collect())
    }

    /// Returns the numbers of small tensors whose rows together are one tensor of this shape.
    pub(crate) fn joined_rows(&self, tensors: &[architectures::Tensor], [rows, width]: [usize; 2]) -> Result<Vec<f32>> {
        if let [one] = tensors {
            return self.numbers(one, &[rows, width]);
        }
        let mut numbers = Vec::new();
        for tensor in tensors {
            let count = without_ones(&self.part(tensor)?.shape).next().map_or(1, |size| *size).min(rows);
            numbers.extend(self.numbers(tensor, &[count, width])?);
        }
        let (found, names) = (numbers.len() / width, tensors.iter().map(|tensor| tensor.name.as_str()));
        let names: Vec<&str> = names.collect();
        ensure!(found == rows, "tensors `{}` have {found} rows together, expected {rows}", names.join("`, `"));
        Ok(numbers)
    }

    /// Returns the numbers of a small tensor as a backend's vector.
    pub(crate) fn vector<B: Backend>(
        &self,
        backend: &B,
        tensor: &architectures::Tensor,
        length: usize,
    ) -> Result<B::Vector> {
        backend.vector(self.numbers(tensor, &[length])?)
    }

    /// Returns a norm of rows of that width.
    pub(crate) fn norm<B: Backend>(&self, backend: &B, norm: &Norm, width: usize) -> Result<NormOf<B>> {
        self.norm_of(backend, norm, width, self.norm_weights(norm, &[width])?)
    }

    /// Returns the factors of a norm: its weights and their offset.
    pub(crate) fn norm_weights(&self, norm: &Norm, shape: &[usize]) -> Result<Vec<f32>> {
        let Some(weight) = &norm.weight else { return Ok(vec![1.0; shape.iter().product()]) };
        let mut numbers = self.numbers(weight, shape)?;
        for weight in &mut numbers {
            *weight += norm.offset as f32;
        }
        Ok(numbers)
    }

    /// Returns a norm of each head, where each head has its own weights.
    pub(crate) fn norm_of_heads<B: Backend>(
        &self,
        backend: &B,
        norm: &Norm,
        [heads, width]: [usize; 2],
    ) -> Result<NormOf<B>> {
        let Some(weight) = &norm.weight else { return self.norm(backend, norm, width) };
        let name = &weight.name;
        if !name.contains("{}") {
            // Some sources store the weights of all heads as one vector.
            let all = self.norm_weights(norm, &[heads, width]);
            let all = all.or_else(|error| self.norm_weights(norm, &[heads * width]).map_err(|_| error))?;
            return self.norm_of(backend, norm, width, all);
        }
        let mut all = Vec::with_capacity(heads * width);
        for head in 0..heads {
            let weight = Some(architectures::Tensor::named(name.replace("{}", &head.to_string())));
            all.extend(self.norm_weights(&Norm { weight, ..norm.clone() }, &[width])?);
        }
        self.norm_of(backend, norm, width, all)
    }

    fn norm_of<B: Backend>(&self, backend: &B, norm: &Norm, width: usize, weight: Vec<f32>) -> Result<NormOf<B>> {
        let bias = norm.bias.as_ref().map(|bias| self.vector(backend, bias, width)).transpose()?;
        Ok(NormOf { kind: norm.kind, width, weight: backend.vector(weight)?, bias, epsilon: norm.epsilon as f32 })
    }

    /// Returns a table whose rows are read one by one, `[rows, hidden]`.
    pub(crate) fn table(&self, tensor: &architectures::Tensor, rows: usize, hidden: usize) -> Result<MappedTensor> {
        self.get(tensor, &[rows, hidden])
    }

    /// Returns tables that together have at least so many rows of `width` elements.
    pub(crate) fn tables(
        &self,
        tensors: &[architectures::Tensor],
        [rows, width]: [usize; 2],
    ) -> Result<Vec<MappedTensor>> {
        let all: Vec<MappedTensor> = tensors.iter().map(|tensor| self.part(tensor)).collect::<Result<_>>()?;
        for (tensor, found) in tensors.iter().zip(&all) {
            let (name, shape) = (&tensor.name, &found.shape);
            ensure!(
                shape.len() == 2 && shape[1] == width,
                "tensor `{name}` has the shape {shape:?}, expected rows of {width}"
            );
        }
        let (found, first) = (all.iter().map(|own| own.shape[0]).sum::<usize>(), tensors.first());
        let first = first.map_or("", |tensor| tensor.name.as_str());
        ensure!(
            found >= rows,
            "the {} tensors from `{first}` on have {found} rows, expected at least {rows}",
            all.len()
        );
        Ok(all)
    }

    /// Returns a table of one row that is stored as a vector, `[hidden]`.
    pub(crate) fn vector_table(&self, tensor: &architectures::Tensor, hidden: usize) -> Result<MappedTensor> {
        Ok(self.get(tensor, &[hidden])?.into_matrix(hidden))
    }

    /// Returns a projection `[output, input]`, with its bias if there is one, and with the factors
    /// of adapters. `rows` is the layout of its rows, if RoPE is applied to its heads.
    pub(crate) fn matrix<B: Backend>(
        &self,
        backend: &B,
        projection: &Projection,
        input: usize,
        output: usize,
        rows: Option<HeadRows>,
    ) -> Result<B::Matrix> {
        let adapters = self.added(backend, projection, input, output, rows)?;
        self.matrix_with(backend, projection, input, output, adapters)
    }

    /// Returns a projection and the factors of adapters separately, for callers that also multiply
    /// by the transpose.
    pub(crate) fn matrix_apart<B: Backend>(
        &self,
        backend: &B,
        projection: &Projection,
        input: usize,
        output: usize,
    ) -> Result<(B::Matrix, Vec<LowRank<B>>)> {
        let adapters = self.added(backend, projection, input, output, None)?;
        Ok((self.matrix_with(backend, projection, input, output, Vec::new())?, adapters))
    }

    fn matrix_with<B: Backend>(
        &self,
        backend: &B,
        projection: &Projection,
        input: usize,
        output: usize,
        adapters: Vec<LowRank<B>>,
    ) -> Result<B::Matrix> {
        let bias = projection.bias.as_ref().map(|bias| self.numbers(bias, &[output])).transpose()?;
        let weight = self.source(&projection.weight, input)?;
        let (tensor, found) = (&projection.weight.name, weight.shape());
        ensure!(found == [output, input], "tensor `{tensor}` has the shape {found:?}, expected [{output}, {input}]");
        backend.matrix(MatrixSource { weight, bias, adapters })
    }

    /// Returns the factors that adapters add to a projection.
    fn added<B: Backend>(
        &self,
        backend: &B,
        projection: &Projection,
        input: usize,
        output: usize,
        rows: Option<HeadRows>,
    ) -> Result<Vec<LowRank<B>>> {
        let low_rank = |factors: &Factors| {
            let Factors { module, down, up, scale, rows: part, layout } = factors;
            let (of_up, rank) = up.shape();
            let fits = part.map_or(of_up == output, |part| {
                part.count as usize == output && part.end().is_some_and(|end| end <= of_up as u64)
            });
            let found = (up.shape(), down.shape());
            ensure!(
                fits && down.shape() == (rank, input),
                "an adapter of `{module}` has the shapes {found:?}, expected [{output}, rank] and [rank, {input}]"
            );
            let exchanged = rows.zip(*layout);
            let order =
                exchanged.map_or(HeadOrder::Same, |(own, layout)| HeadOrder::between(layout, own.layout, own.head_dim));
            let up = match part {
                None => factor(backend, up, order)?,
                Some(part) => {
                    let stored = (0..output as u64).map(|row| part.stored(order.source(row)) as usize);
                    let numbers = up.rows(stored);
                    let weight = WeightSource::Numbers { numbers, shape: [output, rank] };
                    backend.matrix(MatrixSource { weight, bias: None, adapters: Vec::new() })?
                }
            };
            Ok(LowRank { down: factor(backend, down, HeadOrder::Same)?, up, scale: *scale })
        };
        self.adapters.of(&projection.weight).iter().map(low_rank).collect()
    }

    /// Returns the source of the numbers of a projection with `input` columns.
    fn source(&self, tensor: &architectures::Tensor, input: usize) -> Result<WeightSource> {
        let View { transposed, rows, .. } = tensor.view;
        let name = &tensor.name;
        // Some files store a gate of one row as a vector.
        let stored = self.stored(tensor)?.into_matrix(input);
        ensure!(stored.shape.len() == 2, "tensor `{name}` has the shape {:?}, expected a matrix", stored.shape);
        let of = stored.shape[usize::from(transposed)] as u64;
        if let Some(rows) = rows
            && rows.end().is_none_or(|end| end > of)
        {
            return Err(part_of(name, &format!("{rows:?} of {of} rows")));
        }
        if transposed {
            return Ok(WeightSource::Transposed { tensor: stored, columns: rows });
        }
        let together = |rows: &Rows| rows.block == rows.count;
        if let Some(rows) = rows.filter(together) {
            let tensor = stored.rows(rows.first, rows.count).map_err(|reason| part_of(name, &reason))?;
            return Ok(WeightSource::Mapped { tensor, rows: None });
        }
        Ok(WeightSource::Mapped { tensor: stored, rows })
    }

    /// Checks that all factors of adapters are used. Call it after all layers are loaded.
    ///
    /// # Errors
    /// Fails if some factors are not used.
    pub(crate) fn check_adapters(&self) -> Result<()> {
        self.adapters.check_used()
    }
}

fn without_ones(shape: &[usize]) -> impl Iterator<Item = &usize> {
    shape.iter().filter(|size| **size != 1)
}

fn part_of(name: &str, reason: &str) -> anyhow::Error {
    anyhow!("a part of tensor `{name}`: {reason}")
}

fn factor<B: Backend>(backend: &B, factor: &Factor, rows: HeadOrder) -> Result<B::Matrix> {
    let weight = if let Some(mapped) = factor.mapped(rows) {
        WeightSource::Mapped { tensor: mapped.clone(), rows: None }
    } else {
        let (rows_of, columns) = factor.shape();
        WeightSource::Numbers { numbers: factor.expanded(rows), shape: [rows_of, columns] }
    };
    backend.matrix(MatrixSource { weight, bias: None, adapters: Vec::new() })
}
