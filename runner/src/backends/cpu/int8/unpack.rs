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

mod apart;
mod blocks;
mod super_blocks;

use formats::encoding::Micro;
use formats::{Dtype, Encoding, GgmlType};

use super::panel::{LANES, Panel, SUPER};
use super::{BLOCK, Part};

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
    Affine { bits: u8, group: usize },
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
            Encoding::Affine { bits, group } => Self::Affine { bits, group: group as usize },
            Encoding::Micro(Micro::Mxfp4) => Self::Mxfp4,
            Encoding::Micro(Micro::Nvfp4) => Self::Nvfp4,
            _ => return None,
        })
    }

    /// Whether 16 elements share a scale, and not 32.
    pub(super) fn has_halves(self) -> bool {
        matches!(self, Self::Q2K | Self::Q3K | Self::Q6K | Self::Nvfp4Blocks | Self::Nvfp4)
    }

    /// Whether codes have up to 8 bits, and not 7.
    pub(super) fn has_bytes(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Iq4Nl | Self::Iq4Xs | Self::Affine { bits: 8, .. })
    }
}

/// Where a row lies.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    /// Codes, or GGML's blocks with all that is in them.
    pub(super) codes: &'a [u8],
    /// The type of scales and biases that lie apart.
    pub(super) dtype: Dtype,
    pub(super) scales: &'a [u8],
    pub(super) biases: &'a [u8],
    /// What all numbers are multiplied with.
    pub(super) global: Option<f32>,
}

impl Source<'_> {
    pub(super) const NONE: Self = Self { codes: &[], dtype: Dtype::F32, scales: &[], biases: &[], global: None };
}

/// What the instructions do that compilers do not find by themselves.
pub(super) trait Machine {
    /// Codes of 32 elements.
    type Codes: Codes;
    /// The number with those bits as float16.
    fn half(bits: [u8; 2]) -> f32;
    /// The same for each lane of a panel.
    fn halves(bits: &[[u8; 2]; LANES]) -> [f32; LANES];
    /// Numbers of rows as numbers of lanes.
    fn transpose(rows: &[[f32; LANES]; LANES], lanes: &mut [[f32; LANES]; LANES]);
}

/// Codes of 32 elements, a byte each.
pub(super) trait Codes: Copy + From<[u8; BLOCK]> + Into<[u8; BLOCK]> {
    /// The low nibbles of all bytes, then the high ones.
    fn nibbles(packed: &[u8; BLOCK / 2]) -> Self;
    /// Some bits of each: `self >> shift & mask`.
    fn bits<const SHIFT: i32>(self, mask: u8) -> Self;
    /// Further bits of each: `self | more << shift`, all below 256.
    fn with<const SHIFT: i32>(self, more: Self) -> Self;
    /// Each with its highest bit flipped.
    fn flipped(self) -> Self;
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

    fn halves(bits: &[[u8; 2]; LANES]) -> [f32; LANES] {
        bits.map(Self::half)
    }

    fn transpose(rows: &[[f32; LANES]; LANES], lanes: &mut [[f32; LANES]; LANES]) {
        *lanes = std::array::from_fn(|at| rows.map(|row| row[at]));
    }
}

impl Codes for [u8; BLOCK] {
    fn nibbles(packed: &[u8; BLOCK / 2]) -> Self {
        std::array::from_fn(|at| packed[at % (BLOCK / 2)] >> (at / (BLOCK / 2) * 4) & 15)
    }

    fn bits<const SHIFT: i32>(self, mask: u8) -> Self {
        self.map(|code| code >> SHIFT & mask)
    }

    fn with<const SHIFT: i32>(self, more: Self) -> Self {
        std::array::from_fn(|at| self[at] | more[at] << SHIFT)
    }

    fn flipped(self) -> Self {
        self.map(|code| code ^ 128)
    }

    fn lookup(self, table: &[u8; 16]) -> Self {
        self.map(|code| table[usize::from(code)])
    }
}

/// Unpacks columns of rows into the panel's rows, scales and offsets.
#[inline(always)]
pub(super) fn unpack<M: Machine>(part: &Part<'_>, panel: &mut Panel) {
    use blocks::{STEPS, each_block, five_bits};
    use super_blocks::each_super_block;
    match part.format {
        Format::Q4_0 => each_block!(M, part, panel, 18, offset 0, zero -8.0, |block| M::Codes::nibbles(field(block, 2))),
        Format::Q4_1 => each_block!(M, part, panel, 20, offset 2, zero 0.0, |block| M::Codes::nibbles(field(block, 4))),
        Format::Q5_0 => each_block!(M, part, panel, 22, offset 0, zero -16.0, |block| five_bits::<M>(field(block, 2))),
        Format::Q5_1 => each_block!(M, part, panel, 24, offset 2, zero 0.0, |block| five_bits::<M>(field(block, 4))),
        Format::Q8_0 => {
            each_block!(M, part, panel, 34, offset 0, zero -128.0, |block| M::Codes::from(*field(block, 2)).flipped());
        }
        Format::Iq4Nl => {
            each_block!(M, part, panel, 18, offset 0, zero -128.0, |block| {
                M::Codes::nibbles(field(block, 2)).lookup(&STEPS)
            });
        }
        Format::Mxfp4Blocks => blocks::mxfp4::<M>(part, panel),
        Format::Nvfp4Blocks => blocks::nvfp4::<M>(part, panel),
        Format::Q2K => each_super_block!(M, part, panel, 84, q2_k),
        Format::Q3K => each_super_block!(M, part, panel, 110, q3_k),
        Format::Q4K => each_super_block!(M, part, panel, 144, q4_k),
        Format::Q5K => each_super_block!(M, part, panel, 176, q5_k),
        Format::Q6K => each_super_block!(M, part, panel, 210, q6_k),
        Format::Iq4Xs => each_super_block!(M, part, panel, 136, iq4_xs),
        Format::Tq1 => each_super_block!(M, part, panel, 54, tq1_0),
        Format::Tq2 => each_super_block!(M, part, panel, 66, tq2_0),
        Format::Affine { bits, group } => apart::affine::<M>(part, panel, bits, group),
        Format::Mxfp4 => apart::micro::<M>(part, panel, Micro::Mxfp4),
        Format::Nvfp4 => apart::micro::<M>(part, panel, Micro::Nvfp4),
    }
}

/// A few bytes of a block.
#[inline(always)]
fn field<const COUNT: usize>(block: &[u8], at: usize) -> &[u8; COUNT] {
    block[at..].first_chunk().expect("invariant: the field is in the block")
}
