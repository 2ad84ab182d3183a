//! Rows of a weight as codes of 8 bits with what makes numbers of them: `w = d·q + m`.
//!
//! | encoding | elements of a scale | `q` | `m` |
//! |---|---|---|---|
//! | `Q4_0`, `Q5_0`, `Q8_0`; `TQ1_0`, `TQ2_0` | 32 | as stored, from 0 on | `-8·d`, `-16·d`, `-128·d`; `-d` |
//! | `Q4_1`, `Q5_1`; `Q4_K`, `Q5_K`; affine | 32 | as stored | stored |
//! | `Q2_K`; `Q3_K`, `Q6_K` | 16 | as stored, from 0 on | stored; `-4·d`, `-32·d` |
//! | `IQ4_NL`, `IQ4_XS` | 32 | the step and 128 | `-128·d` |
//! | `MXFP4`, `mxfp4`; `NVFP4`, `nvfp4` | 32; 16 | the doubled element and 12 | `-12·d`, where `d` is half of the scale |
//!
//! Nothing is rounded but `d` and `m`, where the format makes them of several numbers. Layouts are those of
//! `ggml-common.h` and of MLX's `quantize`.
#![expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]
#![expect(unsafe_code, reason = "the units of rows are looked up without a check each")]

pub(super) mod apart;
pub(super) mod blocks;
pub(super) mod super_blocks;

use formats::encoding::Micro;
use formats::{Dtype, Encoding, GgmlType};

use super::BLOCK;
use super::panel::{HALF, PART};

/// How the codes of a row lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Tq1,
    Tq2,
    Mxfp4Blocks,
    Nvfp4Blocks,
    /// Codes of so many bits.
    Affine(u8),
    Mxfp4,
    Nvfp4,
}

impl Format {
    /// The format of an encoding; `None` where it is not computed with as integers.
    pub(super) fn of(encoding: Encoding) -> Option<Self> {
        Some(match encoding {
            Encoding::Blocks(GgmlType::Q4_0) => Self::Q4_0,
            Encoding::Blocks(GgmlType::Q4_1) => Self::Q4_1,
            Encoding::Blocks(GgmlType::Q5_0) => Self::Q5_0,
            Encoding::Blocks(GgmlType::Q5_1) => Self::Q5_1,
            Encoding::Blocks(GgmlType::Q8_0) => Self::Q8_0,
            Encoding::Blocks(GgmlType::Q2_K) => Self::Q2K,
            Encoding::Blocks(GgmlType::Q3_K) => Self::Q3K,
            Encoding::Blocks(GgmlType::Q4_K) => Self::Q4K,
            Encoding::Blocks(GgmlType::Q5_K) => Self::Q5K,
            Encoding::Blocks(GgmlType::Q6_K) => Self::Q6K,
            Encoding::Blocks(GgmlType::IQ4_NL) => Self::Iq4Nl,
            Encoding::Blocks(GgmlType::IQ4_XS) => Self::Iq4Xs,
            Encoding::Blocks(GgmlType::TQ1_0) => Self::Tq1,
            Encoding::Blocks(GgmlType::TQ2_0) => Self::Tq2,
            Encoding::Blocks(GgmlType::MXFP4) => Self::Mxfp4Blocks,
            Encoding::Blocks(GgmlType::NVFP4) => Self::Nvfp4Blocks,
            Encoding::Affine { bits, .. } => Self::Affine(bits),
            Encoding::Micro(Micro::Mxfp4) => Self::Mxfp4,
            Encoding::Micro(Micro::Nvfp4) => Self::Nvfp4,
            _ => return None,
        })
    }
}

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
    /// Elements that share them.
    pub(super) size: usize,
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
        Self { size: BLOCK, dtype: Dtype::F32, scales: &[], biases: &[], count: 0, global: None };
}

/// Rows that are unpacked together.
///
/// Invariant: all of them are among the codes.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) place: &'a Place<'a>,
    pub(super) rows: [usize; HALF],
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

/// `d` and `m` of the parts of a unit, of eight rows each.
#[repr(align(32))]
pub(super) struct Numbers {
    pub(super) scales: [[f32; HALF]; SUPER / PART],
    pub(super) offsets: [[f32; HALF]; SUPER / PART],
}

/// Elements of the largest units.
pub(super) const SUPER: usize = 256;

impl Numbers {
    pub(super) const ZERO: Self = Self { scales: [[0.0; HALF]; SUPER / PART], offsets: [[0.0; HALF]; SUPER / PART] };
}

/// How the units of a row lie: runs of 32 codes, and what makes numbers of them.
pub(super) trait Layout {
    /// Bytes of a unit, without what lies apart.
    const BYTES: usize;
    /// Runs of a unit: 1, 2 or 8.
    const RUNS: usize;
    /// Whether 16 elements share a scale, and not 32.
    const HALVES: bool;
    /// Whether codes have up to 8 bits, and not 7.
    const WIDE: bool;
    /// The codes of a run.
    fn codes<M: Machine>(unit: &[u8], run: u8) -> M::Codes;
    /// `d` and `m` of a unit of each row, of that number.
    fn numbers<M: Machine>(rows: &Rows<'_>, unit: usize, units: &Units<'_>, numbers: &mut Numbers);
}

/// What the instructions do that compilers do not find by themselves.
pub(super) trait Machine {
    /// Codes of 32 elements.
    type Codes: Codes;
    /// The number with those bits as float16.
    fn half(bits: [u8; 2]) -> f32;
    /// The same of eight.
    fn halves(bits: &[[u8; 2]; HALF]) -> [f32; HALF];
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
    /// A bit of each: 1 where it is set; the first is the lowest of the first byte.
    fn spread(bits: [u8; BLOCK / 8]) -> Self;
    /// Some bits of each: `self >> shift & mask`.
    fn bits(self, shift: u8, mask: u8) -> Self;
    /// Further bits of each: `self | more << shift`, all below 256.
    fn with(self, more: Self, shift: u8) -> Self;
    /// For each index, below 16, what the table has there.
    fn lookup(self, table: &[u8; 16]) -> Self;
}

/// No instructions in particular.
pub(super) struct Portable;

impl Machine for Portable {
    type Codes = [u8; BLOCK];

    fn half(bits: [u8; 2]) -> f32 {
        half::f16::from_le_bytes(bits).to_f32()
    }

    fn halves(bits: &[[u8; 2]; HALF]) -> [f32; HALF] {
        bits.map(Self::half)
    }

    fn transpose(rows: &[[f32; HALF]; HALF]) -> [[f32; HALF]; HALF] {
        std::array::from_fn(|at| rows.map(|row| row[at]))
    }

    fn prefetch(_address: *const u8) {}
}

impl Codes for [u8; BLOCK] {
    fn nibbles(packed: &[u8; BLOCK / 2]) -> Self {
        std::array::from_fn(|at| packed[at % (BLOCK / 2)] >> (at / (BLOCK / 2) * 4) & 15)
    }

    fn pairs(packed: &[u8; BLOCK / 2]) -> Self {
        std::array::from_fn(|at| packed[at / 2] >> (at % 2 * 4) & 15)
    }

    fn spread(bits: [u8; BLOCK / 8]) -> Self {
        std::array::from_fn(|at| bits[at / 8] >> (at % 8) & 1)
    }

    fn bits(self, shift: u8, mask: u8) -> Self {
        self.map(|code| code >> shift & mask)
    }

    fn with(self, more: Self, shift: u8) -> Self {
        std::array::from_fn(|at| self[at] | more[at] << shift)
    }

    fn lookup(self, table: &[u8; 16]) -> Self {
        self.map(|code| table[usize::from(code)])
    }
}

/// Does something with the layout of a format, which has the name that is given.
macro_rules! with_layout {
    ($format:expr, $layout:ident => $work:expr) => {{
        use $crate::backends::cpu::int8::unpack::{Format, apart, blocks, super_blocks};
        match $format {
            Format::Q4_0 => {
                type $layout = blocks::Q4_0;
                $work
            }
            Format::Q4_1 => {
                type $layout = blocks::Q4_1;
                $work
            }
            Format::Q5_0 => {
                type $layout = blocks::Q5_0;
                $work
            }
            Format::Q5_1 => {
                type $layout = blocks::Q5_1;
                $work
            }
            Format::Q8_0 => {
                type $layout = blocks::Q8_0;
                $work
            }
            Format::Iq4Nl => {
                type $layout = blocks::Iq4Nl;
                $work
            }
            Format::Mxfp4Blocks => {
                type $layout = blocks::Mxfp4;
                $work
            }
            Format::Nvfp4Blocks => {
                type $layout = blocks::Nvfp4;
                $work
            }
            Format::Q2K => {
                type $layout = super_blocks::Q2K;
                $work
            }
            Format::Q3K => {
                type $layout = super_blocks::Q3K;
                $work
            }
            Format::Q4K => {
                type $layout = super_blocks::Q4K;
                $work
            }
            Format::Q5K => {
                type $layout = super_blocks::Q5K;
                $work
            }
            Format::Q6K => {
                type $layout = super_blocks::Q6K;
                $work
            }
            Format::Iq4Xs => {
                type $layout = super_blocks::Iq4Xs;
                $work
            }
            Format::Tq1 => {
                type $layout = super_blocks::Tq1;
                $work
            }
            Format::Tq2 => {
                type $layout = super_blocks::Tq2;
                $work
            }
            Format::Affine(2) => {
                type $layout = apart::Affine<2>;
                $work
            }
            Format::Affine(3) => {
                type $layout = apart::Affine<3>;
                $work
            }
            Format::Affine(4) => {
                type $layout = apart::Affine<4>;
                $work
            }
            Format::Affine(5) => {
                type $layout = apart::Affine<5>;
                $work
            }
            Format::Affine(6) => {
                type $layout = apart::Affine<6>;
                $work
            }
            Format::Affine(_) => {
                type $layout = apart::Affine<8>;
                $work
            }
            Format::Mxfp4 => {
                type $layout = apart::Mxfp4;
                $work
            }
            Format::Nvfp4 => {
                type $layout = apart::Nvfp4;
                $work
            }
        }
    }};
}

pub(super) use with_layout;

/// A few bytes of a unit.
#[inline(always)]
fn field<const COUNT: usize>(unit: &[u8], at: usize) -> &[u8; COUNT] {
    unit[at..].first_chunk().expect("invariant: the field is in the unit")
}
