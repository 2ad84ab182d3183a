//! Unpacks rows of a weight to 8-bit codes with their scales and offsets: `w = d·q + m`.
//!
//! | encoding | elements of a scale | `q` | `m` |
//! |---|---|---|---|
//! | `Q4_0`, `Q5_0`, `Q8_0` | 32 | as stored, from 0 on | `-8·d`, `-16·d`, `-128·d` |
//! | `TQ1_0`, `TQ2_0` | 32 | as stored, from 0 on | `-d` |
//! | `Q4_1`, `Q5_1`; `Q4_K`, `Q5_K`; affine | 32 | as stored | stored |
//! | `Q2_K`; `Q3_K`, `Q6_K` | 16 | as stored, from 0 on | stored; `-4·d`, `-32·d` |
//! | `IQ4_NL`, `IQ4_XS` | 32 | step + 128 | `-128·d` |
//! | `IQ2_XXS`, `IQ3_XXS`, `IQ3_S` | 32 | coordinate + 64 | `-64·d` |
//! | `IQ2_XS`, `IQ2_S` | 16 | coordinate + 64 | `-64·d` |
//! | `IQ1_S` | 32 | coordinate + 1 | `-d ± d/8` |
//! | `IQ1_M` | 16 | 8 · (coordinate + 1), plus 2 if shifted up | `-9·d`, `d` for eighths |
//! | `MXFP4`, `mxfp4` | 32 | 2 · element + 12 | `-12·d`, where `d` is half of the scale |
//! | `NVFP4`, `nvfp4` | 16 | 2 · element + 12 | `-12·d`, where `d` is half of the scale |
//!
//! Only `d` and `m` are rounded, if the format computes them from several numbers. Layouts are
//! those of `ggml-common.h` and of MLX's `quantize`.
#![expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]
#![expect(unsafe_code, reason = "the units of rows are looked up without a check each")]

pub(super) mod blocks;
pub(super) mod format;
pub(super) mod grids;
pub(super) mod portable;
pub(super) mod separate_scales;
pub(super) mod super_blocks;
#[cfg(target_arch = "x86_64")]
pub(super) mod vectors;

use formats::Dtype;

use super::BLOCK;
use super::panel_size::{HALF, PART};

/// Location of a weight's rows in memory.
#[derive(Clone, Copy)]
pub(super) struct WeightLocation<'a> {
    /// Codes, or whole GGML blocks.
    pub(super) codes: &'a [u8],
    pub(super) row_bytes: usize,
    /// Scales and biases that are separate from the codes.
    pub(super) groups: Groups<'a>,
}

/// Scales and biases in arrays of their own.
#[derive(Clone, Copy)]
pub(super) struct Groups<'a> {
    /// Number of units of 32 codes in a group, a power of two.
    pub(super) units: usize,
    pub(super) dtype: Dtype,
    /// One scale for each group, row by row.
    pub(super) scales: &'a [u8],
    /// One bias for each group, row by row; may be empty.
    pub(super) biases: &'a [u8],
    /// Number of groups in a row.
    pub(super) count: usize,
    /// Factor of all numbers of the weight.
    pub(super) global: Option<f32>,
}

impl Groups<'_> {
    /// No separate scales.
    pub(super) const NONE: Self =
        Self { units: 1, dtype: Dtype::F32, scales: &[], biases: &[], count: 0, global: None };
}

/// Rows that are unpacked together.
///
/// Invariant: all of them are within the codes.
#[derive(Clone, Copy)]
pub(super) struct UnpackedRows<'a> {
    place: &'a WeightLocation<'a>,
    rows: [usize; HALF],
}

impl<'a> UnpackedRows<'a> {
    /// Selects rows from `lane` on. Missing rows are replaced by the last one, whose results are
    /// ignored.
    pub(super) fn new(place: &'a WeightLocation<'a>, all: &[usize], lane: usize) -> Self {
        let mut rows = [0; HALF];
        for (at, row) in rows.iter_mut().enumerate() {
            *row = all[(lane + at).min(all.len() - 1)];
        }
        let are_there = rows.iter().all(|row| (row + 1) * place.row_bytes <= place.codes.len());
        assert!(are_there, "rows of the weight");
        Self { place, rows }
    }

    pub(super) fn place(&self) -> &'a WeightLocation<'a> {
        self.place
    }

    pub(super) fn rows(&self) -> [usize; HALF] {
        self.rows
    }

    /// Prefetches the same unit of later rows, which are likely next. Decoding is bound by memory,
    /// and hardware prefetchers do not predict short runs of many rows.
    #[inline(always)]
    pub(super) fn prefetch<M: VectorUnit, L: RowLayout>(&self, unit: usize) {
        let WeightLocation { codes, row_bytes, .. } = *self.place;
        let ahead = HALF * row_bytes * (AHEAD / (HALF * row_bytes)).max(1);
        for row in self.rows {
            let next = codes.as_ptr().wrapping_add(row * row_bytes + ahead + unit * L::BYTES);
            for line in 0..L::BYTES.div_ceil(LINE) {
                M::prefetch(next.wrapping_add(LINE * line));
            }
        }
    }

    /// Returns the bytes of a unit of each row.
    ///
    /// # Safety
    /// Rows have this unit.
    #[inline(always)]
    pub(super) unsafe fn units<L: RowLayout>(&self, unit: usize) -> Units<'a> {
        let mut units = [&[][..]; HALF];
        for (bytes, row) in units.iter_mut().zip(self.rows) {
            let from = row * self.place.row_bytes + unit * L::BYTES;
            // SAFETY: all rows are within the codes, see `new`, and the unit is in the row, as the
            // caller guarantees.
            *bytes = unsafe { self.place.codes.get_unchecked(from..from + L::BYTES) };
        }
        units
    }
}

/// A unit of each of eight rows.
pub(super) type Units<'a> = [&'a [u8]; HALF];

/// `d` and `m` of the parts of units that are computed together, for eight rows.
#[repr(align(32))]
pub(super) struct Factors {
    pub(super) scales: [[f32; HALF]; SUPER / PART],
    pub(super) offsets: [[f32; HALF]; SUPER / PART],
}

/// Number of elements in the largest units.
pub(super) const SUPER: usize = 256;

impl Factors {
    pub(super) const ZERO: Self = Self { scales: [[0.0; HALF]; SUPER / PART], offsets: [[0.0; HALF]; SUPER / PART] };

    /// Returns the factors of the `nth` of the units that are computed together.
    #[inline(always)]
    pub(super) fn of<L: RowLayout>(&self, nth: usize) -> OfUnit<'_> {
        OfUnit { factors: self, first: nth * L::PARTS }
    }
}

/// Factors of one unit of several that are computed together.
#[derive(Clone, Copy)]
pub(super) struct OfUnit<'a> {
    factors: &'a Factors,
    /// Its first part.
    first: usize,
}

impl OfUnit<'_> {
    /// Returns `d` and `m` of a part.
    #[inline(always)]
    pub(super) fn part(&self, part: usize) -> [&[f32; HALF]; 2] {
        [&self.factors.scales[self.first + part], &self.factors.offsets[self.first + part]]
    }
}

/// Layout of the units of a row: runs of 32 codes, with their scales and offsets.
pub(super) trait RowLayout {
    /// Size of a unit in bytes, without separate scales and biases.
    const BYTES: usize;
    /// Number of runs in a unit: 1, 2 or 8.
    const RUNS: usize;
    /// Whether 16 elements share a scale, instead of 32.
    const HALVES: bool;
    /// Number of scales in a unit.
    const PARTS: usize = Self::RUNS * BLOCK / if Self::HALVES { PART } else { BLOCK };
    /// Whether codes have up to 8 bits, instead of 7.
    const WIDE: bool;
    /// Position and order of the nibbles, if each run consists of the nibbles of 16 bytes. Two rows
    /// of such runs are computed at a time.
    const NIBBLES: Option<Nibbles> = None;
    /// Number of units whose `d` and `m` are computed together. The index of the first one is a
    /// multiple of this.
    const TOGETHER: usize = 1;
    /// Unpacks the codes of a run.
    fn codes<M: VectorUnit>(unit: &[u8], run: u8) -> M::Codes;
    /// Computes `d` and `m` of unit `unit` of each row, and of the next units that are computed
    /// with it.
    fn factors<M: VectorUnit>(rows: &UnpackedRows<'_>, unit: usize, units: &Units<'_>, factors: &mut Factors);
}

/// Runs that consist of the nibbles of 16 bytes each.
#[derive(Clone, Copy)]
pub(super) struct Nibbles {
    /// Offset of the first run in a unit.
    pub(super) at: usize,
    pub(super) order: Order,
    /// Table that maps nibbles to codes, if they are not the codes themselves.
    pub(super) table: Option<&'static [u8; 16]>,
}

/// Order of 32 elements in the nibbles of 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Low nibbles are the first half, high nibbles the second.
    Halves,
    /// The nibbles of a byte are adjacent elements.
    Pairs,
    /// Eight bytes are 16 elements, in the order of `Halves`.
    Quarters,
}

impl Nibbles {
    /// Returns the 16 bytes of a run.
    #[inline(always)]
    pub(super) fn of(self, unit: &[u8], run: u8) -> &[u8; BLOCK / 2] {
        field(unit, self.at + usize::from(run) * (BLOCK / 2))
    }

    /// Unpacks the codes of a run.
    #[inline(always)]
    pub(super) fn codes<M: VectorUnit>(self, unit: &[u8], run: u8) -> M::Codes {
        let packed = self.of(unit, run);
        let codes = match self.order {
            Order::Halves => M::Codes::nibbles(packed),
            Order::Pairs => M::Codes::pairs(packed),
            Order::Quarters => M::Codes::nibbles(packed).with_quarters_swapped(),
        };
        self.table.map_or(codes, |table| codes.lookup(table))
    }
}

/// Operations for which compilers do not find the best instructions.
pub(super) trait VectorUnit {
    /// Codes of 32 elements.
    type Codes: Codes;
    /// Converts a float16 number from its bits.
    fn half(bits: [u8; 2]) -> f32;
    /// Converts eight float16 numbers; only the lower 16 bits of each are used.
    fn halves(bits: [u32; HALF]) -> [f32; HALF];
    /// Converts eight float16 numbers of each row, and transposes them to lanes.
    fn float16(rows: [&[u8; 16]; HALF], lanes: &mut [[f32; HALF]; HALF]);
    /// Converts eight BF16 numbers of each row, and transposes them to lanes.
    fn bf16(rows: [&[u8; 16]; HALF], lanes: &mut [[f32; HALF]; HALF]);
    /// Converts E4M3 numbers: the low bytes of eight pairs, and the high bytes.
    fn e4m3(pairs: [u16; HALF]) -> [[f32; HALF]; 2];
    /// Computes eight scales of each row, times `d`, and eight offsets, times `m`, from codes of
    /// six bits. The first eight bytes have the first four scales and offsets in their low six
    /// bits. The last four bytes have the low four bits of the other ones, scales in the low
    /// nibbles and offsets in the high ones. Their upper two bits are the top bits of the first
    /// eight bytes.
    fn six_bits(packed: [&[u8; 12]; HALF], d: &[f32; HALF], m: &[f32; HALF], factors: &mut Factors);
    /// Transposes eight numbers of each row to lanes.
    fn transpose(rows: &[[f32; HALF]; HALF]) -> [[f32; HALF]; HALF];
    /// Prefetches the cache line of an address, which need not be readable.
    fn prefetch(address: *const u8);
}

/// Prefetch distance in bytes: what memory delivers within its latency.
const AHEAD: usize = 1 << 14;
/// Size of a cache line in bytes.
const LINE: usize = 64;

/// Codes of 32 elements, a byte each.
pub(super) trait Codes: Copy + From<[u8; BLOCK]> + Into<[u8; BLOCK]> {
    /// Unpacks the low nibbles of all bytes, then the high ones.
    fn nibbles(packed: &[u8; BLOCK / 2]) -> Self;
    /// Unpacks the low nibble of the first byte, its high nibble, and so on.
    fn pairs(packed: &[u8; BLOCK / 2]) -> Self;
    /// Unpacks a stream of codes of 2, 3, 5 or 6 bits, which starts in the lowest bits of the first
    /// byte.
    fn stream<const BITS: usize>(packed: &[u8]) -> Self;
    /// Swaps the second and the third group of eight codes.
    fn with_quarters_swapped(self) -> Self;
    /// Unpacks a bit for each code, 0 or 1, from the lowest bit of the first byte on.
    fn spread(bits: [u8; BLOCK / 8]) -> Self;
    /// Extracts bits of each code: `self >> shift & mask`.
    fn bits(self, shift: u8, mask: u8) -> Self;
    /// Adds bits to each code: `self | more << shift`. Results must be below 256.
    fn with(self, more: Self, shift: u8) -> Self;
    /// Replaces each code, below 16, with its entry in the table.
    fn lookup(self, table: &[u8; 16]) -> Self;
    /// Joins four groups of eight codes, the first code in the lowest bits.
    fn eights(eights: [u64; BLOCK / 8]) -> Self;
    /// Replaces each code, between 1 and 127, with 128 minus the code if its bit is set. The first
    /// bit is the lowest of the first byte.
    fn mirrored(self, bits: [u8; BLOCK / 8]) -> Self;
}

/// Returns an array of bytes of a unit.
#[inline(always)]
fn field<const COUNT: usize>(unit: &[u8], at: usize) -> &[u8; COUNT] {
    unit[at..].first_chunk().expect("invariant: the field is in the unit")
}
