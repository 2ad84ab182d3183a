//! The weights of a model by name, on the device that computes.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use architectures::exchange::HeadOrder;
use architectures::{HeadLayout, Projection, View};
use candle_core::{Device, Tensor};
use formats::codec;
use protocol::LoadRequest;

use crate::adapters::{Adapters, Factor, Factors};
use crate::kernels;
use crate::layers::{Embedding, Linear, LowRank};
use crate::mapped::{self, MappedTensor, Mapper};

/// All tensors of a load plan, mapped.
#[derive(Debug)]
pub(crate) struct Weights {
    tensors: HashMap<String, MappedTensor>,
    adapters: Adapters,
    /// Where the layers compute.
    pub(crate) device: Device,
    /// Expand everything to float32.
    reference: bool,
}

/// What the rows of a projection are, where they are those of heads that are rotated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadRows {
    pub(crate) layout: HeadLayout,
    /// Rows of a head.
    pub(crate) head_dim: u64,
}

impl Weights {
    /// Maps what a plan names.
    pub(crate) fn map(plan: &LoadRequest, device: Device) -> Result<Self> {
        let mut mapper = Mapper::default();
        let tensors = plan
            .tensors
            .iter()
            // Tensors that no layer asks for may be of any type: buffers, counters.
            .filter_map(|tensor| mapped::encoding(tensor).map(|encoding| (tensor, encoding)))
            .map(|(tensor, encoding)| Ok((tensor.name.clone(), mapper.tensor(tensor, encoding)?)))
            .collect::<Result<_>>()?;
        let adapters = Adapters::map(&plan.adapters, &mut mapper)?;
        Ok(Self { tensors, adapters, device, reference: plan.reference })
    }

    /// Bytes of all tensors.
    pub(crate) fn size(&self) -> u64 {
        self.tensors.values().chain(self.adapters.tensors()).map(|tensor| tensor.size() as u64).sum()
    }

    /// What a blueprint means by a tensor, of that shape. Bytes stay where they are mapped, so nothing is transposed.
    fn get(&self, tensor: &architectures::Tensor, shape: &[usize]) -> Result<MappedTensor> {
        let name = &tensor.name;
        let stored = self
            .tensors
            .get(name)
            .with_context(|| format!("tensor `{name}` is missing, or of a type that is not known"))?;
        let tensor = match tensor.view {
            View::Whole => Ok(stored.clone()),
            View::Transposed => Err("only a projection can be transposed".to_owned()),
            View::Rows { first, count } => stored.rows(first, count),
            View::Item { index } => stored.item(index),
        };
        let tensor = tensor.map_err(|reason| anyhow!("a part of tensor `{name}`: {reason}"))?;
        ensure!(tensor.shape == shape, "tensor `{name}` has the shape {:?}, expected {shape:?}", tensor.shape);
        let encoding = tensor.encoding();
        ensure!(codec::can_decode(encoding), "tensor `{name}` is of type {encoding}, which weights cannot be");
        Ok(tensor)
    }

    /// A small tensor as float32: norms, biases.
    pub(crate) fn float(&self, tensor: &architectures::Tensor, shape: &[usize]) -> Result<Tensor> {
        Ok(expand(&self.get(tensor, shape)?)?.to_device(&self.device)?)
    }

    /// The numbers of a small tensor.
    pub(crate) fn numbers(&self, tensor: &architectures::Tensor, length: usize) -> Result<Vec<f32>> {
        Ok(expand(&self.get(tensor, &[length])?)?.to_vec1()?)
    }

    /// A projection `[output, input]`, with its bias where there is one and with what adapters add to it. `rows` says how
    /// its rows lie where they are those of heads that are rotated.
    pub(crate) fn linear(
        &self,
        projection: &Projection,
        input: usize,
        output: usize,
        rows: Option<HeadRows>,
    ) -> Result<Linear> {
        let bias = projection.bias.as_ref().map(|bias| self.float(bias, &[output])).transpose()?;
        let name = &projection.module;
        let adapters = self.adapters.of(name).iter().map(|Factors { down, up, scale, layout }| {
            let rank = down.shape().0;
            let (found, expected) = ((up.shape(), down.shape()), ((output, rank), (rank, input)));
            ensure!(found == expected, "an adapter of `{name}` has the shapes {found:?}, expected {expected:?}");
            let order = rows.map_or(HeadOrder::Same, |own| HeadOrder::between(*layout, own.layout, own.head_dim));
            Ok(LowRank { down: self.factor(down, HeadOrder::Same)?, up: self.factor(up, order)?, scale: *scale })
        });
        let linear = if projection.weight.view == View::Transposed {
            // No kernel reads columns of blocks, so it is a float32 copy in this process.
            let stored = architectures::Tensor::named(&projection.weight.name);
            let weight = expand(&self.get(&stored, &[input, output])?)?.t()?.contiguous()?;
            Linear::float(weight.to_device(&self.device)?, bias)
        } else {
            self.projection(&self.get(&projection.weight, &[output, input])?, bias)?
        };
        Ok(linear.adapted(adapters.collect::<Result<_>>()?))
    }

    /// Whether all that adapters add is added somewhere; for when all layers are made.
    ///
    /// # Errors
    /// What is not.
    pub(crate) fn check_adapters(&self) -> Result<()> {
        self.adapters.check_used()
    }

    fn factor(&self, factor: &Factor, rows: HeadOrder) -> Result<Linear> {
        match factor.mapped(rows) {
            Some(mapped) => self.projection(mapped, None),
            None => Ok(Linear::float(factor.expanded(rows)?.to_device(&self.device)?, None)),
        }
    }

    fn projection(&self, weight: &MappedTensor, bias: Option<Tensor>) -> Result<Linear> {
        if self.reference {
            return Ok(Linear::float(expand(weight)?.to_device(&self.device)?, bias));
        }
        match self.device {
            Device::Cpu => Ok(Linear::mapped(Arc::new(weight.clone()), bias)),
            _ => Linear::on_device(weight, &self.device, bias),
        }
    }

    /// The token embedding `[vocabulary, hidden]`.
    pub(crate) fn embedding(
        &self,
        tensor: &architectures::Tensor,
        vocabulary: usize,
        hidden: usize,
    ) -> Result<Embedding> {
        // Rows are expanded one by one and exactly, so the reference needs no other way.
        Ok(Embedding::new(self.get(tensor, &[vocabulary, hidden])?, self.device.clone()))
    }
}

/// A tensor expanded to float32, on the CPU.
pub(crate) fn expand(tensor: &MappedTensor) -> Result<Tensor> {
    let weight = tensor.weight();
    let mut numbers = vec![0.0; weight.rows() * weight.columns()];
    if !numbers.is_empty() {
        kernels::for_rows(&mut numbers, weight.columns(), |row, out| weight.decode_row(row, out));
    }
    Ok(Tensor::from_vec(numbers, tensor.shape.as_slice(), &Device::Cpu)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Array;

    #[test]
    fn a_view_says_what_of_a_tensor_is_meant() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("blob");
        let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|n| n.to_le_bytes()).collect();
        std::fs::write(&path, &bytes).expect("a blob");
        let stored = protocol::Tensor {
            name: "w".to_owned(),
            dtype: "F32".to_owned(),
            group: 0,
            shape: vec![2, 3],
            weight: Array { path, offset: 0, size: 24, dtype: "F32".to_owned() },
            scale: None,
            bias: None,
            global_scale: None,
        };
        let encoding = mapped::encoding(&stored).expect("a known encoding");
        let mapped = Mapper::default().tensor(&stored, encoding).expect("a weight");
        let weights = Weights {
            tensors: HashMap::from([("w".to_owned(), mapped)]),
            adapters: Adapters::default(),
            device: Device::Cpu,
            reference: false,
        };
        let viewed = |view| architectures::Tensor { name: "w".to_owned(), view };
        let product = |view, input: usize, output: usize| -> Result<Vec<f32>> {
            let projection = Projection { module: "w".to_owned(), weight: viewed(view), bias: None };
            let x = Tensor::from_vec((1..=input).map(|n| n as f32).collect(), (1, input), &Device::Cpu)?;
            Ok(weights.linear(&projection, input, output, None)?.forward(&x)?.flatten_all()?.to_vec1()?)
        };
        assert_eq!(product(View::Whole, 3, 2).expect("a product"), [14.0, 32.0]);
        assert_eq!(product(View::Rows { first: 1, count: 1 }, 3, 1).expect("a product"), [32.0]);
        assert_eq!(product(View::Transposed, 2, 3).expect("a product"), [9.0, 12.0, 15.0]);
        for (error, says) in [
            (product(View::Transposed, 3, 2).expect_err("exchanged"), "expected [3, 2]"),
            (product(View::Rows { first: 2, count: 1 }, 3, 1).expect_err("beyond"), "a part of tensor `w`"),
            (weights.float(&viewed(View::Transposed), &[2, 3]).expect_err("transposed"), "only a projection"),
        ] {
            assert!(format!("{error:#}").contains(says), "{error:#}");
        }
    }
}
