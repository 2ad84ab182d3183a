//! The tensors in mapped blobs.
//!
//! Arrays lie at multiples of 8 in the blobs that an import writes, but anywhere in files that were
//! stored whole. So no code here may assume an alignment.

mod blobs;
mod source_files;

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use formats::weight::{Arrays, Numbers};
use formats::{Dtype, Encoding, Weight};
use memmap2::Advice;
use protocol::Array;

use blobs::address;
pub(crate) use blobs::{Blob, Blobs, most_maps};
pub(crate) use source_files::SourceFiles;

/// Returns the encoding that a load plan names, if it is known.
pub(crate) fn encoding(plan: &protocol::Tensor) -> Option<Encoding> {
    Dtype::parse(&plan.dtype).map(Encoding::Plain).or_else(|| Encoding::parse(&plan.dtype, plan.group))
}

/// A tensor in mapped blobs. Clones share the mappings.
///
/// Invariant: its arrays have the lengths that encoding and shape require, so that
/// [`weight`](Self::weight) succeeds.
#[derive(Clone, Debug)]
pub(crate) struct MappedTensor {
    encoding: Encoding,
    /// Logical dimensions, outermost first.
    pub(crate) shape: Vec<usize>,
    dimensions: Vec<u64>,
    data: MappedArray,
    scale: Option<MappedArray>,
    bias: Option<MappedArray>,
    global_scale: Option<f32>,
}

/// The arrays of a tensor, each with its key.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    pub(crate) codes: (ArrayKey, &'a [u8]),
    pub(crate) scales: Option<(ArrayKey, &'a [u8], Dtype)>,
    pub(crate) biases: Option<(ArrayKey, &'a [u8])>,
    pub(crate) global_scale: Option<f32>,
}

/// Identifies an array of a mapped model. The key is unique as long as the blob exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ArrayKey {
    /// Address of the blob's [`Blob`] value.
    pub(crate) blob: usize,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// An array in a mapped blob.
#[derive(Clone, Debug)]
struct MappedArray {
    blob: Arc<Blob>,
    offset: usize,
    size: usize,
    dtype: Dtype,
}

impl MappedArray {
    fn bytes(&self) -> &[u8] {
        &self.blob[self.offset..self.offset + self.size]
    }

    fn numbers(&self) -> Numbers<'_> {
        Numbers { dtype: self.dtype, bytes: self.bytes() }
    }

    /// Asks the system to read a part of a mapped array.
    fn read_ahead(&self, from: usize, size: usize) -> std::io::Result<()> {
        match &*self.blob {
            Blob::Mapped(bytes) => bytes.advise_range(Advice::WillNeed, self.offset + from, size),
            Blob::Read(_) => Ok(()),
        }
    }

    /// Returns shares `from..to` of the bytes, out of `of` equal shares.
    fn share(&self, from: u64, to: u64, of: u64) -> Result<Self, String> {
        let of = of as usize;
        if of == 0 || !self.size.is_multiple_of(of) {
            return Err(format!("{} bytes are not {of} equal parts", self.size));
        }
        let one = self.size / of;
        let (from, to) = (from as usize * one, to as usize * one);
        Ok(Self { offset: self.offset + from, size: to - from, ..self.clone() })
    }
}

impl MappedTensor {
    /// Returns the encoding of the numbers.
    pub(crate) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Returns the tensor in the form that decoders of numbers take.
    pub(crate) fn weight(&self) -> Weight<'_> {
        Weight::again(self.encoding, &self.dimensions, self.arrays())
    }

    fn checked(&self) -> Result<Weight<'_>, String> {
        Weight::new(self.encoding, &self.dimensions, self.arrays())
    }

    fn arrays(&self) -> Arrays<'_> {
        Arrays {
            data: self.data.bytes(),
            scale: self.scale.as_ref().map(MappedArray::numbers),
            bias: self.bias.as_ref().map(MappedArray::numbers),
            global_scale: self.global_scale,
        }
    }

    /// Asks the system to read a row into memory; does not wait for it. The system reads the pages
    /// of the row only, not those around them as it does at the first access.
    pub(crate) fn read_ahead(&self, row: usize) -> std::io::Result<()> {
        let rows = self.shape.first().map_or(1, |rows| (*rows).max(1));
        let mut arrays = [Some(&self.data), self.scale.as_ref(), self.bias.as_ref()].into_iter().flatten();
        arrays.try_for_each(|own| own.read_ahead(row * (own.size / rows), own.size / rows))
    }

    /// Returns the arrays with their keys, for code that copies them to a device.
    pub(crate) fn places(&self) -> Places<'_> {
        let place = |part: &MappedArray| ArrayKey { blob: address(&part.blob), offset: part.offset, size: part.size };
        Places {
            codes: (place(&self.data), self.data.bytes()),
            scales: self.scale.as_ref().map(|part| (place(part), part.bytes(), part.dtype)),
            biases: self.bias.as_ref().map(|part| (place(part), part.bytes())),
            global_scale: self.global_scale,
        }
    }

    /// Returns a vector as a matrix of one row, and a tensor of more than two dimensions, such as
    /// the kernels of a convolution, as a matrix of `columns` columns, or in which those after the
    /// first are one. Some files join the first two dimensions of five.
    #[must_use]
    pub(crate) fn into_matrix(mut self, columns: usize) -> Self {
        match self.shape.len() {
            1 => {
                self.shape.insert(0, 1);
                self.dimensions.insert(0, 1);
            }
            3.. => {
                let (count, rest) = (self.shape.iter().product::<usize>(), self.shape[1..].iter().product());
                let columns = if columns > 0 && count.is_multiple_of(columns) { columns } else { rest };
                let rows = count.checked_div(columns).unwrap_or(0);
                (self.shape, self.dimensions) = (vec![rows, columns], vec![rows as u64, columns as u64]);
            }
            _ => {}
        }
        self
    }

    /// Returns some rows of a matrix, or some elements of a vector. A stack of one matrix counts as
    /// the matrix.
    ///
    /// # Errors
    /// Fails if there are no such rows, or if the range cuts a block of rows that share a scale.
    pub(crate) fn rows(&self, first: u64, count: u64) -> Result<Self, String> {
        if let [1, _, _] = self.dimensions[..] {
            return self.item(0)?.rows(first, count);
        }
        let ([rows] | [rows, _]) = self.dimensions[..] else {
            return Err(format!("it has {} dimensions, rows are of 1 or 2", self.dimensions.len()));
        };
        let end = first.checked_add(count).filter(|end| *end <= rows && count > 0);
        let end = end.ok_or_else(|| format!("{count} rows from row {first} on, there are {rows}"))?;
        // Number of rows of codes that share a row of scales.
        let block = match self.encoding {
            Encoding::BlockFp8 { rows: block, .. } => u64::from(block),
            _ => 1,
        };
        // If all rows share one row of scales, so does any part of them.
        let whole = block >= rows;
        if !whole && (!first.is_multiple_of(block) || !(end.is_multiple_of(block) || end == rows)) {
            return Err(format!("rows {first} to {end} cut blocks of {block} rows that share a scale"));
        }
        let mut part = self.clone();
        part.data = self.data.share(first, end, rows)?;
        part.scale = self
            .scale
            .as_ref()
            .map(|scale| {
                if whole && block > 1 {
                    return Ok(scale.clone());
                }
                scale.share(first / block, end.div_ceil(block), rows.div_ceil(block))
            })
            .transpose()?;
        part.bias = self.bias.as_ref().map(|bias| bias.share(first, end, rows)).transpose()?;
        (part.dimensions[0], part.shape[0]) = (count, count as usize);
        part.checked()?;
        Ok(part)
    }

    /// Returns one matrix of a stack.
    ///
    /// # Errors
    /// Fails if there is no such matrix.
    pub(crate) fn item(&self, index: u64) -> Result<Self, String> {
        let [items, rest @ ..] = &self.dimensions[..] else { return Err("it has no dimensions".to_owned()) };
        if index >= *items || rest.is_empty() {
            return Err(format!("item {index} of a tensor of shape {:?}", self.dimensions));
        }
        let share = |part: &MappedArray| part.share(index, index + 1, *items);
        let mut part = self.clone();
        part.data = share(&self.data)?;
        part.scale = self.scale.as_ref().map(share).transpose()?;
        part.bias = self.bias.as_ref().map(share).transpose()?;
        part.dimensions.remove(0);
        part.shape.remove(0);
        part.checked()?;
        Ok(part)
    }

    /// Returns all numbers as float32, for small tensors and for backends that compute only with
    /// float32.
    pub(crate) fn numbers(&self) -> Vec<f32> {
        let weight = self.weight();
        let mut numbers = vec![0.0; weight.rows() * weight.columns()];
        weight.decode(&mut numbers);
        numbers
    }

    /// Returns the numbers of every `step`th column of a matrix, from column `first` on.
    pub(crate) fn columns(&self, first: usize, step: usize) -> Vec<f32> {
        let [rows, columns] = [self.shape[0], self.shape[1]];
        let every = |numbers: &[f32]| -> Vec<f32> {
            numbers.chunks_exact(columns).flat_map(|row| row.iter().skip(first).step_by(step).copied()).collect()
        };
        let Encoding::Plain(_) = self.encoding else { return every(&self.numbers()) };
        let bytes = self.data.bytes();
        let width = bytes.len() / (rows * columns).max(1);
        if width == 0 {
            return every(&self.numbers());
        }
        let row =
            |row: &[u8]| row.chunks_exact(width).skip(first).step_by(step).flatten().copied().collect::<Vec<u8>>();
        let picked: Vec<u8> = bytes.chunks_exact(columns * width).flat_map(row).collect();
        let count = picked.len() / width;
        let mut numbers = vec![0.0; count];
        let arrays = Arrays { data: &picked, scale: None, bias: None, global_scale: None };
        Weight::again(self.encoding, &[count as u64], arrays).decode(&mut numbers);
        numbers
    }

    /// Returns the bytes of all arrays.
    pub(crate) fn size(&self) -> usize {
        let rest = [&self.scale, &self.bias].into_iter().flatten().map(|part| part.size);
        self.data.size + rest.sum::<usize>() + self.global_scale.map_or(0, |_| size_of::<f32>())
    }
}

/// Finds the arrays of a plan in its blobs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapper<'a>(pub(crate) &'a Blobs);

impl Mapper<'_> {
    /// Returns the tensor that a load plan describes, checked against the blobs.
    ///
    /// # Errors
    /// Names the tensor that cannot be read, and the reason: an array lies beyond its blob, has
    /// another length, is missing, or is unexpected.
    pub(crate) fn tensor(self, plan: &protocol::Tensor, encoding: Encoding) -> Result<MappedTensor> {
        self.parts(plan, encoding).with_context(|| format!("tensor `{}`", plan.name))
    }

    fn parts(self, plan: &protocol::Tensor, encoding: Encoding) -> Result<MappedTensor> {
        let shape = plan.shape.iter().map(|n| usize::try_from(*n)).collect::<Result<_, _>>();
        let global_scale = plan.global_scale.as_ref().map(|array| self.part(array)).transpose()?;
        let tensor = MappedTensor {
            encoding,
            shape: shape.context("its shape overflows")?,
            dimensions: plan.shape.clone(),
            data: self.part(&plan.weight)?,
            scale: plan.scale.as_ref().map(|array| self.part(array)).transpose()?,
            bias: plan.bias.as_ref().map(|array| self.part(array)).transpose()?,
            global_scale: global_scale.as_ref().map(scalar).transpose()?,
        };
        tensor.checked().map_err(|reason| anyhow!("{reason}; import or pull the model again"))?;
        Ok(tensor)
    }

    fn part(self, array: &Array) -> Result<MappedArray> {
        let dtype = Dtype::parse(&array.dtype).or_else(|| Encoding::parse(&array.dtype, 0).map(|_| Dtype::U8));
        let dtype = dtype.with_context(|| format!("an array of the type `{}`, which is not known", array.dtype))?;
        let blob = self.0.get(array.blob)?.clone();
        let place = usize::try_from(array.offset).ok().zip(usize::try_from(array.size).ok());
        let inside = place.filter(|(offset, size)| offset.checked_add(*size).is_some_and(|end| end <= blob.len()));
        let (offset, size) =
            inside.context("it ends beyond its blob, which is damaged; import or pull the model again")?;
        Ok(MappedArray { blob, offset, size, dtype })
    }
}

/// Returns the number of an array of one element.
fn scalar(part: &MappedArray) -> Result<f32> {
    let (dtype, size) = (part.dtype, part.size);
    ensure!(dtype == Dtype::F32, "its global scale is of type {dtype}, expected F32");
    let bytes = part.bytes().first_chunk().filter(|_| size == 4);
    Ok(f32::from_le_bytes(*bytes.with_context(|| format!("its global scale has {size} bytes, expected 4"))?))
}

#[cfg(test)]
mod tests;
