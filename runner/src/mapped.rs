//! Blobs mapped into memory, and tensors in them.
//!
//! Blobs of a store never change and are replaced by nobody while a runner has them mapped: the store makes them
//! read-only, deletes them only by unlinking, and an unlinked file stays mapped. That is what makes mapping them sound.
#![expect(unsafe_code, reason = "mapping files, and reading blocks in them")]

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::quantized::GgmlType as Block;
use formats::{Dtype, GgmlType};
use memmap2::Mmap;

/// How the bytes of a weight are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeightType {
    F32,
    F16,
    Bf16,
    Blocks(GgmlType),
}

impl WeightType {
    /// The type of that name in a load plan.
    pub(crate) fn parse(name: &str) -> Result<Self> {
        if let Some(kind) = GgmlType::from_quant_name(name).filter(|kind| kind.dtype().is_none()) {
            return Ok(Self::Blocks(kind));
        }
        match Dtype::parse(name) {
            Some(Dtype::F32) => Ok(Self::F32),
            Some(Dtype::F16) => Ok(Self::F16),
            Some(Dtype::Bf16) => Ok(Self::Bf16),
            _ => anyhow::bail!("weights of type `{name}` cannot be computed with yet"),
        }
    }

    /// Bytes of a row of `elements`; `None` where it is not a whole number of blocks.
    pub(crate) fn row_bytes(self, elements: usize) -> Option<usize> {
        match self {
            Self::F32 => Some(elements * 4),
            Self::F16 | Self::Bf16 => Some(elements * 2),
            Self::Blocks(kind) => kind.row_bytes(elements as u64).map(|bytes| bytes as usize),
        }
    }
}

/// A tensor in a mapped blob. Clones share the mapping.
#[derive(Clone, Debug)]
pub(crate) struct MappedTensor {
    blob: Arc<Mmap>,
    offset: usize,
    size: usize,
    pub(crate) kind: WeightType,
    /// Logical dimensions, outermost first.
    pub(crate) shape: Vec<usize>,
}

impl MappedTensor {
    /// The tensor's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.blob[self.offset..self.offset + self.size]
    }
}

/// Maps each blob once.
#[derive(Debug, Default)]
pub(crate) struct Mapper(HashMap<PathBuf, Arc<Mmap>>);

impl Mapper {
    /// The tensor that a load plan describes, checked against the blob.
    pub(crate) fn tensor(&mut self, plan: &protocol::Tensor) -> Result<MappedTensor> {
        let array = &plan.weight;
        let blob = self.map(&array.path).with_context(|| format!("tensor `{}`", plan.name))?;
        let (offset, size) = (array.offset as usize, array.size as usize);
        let end = offset.checked_add(size);
        ensure!(
            end.is_some_and(|end| end <= blob.len()),
            "tensor `{}` ends beyond its blob `{}`, which is damaged; import or pull the model again",
            plan.name,
            array.path.display()
        );
        let kind = WeightType::parse(&plan.dtype).with_context(|| format!("tensor `{}`", plan.name))?;
        let shape: Vec<usize> = plan.shape.iter().map(|n| *n as usize).collect();
        let (columns, rows) = shape.split_last().map_or((1, 1), |(last, rest)| (*last, rest.iter().product()));
        let expected = kind.row_bytes(columns).and_then(|row| row.checked_mul(rows));
        let (name, dtype) = (&plan.name, &plan.dtype);
        ensure!(expected == Some(size), "tensor `{name}`: {dtype} {shape:?} has not {size} bytes");
        Ok(MappedTensor { blob, offset, size, kind, shape })
    }

    fn map(&mut self, path: &Path) -> Result<Arc<Mmap>> {
        if let Some(blob) = self.0.get(path) {
            return Ok(blob.clone());
        }
        let blob = Arc::new(map(path)?);
        self.0.insert(path.to_owned(), blob.clone());
        Ok(blob)
    }
}

/// Maps a blob read-only.
pub(crate) fn map(path: &Path) -> Result<Mmap> {
    let file = File::open(path).with_context(|| format!("cannot open `{}`", path.display()))?;
    // SAFETY: blobs of a store are not written to after their commit, see the head of this file.
    unsafe { Mmap::map(&file) }.with_context(|| format!("cannot map `{}`", path.display()))
}

/// Bytes as blocks of a type.
pub(crate) fn blocks<T: Block>(bytes: &[u8]) -> &[T] {
    assert_eq!(bytes.len() % size_of::<T>(), 0, "a whole number of blocks");
    assert_eq!(bytes.as_ptr().align_offset(align_of::<T>()), 0, "data begins at a multiple of 8 in every blob");
    // SAFETY: length and alignment were checked, and candle's blocks are `repr(C)` structs of integers and floats, for
    // which every bit pattern is a value.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// Bytes as numbers of a plain type.
pub(crate) fn numbers<T: Plain>(bytes: &[u8]) -> &[T] {
    assert_eq!(bytes.len() % size_of::<T>(), 0, "a whole number of elements");
    assert_eq!(bytes.as_ptr().align_offset(align_of::<T>()), 0, "data begins at a multiple of 8 in every blob");
    // SAFETY: length and alignment were checked, and every bit pattern is a value of a `Plain` type.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// Number types without invalid bit patterns.
pub(crate) trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for half::f16 {}
impl Plain for half::bf16 {}
