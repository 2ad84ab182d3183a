//! Encodings with integer kernels, and the layout of each.

use formats::encoding::Micro;
use formats::{Encoding, GgmlType};

/// Format of the codes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backends::cpu::int8) enum CodeFormat {
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
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
    Iq1S,
    Iq1M,
    Tq1,
    Tq2,
    Mxfp4Blocks,
    Nvfp4Blocks,
    /// Affine codes of this number of bits.
    Affine(u8),
    Mxfp4,
    Nvfp4,
}

impl CodeFormat {
    /// Returns the format of an encoding; `None` if there are no integer kernels for it.
    pub(in crate::backends::cpu::int8) fn of(encoding: Encoding) -> Option<Self> {
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
            Encoding::Blocks(GgmlType::IQ2_XXS) => Self::Iq2Xxs,
            Encoding::Blocks(GgmlType::IQ2_XS) => Self::Iq2Xs,
            Encoding::Blocks(GgmlType::IQ2_S) => Self::Iq2S,
            Encoding::Blocks(GgmlType::IQ3_XXS) => Self::Iq3Xxs,
            Encoding::Blocks(GgmlType::IQ3_S) => Self::Iq3S,
            Encoding::Blocks(GgmlType::IQ1_S) => Self::Iq1S,
            Encoding::Blocks(GgmlType::IQ1_M) => Self::Iq1M,
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

/// Evaluates `$work` with `$layout` as a name of the format's layout type.
macro_rules! with_layout {
    ($format:expr, $layout:ident => $work:expr) => {{
        use $crate::backends::cpu::int8::unpack::format::CodeFormat;
        use $crate::backends::cpu::int8::unpack::{blocks, grids, separate_scales, super_blocks};
        match $format {
            CodeFormat::Q4_0 => {
                type $layout = blocks::Q4_0;
                $work
            }
            CodeFormat::Q4_1 => {
                type $layout = blocks::Q4_1;
                $work
            }
            CodeFormat::Q5_0 => {
                type $layout = blocks::Q5_0;
                $work
            }
            CodeFormat::Q5_1 => {
                type $layout = blocks::Q5_1;
                $work
            }
            CodeFormat::Q8_0 => {
                type $layout = blocks::Q8_0;
                $work
            }
            CodeFormat::Iq4Nl => {
                type $layout = blocks::Iq4Nl;
                $work
            }
            CodeFormat::Mxfp4Blocks => {
                type $layout = blocks::Mxfp4;
                $work
            }
            CodeFormat::Nvfp4Blocks => {
                type $layout = blocks::Nvfp4;
                $work
            }
            CodeFormat::Q2K => {
                type $layout = super_blocks::Q2K;
                $work
            }
            CodeFormat::Q3K => {
                type $layout = super_blocks::Q3K;
                $work
            }
            CodeFormat::Q4K => {
                type $layout = super_blocks::Q4K;
                $work
            }
            CodeFormat::Q5K => {
                type $layout = super_blocks::Q5K;
                $work
            }
            CodeFormat::Q6K => {
                type $layout = super_blocks::Q6K;
                $work
            }
            CodeFormat::Iq4Xs => {
                type $layout = super_blocks::Iq4Xs;
                $work
            }
            CodeFormat::Iq2Xxs => {
                type $layout = grids::Iq2Xxs;
                $work
            }
            CodeFormat::Iq2Xs => {
                type $layout = grids::Iq2Xs;
                $work
            }
            CodeFormat::Iq2S => {
                type $layout = grids::Iq2S;
                $work
            }
            CodeFormat::Iq3Xxs => {
                type $layout = grids::Iq3Xxs;
                $work
            }
            CodeFormat::Iq3S => {
                type $layout = grids::Iq3S;
                $work
            }
            CodeFormat::Iq1S => {
                type $layout = grids::Iq1S;
                $work
            }
            CodeFormat::Iq1M => {
                type $layout = grids::Iq1M;
                $work
            }
            CodeFormat::Tq1 => {
                type $layout = super_blocks::Tq1;
                $work
            }
            CodeFormat::Tq2 => {
                type $layout = super_blocks::Tq2;
                $work
            }
            CodeFormat::Affine(2) => {
                type $layout = separate_scales::Affine<2>;
                $work
            }
            CodeFormat::Affine(3) => {
                type $layout = separate_scales::Affine<3>;
                $work
            }
            CodeFormat::Affine(4) => {
                type $layout = separate_scales::Affine<4>;
                $work
            }
            CodeFormat::Affine(5) => {
                type $layout = separate_scales::Affine<5>;
                $work
            }
            CodeFormat::Affine(6) => {
                type $layout = separate_scales::Affine<6>;
                $work
            }
            CodeFormat::Affine(_) => {
                type $layout = separate_scales::Affine<8>;
                $work
            }
            CodeFormat::Mxfp4 => {
                type $layout = separate_scales::Mxfp4;
                $work
            }
            CodeFormat::Nvfp4 => {
                type $layout = separate_scales::Nvfp4;
                $work
            }
        }
    }};
}

pub(in crate::backends::cpu::int8) use with_layout;
