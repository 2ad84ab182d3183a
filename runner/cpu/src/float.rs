//! Products of float weights with rows of activations, `y = x · Wᵀ`, and small dot products.
//!
//! A product has 16 partial sums (lanes). Element k of a row goes to lane `k mod 16` with a fused
//! multiply-add. Then lanes at a distance of 8, 4, 2 and 1 are added up. So a result has the same
//! bits for any number of rows of x, and with every instruction set but the scalar one. The scalar
//! code does not fuse: it is off by at most `columns · 2⁻²⁴ · Σ |w·x|`.
//!
//! With AVX-512 BF16, weights of BF16 and FP8 are multiplied with activations rounded to BF16, two
//! elements per lane at a time. Rounding changes each x by at most 2⁻⁸ of its value.
#![expect(unsafe_code, reason = "SIMD")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub mod bf16_rows;
mod scratch;

use formats::codec::{e4m3, e4m3_scales};
use formats::encoding::Micro;
use formats::{Dtype, Encoding, Weight};
use half::{bf16, f16};

use super::instructions::{Instructions, Set};
pub use scratch::{with_buffer, with_second_buffer};

/// Number of rows of a weight that are computed together.
pub const GROUP: usize = 16;
/// Number of partial sums.
const LANES: usize = 16;
/// Number of rows of x from which weights are expanded once for all of them.
const MANY: usize = 8;

/// Number format of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberFormat {
    /// Float32.
    F32,
    /// Float16.
    F16,
    /// BF16.
    Bf16,
    /// E4M3 with a scale for each group of a row. Group sizes are powers of two, and at least
    /// [`LANES`].
    E4m3,
}

impl NumberFormat {
    /// Returns the kind of an encoding that kernels read as it is stored.
    pub fn of(encoding: Encoding) -> Option<Self> {
        match encoding {
            Encoding::Micro(Micro::Mxfp8) => Some(Self::E4m3),
            // Weights with other group sizes are expanded.
            Encoding::BlockFp8 { columns, .. } if columns.is_power_of_two() && columns as usize >= LANES => {
                Some(Self::E4m3)
            }
            Encoding::Plain(Dtype::F32) => Some(Self::F32),
            Encoding::Plain(Dtype::F16) => Some(Self::F16),
            Encoding::Plain(Dtype::Bf16) => Some(Self::Bf16),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::E4m3 => 1,
        }
    }
}

/// The kinds as const parameters of kernels.
#[cfg(target_arch = "x86_64")]
mod kind {
    pub(super) const F32: u8 = 0;
    pub(super) const F16: u8 = 1;
    pub(super) const BF16: u8 = 2;
    pub(super) const E4M3: u8 = 3;

    /// Returns the size of a number in bytes.
    pub(super) const fn bytes(kind: u8) -> usize {
        match kind {
            F32 => 4,
            E4M3 => 1,
            _ => 2,
        }
    }
}

/// Up to [`GROUP`] rows of a weight.
#[derive(Clone, Copy)]
struct WeightRows<'a> {
    kind: NumberFormat,
    /// The bytes of each row: `columns` little-endian numbers. Rows need not be adjacent.
    all: &'a [&'a [u8]],
    columns: usize,
    scales: Scales<'a>,
}

/// Scales of the numbers of rows.
#[derive(Clone, Copy)]
struct Scales<'a> {
    /// Scales, `[rows, groups]`; empty if there are none.
    all: &'a [f32],
    /// Number of scales in a row.
    groups: usize,
    /// Base-2 logarithm of the group size.
    shift: u32,
}

impl Scales<'_> {
    const NONE: Self = Self { all: &[], groups: 0, shift: 0 };
}

impl WeightRows<'_> {
    /// Returns the scale of the sixteen elements of a row from `at` on.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]
    fn scale(&self, row: usize, at: usize) -> f32 {
        let Scales { all, groups, shift } = self.scales;
        all[row.min(self.all.len() - 1) * groups + (at >> shift)]
    }
}

/// Multiplies up to 16 rows of a weight with all rows of x; `sums` is `[x's rows, 16]`. `room` is
/// scratch memory for the expanded rows, or for their scales.
pub fn products(
    instructions: Instructions,
    weight: &Weight<'_>,
    rows: impl ExactSizeIterator<Item = usize> + Clone,
    x: &[f32],
    room: &mut Vec<f32>,
    sums: &mut [[f32; GROUP]],
) {
    let (count, columns) = (rows.len().min(GROUP), weight.columns());
    if let Some(kind) =
        NumberFormat::of(weight.encoding()).filter(|kind| *kind == NumberFormat::F32 || sums.len() < MANY)
    {
        let (own, scales) = as_they_lie(weight, kind, rows, room);
        product(instructions, WeightRows { kind, all: &own[..count], columns, scales }, x, sums);
    } else {
        let expanded = of_size(room, count * columns);
        for (out, row) in expanded.chunks_exact_mut(columns).zip(rows) {
            weight.decode_row(row, out);
        }
        numbers(instructions, expanded, columns, x, sums);
    }
}

/// Returns the bytes of up to 16 rows, and their scales, which are written to `room`.
fn as_they_lie<'a>(
    weight: &Weight<'a>,
    kind: NumberFormat,
    rows: impl ExactSizeIterator<Item = usize> + Clone,
    room: &'a mut Vec<f32>,
) -> ([&'a [u8]; GROUP], Scales<'a>) {
    let (columns, group) = (weight.columns(), weight.encoding().group_size() as usize);
    let groups = if kind == NumberFormat::E4m3 { columns.div_ceil(group) } else { 0 };
    let scales = of_size(room, rows.len().min(GROUP) * groups);
    if kind == NumberFormat::E4m3 {
        e4m3_scales(weight, rows.clone(), scales);
    }
    let bytes = weight.array(formats::encoding::Role::Weight);
    let mut own = [&bytes[..0]; GROUP];
    for (own, row) in own.iter_mut().zip(rows) {
        *own = &bytes[row * columns * kind.bytes()..][..columns * kind.bytes()];
    }
    (own, Scales { all: scales, groups, shift: group.trailing_zeros() })
}

/// Returns the first `size` elements of a buffer that only grows.
fn of_size(room: &mut Vec<f32>, size: usize) -> &mut [f32] {
    if room.len() < size {
        room.resize(size, 0.0);
    }
    &mut room[..size]
}

/// Like [`products`], for rows of numbers in memory.
pub fn numbers(instructions: Instructions, own: &[f32], columns: usize, x: &[f32], sums: &mut [[f32; GROUP]]) {
    let mut rows = [&[][..]; GROUP];
    let count = own.len() / columns;
    for (row, own) in rows.iter_mut().zip(own.chunks_exact(columns)) {
        *row = as_bytes(own);
    }
    product(
        instructions,
        WeightRows { kind: NumberFormat::F32, all: &rows[..count], columns, scales: Scales::NONE },
        x,
        sums,
    );
}

/// Returns the bytes of numbers, little-endian on all supported machines.
fn as_bytes(numbers: &[f32]) -> &[u8] {
    const { assert!(cfg!(target_endian = "little")) };
    // SAFETY: every byte of a number may be read, and there are four of each.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

fn product(instructions: Instructions, rows: WeightRows<'_>, x: &[f32], sums: &mut [[f32; GROUP]]) {
    assert!(x.len() == sums.len() * rows.columns, "whole rows");
    match instructions.set() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the set exists only if the machine has the instructions.
        Set::Avx512 | Set::Avx512Vnni | Set::Avx512Bf16 => unsafe { avx512::product(rows, x, sums) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Set::Avx2 | Set::AvxVnni => unsafe { avx2::product(rows, x, sums) },
        _ => {
            for (x, sums) in x.chunks_exact(rows.columns).zip(sums) {
                for (row, sum) in sums[..rows.all.len()].iter_mut().enumerate() {
                    *sum = scalar(rows, row, x);
                }
            }
        }
    }
}

/// Multiplies a row with one row of x, on any machine.
fn scalar(rows: WeightRows<'_>, row: usize, x: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for (at, x) in x.chunks(LANES).enumerate() {
        let own = sixteen(rows, row, at * LANES);
        for ((lane, own), x) in lanes.iter_mut().zip(own).zip(x) {
            *lane += own * x;
        }
    }
    total(lanes)
}

/// Decodes up to sixteen numbers of a row; zeros behind its end.
fn sixteen(rows: WeightRows<'_>, row: usize, at: usize) -> [f32; LANES] {
    let mut numbers = [0.0; LANES];
    let bytes = &rows.all[row][at * rows.kind.bytes()..];
    match rows.kind {
        NumberFormat::E4m3 => {
            let scale = rows.scale(row, at);
            for (number, code) in numbers.iter_mut().zip(bytes) {
                *number = e4m3(*code) * scale;
            }
        }
        NumberFormat::F32 => {
            for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
                *number = f32::from_le_bytes(*bytes);
            }
        }
        NumberFormat::F16 => {
            for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
                *number = f16::from_le_bytes(*bytes).to_f32();
            }
        }
        NumberFormat::Bf16 => {
            for (number, bytes) in numbers.iter_mut().zip(bytes.as_chunks().0) {
                *number = bf16::from_le_bytes(*bytes).to_f32();
            }
        }
    }
    numbers
}

/// Returns the sum of all lanes.
fn total(lanes: [f32; LANES]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|at| lanes[at] + lanes[at + 8]);
    let four: [f32; 4] = std::array::from_fn(|at| eight[at] + eight[at + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// Returns `Σ a[i] · b[i]` over the length of the shorter slice.
pub fn dot(instructions: Instructions, a: &[f32], b: &[f32]) -> f32 {
    let length = a.len().min(b.len());
    let mut sums = [[0.0; GROUP]];
    product(
        instructions,
        WeightRows { kind: NumberFormat::F32, all: &[as_bytes(&a[..length])], columns: length, scales: Scales::NONE },
        &b[..length],
        &mut sums,
    );
    sums[0][0]
}

#[cfg(test)]
mod tests;
