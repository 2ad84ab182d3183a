//! Rows of a weight as codes of 8 bits with what makes numbers of them: `w = d·q + m`.
//!
//! | encoding | elements of a scale | `q` | `m` |
//! |---|---|---|---|
//! | `Q4_0`, `Q5_0`, `Q8_0`; `TQ1_0`, `TQ2_0` | 32 | as stored, from 0 on | `-8·d`, `-16·d`, `-128·d`; `-d` |
//! | `Q4_1`, `Q5_1`; `Q4_K`, `Q5_K`; affine | 32 | as stored | stored |
//! | `Q2_K`; `Q3_K`, `Q6_K` | 16 | as stored, from 0 on | stored; `-4·d`, `-32·d` |
//! | `IQ4_NL`, `IQ4_XS` | 32 | the step and 128 | `-128·d` |
//! | `IQ2_XXS`, `IQ3_XXS`, `IQ3_S`; `IQ2_XS`, `IQ2_S` | 32; 16 | the coordinate and 64 | `-64·d` |
//! | `IQ1_S`; `IQ1_M` | 32; 16 | the coordinate and 1; eighths of that, and 2 where it is shifted up | `-d ± d/8`; `-9·d` |
//! | `MXFP4`, `mxfp4`; `NVFP4`, `nvfp4` | 32; 16 | the doubled element and 12 | `-12·d`, where `d` is half of the scale |
//!
//! Nothing is rounded but `d` and `m`, where the format makes them of several numbers. Layouts are those of
//! `ggml-common.h` and of MLX's `quantize`.
#![expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]
#![expect(unsafe_code, reason = "the units of rows are looked up without a check each")]

pub(super) mod apart;
pub(super) mod blocks;
pub(super) mod format;
pub(super) mod grids;
pub(super) mod portable;
pub(super) mod super_blocks;
#[cfg(target_arch = "x86_64")]
pub(super) mod vectors;

use formats::Dtype;

use super::BLOCK;
use super::panel::{HALF, PART};

/// Where the rows of a weight lie.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// Codes, or GGML's blocks with all that is in them.
    pub(super) codes: &'a [u8],
    pub(super) row_bytes: usize,
    /// Scales and biases that lie apart.
    pub(super) groups: Groups<'a>,
}

/// Scales and biases that lie apart from codes.
#[derive(Clone, Copy)]
pub(super) struct Groups<'a> {
    /// Units of 32 codes that share them, a power of two.
    pub(super) units: usize,
    pub(super) dtype: Dtype,
    /// One for each group, row by row.
    pub(super) scales: &'a [u8],
    /// The same, or none.
    pub(super) biases: &'a [u8],
    /// How many a row has.
    pub(super) count: usize,
    /// What all numbers are multiplied with.
    pub(super) global: Option<f32>,
}

impl Groups<'_> {
    /// Where there are none.
    pub(super) const NONE: Self =
        Self { units: 1, dtype: Dtype::F32, scales: &[], biases: &[], count: 0, global: None };
}

/// Rows that are unpacked together.
///
/// Invariant: all of them are among the codes.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    place: &'a Place<'a>,
    rows: [usize; HALF],
}

impl<'a> Rows<'a> {
    /// Rows from `lane` on. Where some are missing, the last one takes their place: what comes of it is not looked at.
    pub(super) fn new(place: &'a Place<'a>, all: &[usize], lane: usize) -> Self {
        let mut rows = [0; HALF];
        for (at, row) in rows.iter_mut().enumerate() {
            *row = all[(lane + at).min(all.len() - 1)];
        }
        let are_there = rows.iter().all(|row| (row + 1) * place.row_bytes <= place.codes.len());
        assert!(are_there, "rows of the weight");
        Self { place, rows }
    }

    pub(super) fn place(&self) -> &'a Place<'a> {
        self.place
    }

    pub(super) fn rows(&self) -> [usize; HALF] {
        self.rows
    }

    /// Asks for the same unit of rows further on, which most likely come next. Memory is what decoding waits for, and machines do
    /// not foresee short runs of many rows.
    #[inline(always)]
    pub(super) fn prefetch<M: Machine, L: Layout>(&self, unit: usize) {
        let Place { codes, row_bytes, .. } = *self.place;
        let ahead = HALF * row_bytes * (AHEAD / (HALF * row_bytes)).max(1);
        for row in self.rows {
            let next = codes.as_ptr().wrapping_add(row * row_bytes + ahead + unit * L::BYTES);
            for line in 0..L::BYTES.div_ceil(LINE) {
                M::prefetch(next.wrapping_add(LINE * line));
            }
        }
    }

    /// The bytes of a unit of each row.
    ///
    /// # Safety
    /// Rows have so many units.
    #[inline(always)]
    pub(super) unsafe fn units<L: Layout>(&self, unit: usize) -> Units<'a> {
        let mut units = [&[][..]; HALF];
        for (bytes, row) in units.iter_mut().zip(self.rows) {
            let from = row * self.place.row_bytes + unit * L::BYTES;
            // SAFETY: all rows are among the codes, see `new`, and the unit is in the row, as the caller says.
            *bytes = unsafe { self.place.codes.get_unchecked(from..from + L::BYTES) };
        }
        units
    }
}

/// A unit of each of eight rows.
pub(super) type Units<'a> = [&'a [u8]; HALF];

/// `d` and `m` of the parts of the units that are made together, of eight rows each.
#[repr(align(32))]
pub(super) struct Factors {
    pub(super) scales: [[f32; HALF]; SUPER / PART],
    pub(super) offsets: [[f32; HALF]; SUPER / PART],
}

/// Elements of the largest units.
pub(super) const SUPER: usize = 256;

impl Factors {
    pub(super) const ZERO: Self = Self { scales: [[0.0; HALF]; SUPER / PART], offsets: [[0.0; HALF]; SUPER / PART] };

    /// Those of the unit that is the `nth` of those that are made together.
    #[inline(always)]
    pub(super) fn of<L: Layout>(&self, nth: usize) -> OfUnit<'_> {
        OfUnit { factors: self, first: nth * L::PARTS }
    }
}

/// Those of one unit of several that are made together.
#[derive(Clone, Copy)]
pub(super) struct OfUnit<'a> {
    factors: &'a Factors,
    /// Its first part.
    first: usize,
}

impl OfUnit<'_> {
    /// `d` and `m` of a part.
    #[inline(always)]
    pub(super) fn part(&self, part: usize) -> [&[f32; HALF]; 2] {
        [&self.factors.scales[self.first + part], &self.factors.offsets[self.first + part]]
    }
}

/// How the units of a row lie: runs of 32 codes, and what makes numbers of them.
pub(super) trait Layout {
    /// Bytes of a unit, without what lies apart.
    const BYTES: usize;
    /// Runs of a unit: 1, 2 or 8.
    const RUNS: usize;
    /// Whether 16 elements share a scale, and not 32.
    const HALVES: bool;
    /// Scales of a unit.
    const PARTS: usize = Self::RUNS * BLOCK / if Self::HALVES { PART } else { BLOCK };
    /// Whether codes have up to 8 bits, and not 7.
    const WIDE: bool;
    /// How runs are nibbles, where each of them is the nibbles of 16 bytes: two rows of such are computed at a time.
    const NIBBLES: Option<Nibbles> = None;
    /// Units whose `d` and `m` are made together, of which the first has such a multiple as its number.
    const TOGETHER: usize = 1;
    /// The codes of a run.
    fn codes<M: Machine>(unit: &[u8], run: u8) -> M::Codes;
    /// `d` and `m` of a unit of each row, of that number, and of those after it that are made together with it.
    fn factors<M: Machine>(rows: &Rows<'_>, unit: usize, units: &Units<'_>, factors: &mut Factors);
}

/// Runs that are the nibbles of 16 bytes each.
#[derive(Clone, Copy)]
pub(super) struct Nibbles {
    /// Where in a unit the first run begins.
    pub(super) at: usize,
    pub(super) order: Order,
    /// What a nibble stands for, if not for itself.
    pub(super) table: Option<&'static [u8; 16]>,
}

/// Which elements of 32 the nibbles of 16 bytes are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The low ones are the first half, the high ones the second.
    Halves,
    /// Those of a byte are two that follow each other.
    Pairs,
    /// Those of eight bytes are 16 elements, as in `Halves`.
    Quarters,
}

impl Nibbles {
    /// The 16 bytes of a run.
    #[inline(always)]
    pub(super) fn of(self, unit: &[u8], run: u8) -> &[u8; BLOCK / 2] {
        field(unit, self.at + usize::from(run) * (BLOCK / 2))
    }

    /// The codes of a run.
    #[inline(always)]
    pub(super) fn codes<M: Machine>(self, unit: &[u8], run: u8) -> M::Codes {
        let packed = self.of(unit, run);
        let codes = match self.order {
            Order::Halves => M::Codes::nibbles(packed),
            Order::Pairs => M::Codes::pairs(packed),
            Order::Quarters => M::Codes::nibbles(packed).with_quarters_swapped(),
        };
        self.table.map_or(codes, |table| codes.lookup(table))
    }
}

/// What the instructions do that compilers do not find by themselves.
pub(super) trait Machine {
    /// Codes of 32 elements.
    type Codes: Codes;
    /// The number with those bits as float16.
    fn half(bits: [u8; 2]) -> f32;
    /// The same of eight; only the lower 16 bits of each count.
    fn halves(bits: [u32; HALF]) -> [f32; HALF];
    /// Eight numbers of float16 of each row as numbers of lanes.
    fn float16(rows: [&[u8; 16]; HALF], lanes: &mut [[f32; HALF]; HALF]);
    /// The same of BF16.
    fn bf16(rows: [&[u8; 16]; HALF], lanes: &mut [[f32; HALF]; HALF]);
    /// The E4M3 numbers that are the low bytes of eight, and those that are the high ones.
    fn e4m3(pairs: [u16; HALF]) -> [[f32; HALF]; 2];
    /// Eight scales of each row, times `d`, and eight offsets, times `m`, which have six bits each: the low four or six in the first
    /// eight bytes, the rest of the last four of either in what is left of these.
    fn six_bits(packed: [&[u8; 12]; HALF], d: &[f32; HALF], m: &[f32; HALF], factors: &mut Factors);
    /// Eight numbers of each row as numbers of lanes.
    fn transpose(rows: &[[f32; HALF]; HALF]) -> [[f32; HALF]; HALF];
    /// Asks for the line that an address is in; it need not be readable.
    fn prefetch(address: *const u8);
}

/// Bytes ahead of those that are computed with that are asked for: what memory brings while it answers.
const AHEAD: usize = 1 << 14;
/// Bytes that come at a time.
const LINE: usize = 64;

/// Codes of 32 elements, a byte each.
pub(super) trait Codes: Copy + From<[u8; BLOCK]> + Into<[u8; BLOCK]> {
    /// The low nibbles of all bytes, then the high ones.
    fn nibbles(packed: &[u8; BLOCK / 2]) -> Self;
    /// The low nibble of the first byte, its high one, and so on.
    fn pairs(packed: &[u8; BLOCK / 2]) -> Self;
    /// Codes of 2, 3, 5 or 6 bits each, a stream whose first code has the lowest bits of the first byte.
    fn stream<const BITS: usize>(packed: &[u8]) -> Self;
    /// The second and the third eight change places.
    fn with_quarters_swapped(self) -> Self;
    /// A bit of each: 1 where it is set; the first is the lowest of the first byte.
    fn spread(bits: [u8; BLOCK / 8]) -> Self;
    /// Some bits of each: `self >> shift & mask`.
    fn bits(self, shift: u8, mask: u8) -> Self;
    /// Further bits of each: `self | more << shift`, all below 256.
    fn with(self, more: Self, shift: u8) -> Self;
    /// For each index, below 16, what the table has there.
    fn lookup(self, table: &[u8; 16]) -> Self;
    /// Four times eight codes, the first in the lowest bits.
    fn eights(eights: [u64; BLOCK / 8]) -> Self;
    /// 128 minus a code where its bit is set; codes are between 1 and 127. The first bit is the lowest of the first byte.
    fn mirrored(self, bits: [u8; BLOCK / 8]) -> Self;
}

/// A few bytes of a unit.
#[inline(always)]
fn field<const COUNT: usize>(unit: &[u8], at: usize) -> &[u8; COUNT] {
    unit[at..].first_chunk().expect("invariant: the field is in the unit")
}
