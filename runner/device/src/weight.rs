//! Weights on a device, as they are stored, and the kernels for them.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use candle_core::Tensor;
use formats::encoding::Micro;
use formats::{Dtype, Encoding, WeightKernels};

use crate::arguments::{self, Address};
use crate::machine::{Memory, Owner};

/// A matrix on a device, `[rows, columns]`.
#[derive(Clone, Debug)]
pub struct DeviceWeight {
    pub(crate) kind: KernelKind,
    pub(crate) columns: usize,
    pub(crate) weight: arguments::Weight,
    pub(crate) owner: Owner,
    /// Owners of the memory behind the addresses.
    _arrays: Arrays,
}

/// An array in device memory.
#[derive(Clone, Debug)]
pub struct DeviceArray {
    /// The memory that contains it.
    pub memory: Arc<Memory>,
    /// Offset of the first byte.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// The arrays of a weight, see [`Encoding::parts`].
#[derive(Clone, Debug)]
pub struct Arrays {
    /// Codes or elements.
    pub codes: DeviceArray,
    /// Scales of groups or blocks, with their type.
    pub scales: Option<(DeviceArray, Dtype)>,
    /// Biases of groups, of the same type as the scales.
    pub biases: Option<DeviceArray>,
    /// Scale of the whole tensor.
    pub global_scale: Option<f32>,
}

/// Rows in equidistant blocks: row `r` is the stored row `first + r / block · stride + r % block`.
#[derive(Clone, Copy, Debug)]
pub struct RowBlocks {
    /// The first stored row.
    pub first: u32,
    /// Total number of rows.
    pub count: u32,
    /// Number of adjacent rows in a block.
    pub block: u32,
    /// Distance between the first rows of two blocks.
    pub stride: u32,
}

/// The kernels for an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelKind {
    /// Suffix of the kernels' names.
    pub(crate) name: &'static str,
    /// Whether the kernels take activations that are rounded to 8 bits.
    pub(crate) rounds: bool,
    /// Whether there are tile kernels for this matrix.
    pub(crate) has_tiles: bool,
}

impl KernelKind {
    fn of(encoding: Encoding, columns: usize) -> Option<Self> {
        if let Some(name) = float_name(encoding) {
            // Tiles apply scales to sums of 32 columns.
            let has_tiles = match encoding {
                Encoding::BlockFp8 { columns: block, .. } => block.is_multiple_of(32) || block as usize >= columns,
                _ => true,
            };
            return Some(Self { name, rounds: false, has_tiles });
        }
        let name = integer_name(encoding).filter(|_| columns > 0 && columns.is_multiple_of(32))?;
        Some(Self { name, rounds: true, has_tiles: true })
    }
}

fn float_name(encoding: Encoding) -> Option<&'static str> {
    Some(match encoding {
        Encoding::Plain(Dtype::F32) => "f32",
        Encoding::Plain(Dtype::F16) => "f16",
        Encoding::Plain(Dtype::Bf16) => "bf16",
        Encoding::Plain(Dtype::F8_E4M3) | Encoding::BlockFp8 { .. } | Encoding::Micro(Micro::Mxfp8) => "e4m3",
        _ => return None,
    })
}

fn integer_name(encoding: Encoding) -> Option<&'static str> {
    Some(match encoding {
        Encoding::Blocks(kind) => match kind.kernels() {
            WeightKernels::Integer(name) => name,
            WeightKernels::Plain(_) | WeightKernels::Absent => return None,
        },
        Encoding::Affine { bits, .. } => match bits {
            2 => "int2",
            3 => "int3",
            4 => "int4",
            5 => "int5",
            6 => "int6",
            8 => "int8",
            _ => return None,
        },
        Encoding::Micro(Micro::Mxfp4) => "mxfp4",
        Encoding::Micro(Micro::Nvfp4) => "nvfp4",
        _ => return None,
    })
}

impl DeviceWeight {
    /// Returns whether there are kernels for rows of this encoding with `columns` columns.
    pub fn is_known(encoding: Encoding, columns: usize) -> bool {
        KernelKind::of(encoding, columns).is_some()
    }

    /// Creates a matrix of the rows `part` of a stored `[rows, columns]` matrix.
    ///
    /// # Errors
    /// There are no kernels for it, an array is missing or has the wrong size, or a row is out of
    /// range.
    pub fn new(encoding: Encoding, [rows, columns]: [usize; 2], arrays: Arrays, part: RowBlocks) -> Result<Self> {
        let kind = KernelKind::of(encoding, columns).with_context(|| format!("there is no kernel for {encoding}"))?;
        let shape = [rows as u64, columns as u64];
        let float = arrays.scales.as_ref().map_or(Dtype::F32, |(_, dtype)| *dtype);
        let parts = encoding.parts(&shape, float).map_err(anyhow::Error::msg)?;
        encoding.check_scale(float).map_err(|error| anyhow!("{encoding} has scales of type {error}"))?;
        let given = [Some(&arrays.codes), arrays.scales.as_ref().map(|(scales, _)| scales), arrays.biases.as_ref()];
        for (index, array) in given.into_iter().enumerate() {
            let expected = parts.get(index).map(formats::encoding::PartShape::size);
            let found = array.map(|array| array.size as u64);
            ensure!(
                expected == found,
                "array {index} of {encoding} {shape:?} is of {found:?} bytes, expected {expected:?}"
            );
        }
        let owner = arrays.codes.memory.owner().clone();
        for array in given.into_iter().flatten() {
            ensure!(*array.memory.owner() == owner, "invariant: arrays of one machine");
            let end = array.offset.checked_add(array.size);
            ensure!(end.is_some_and(|end| end <= array.memory.size()), "an array ends beyond its memory");
            ensure!(array.offset.is_multiple_of(16), "an array begins at {}, expected a multiple of 16", array.offset);
        }
        ensure!(part.count <= part.block || part.stride >= part.block, "{part:?} overlap");
        ensure!(part.end().is_some_and(|end| end <= rows as u64), "{part:?} of {rows} rows");
        let address = |array: &DeviceArray| array.memory.address().after(array.offset);
        let row = |array: &DeviceArray| array.size / rows.max(1);
        let [group_rows, group_columns, scales_in_row] = match encoding {
            Encoding::BlockFp8 { rows: block, columns: own } => {
                [block as usize, own as usize, columns.div_ceil(own as usize)]
            }
            Encoding::Affine { group, .. } => [1, group as usize, columns / group as usize],
            Encoding::Micro(micro) => [1, micro.group() as usize, columns / micro.group() as usize],
            _ => [1, columns.max(1), 1],
        };
        let float_type = match (encoding, float) {
            (Encoding::Micro(Micro::Mxfp8), _) | (_, Dtype::F8_E8M0) => arguments::POWERS,
            (_, Dtype::F16) => arguments::FLOAT16,
            (_, Dtype::Bf16) => arguments::BFLOAT16,
            _ => arguments::FLOAT32,
        };
        let [group_rows, group_columns, scales_in_row] = [group_rows, group_columns, scales_in_row].map(|n| n as u32);
        let weight = arguments::Weight {
            codes: address(&arrays.codes),
            scales: arrays.scales.as_ref().map_or(Address::NONE, |(scales, _)| address(scales)),
            biases: arrays.biases.as_ref().map_or(Address::NONE, address),
            row_bytes: row(&arrays.codes) as u64,
            global: arrays.global_scale.unwrap_or(1.0),
            rows: part.count,
            row_first: part.first,
            row_block: part.block,
            row_stride: part.stride,
            scales_in_row,
            group_rows,
            group_columns,
            float_type,
            unused: 0,
        };
        Ok(Self { kind, columns, weight, owner, _arrays: arrays })
    }

    /// Returns the number of selected rows.
    pub fn rows(&self) -> usize {
        self.weight.rows as usize
    }

    /// Returns the number of elements in a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns whether the weight is multiplied with activations that are rounded to 8 bits.
    pub fn rounds(&self) -> bool {
        self.kind.rounds
    }

    /// Returns whether one launch can compute the products of both.
    pub fn is_like(&self, other: &Self) -> bool {
        self.kind == other.kind && self.columns == other.columns
    }
}

impl RowBlocks {
    /// Selects all rows.
    pub fn all(rows: usize) -> Self {
        let count = rows as u32;
        Self { first: 0, count, block: count.max(1), stride: count.max(1) }
    }

    /// Returns the number of the stored row after the last one.
    fn end(self) -> Option<u64> {
        let last = u64::from(self.count.checked_sub(1)?);
        let (block, stride) = (u64::from(self.block), u64::from(self.stride));
        Some(u64::from(self.first) + last.checked_div(block)? * stride + last % block + 1)
    }
}

/// Weights for the same rows of x, each with an optional bias, `[rows]` of float32.
pub type WeightSet<'a> = Vec<(&'a DeviceWeight, Option<&'a Tensor>)>;

/// Checks that one launch can compute with all sets. Returns a weight with the common layout, and
/// the number of rows of each weight of a set.
pub(crate) fn ensure_alike<'a>(sets: &[WeightSet<'a>]) -> Result<(&'a DeviceWeight, Vec<usize>)> {
    let set = sets.first().context("invariant: there is a set of weights")?;
    let (like, _) = *set.first().context("invariant: there is a weight")?;
    let fits = |own: &WeightSet<'_>| {
        let alike = |((own, _), (other, _)): (&(&DeviceWeight, _), &(&DeviceWeight, _))| {
            own.is_like(like) && own.rows() == other.rows()
        };
        own.len() == set.len() && own.iter().zip(set).all(alike)
    };
    ensure!(sets.iter().all(fits), "invariant: weights of one kind and shape");
    ensure!((1..=MOST_PRODUCTS).contains(&set.len()), "invariant: one to {MOST_PRODUCTS} weights");
    Ok((like, set.iter().map(|(weight, _)| weight.rows()).collect()))
}

/// Greatest number of weights in one product.
pub const MOST_PRODUCTS: usize = arguments::MOST_WEIGHTS;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use formats::GgmlType;

    use super::*;

    /// A type without a kernel would be expanded to float32 on every use.
    #[test]
    fn each_type_with_integer_kernels_has_one_for_gpus() {
        let row = |line: &'static str| line.strip_prefix("INTEGERS(")?.split_once(',').map(|(name, _)| name);
        let found: BTreeSet<&str> = include_str!("../cuda/kernels.cu").lines().filter_map(row).collect();
        let blocks = GgmlType::ALL.iter().map(|kind| Encoding::Blocks(*kind));
        let affine = [2, 3, 4, 5, 6, 8].map(|bits| Encoding::Affine { bits, group: 64 });
        let micro = [Micro::Mxfp4, Micro::Nvfp4].map(Encoding::Micro);
        let named: BTreeSet<&str> = blocks.chain(affine).chain(micro).filter_map(integer_name).collect();
        assert_eq!(found, named);
    }
}
