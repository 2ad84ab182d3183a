//! Encodings with integer kernels, and the layout of each.

use formats::encoding::Micro;
use formats::{Encoding, GgmlType};

/// Generates [`CodeFormat`] and the macro `with_layout` from one row for each format. `$d` is a
/// dollar sign, for the variables of the inner macro.
macro_rules! code_formats {
    ($d:tt $($variant:ident: $encoding:pat => $module:ident::$layout:ident$(<$bits:literal>)?;)*) => {
        /// Format of the codes of a row.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(in crate::int8) enum CodeFormat { $($variant),* }

        impl CodeFormat {
            /// Returns the format of an encoding; `None` if there are no integer kernels for it.
            pub(in crate::int8) fn of(encoding: Encoding) -> Option<Self> {
                match encoding {
                    $($encoding => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }

        /// Evaluates `$work` with `$name` as a name of the format's layout type.
        macro_rules! with_layout {
            ($d format:expr, $d name:ident => $d work:expr) => {{
                use $crate::int8::unpack::format::CodeFormat;
                use $crate::int8::unpack::{blocks, grids, separate_scales, super_blocks};
                match $d format {
                    $(CodeFormat::$variant => {
                        type $d name = $module::$layout$(<$bits>)?;
                        $d work
                    })*
                }
            }};
        }
    };
}

code_formats! { $
    Q4_0: Encoding::Blocks(GgmlType::Q4_0) => blocks::Q4_0;
    Q4_1: Encoding::Blocks(GgmlType::Q4_1) => blocks::Q4_1;
    Q5_0: Encoding::Blocks(GgmlType::Q5_0) => blocks::Q5_0;
    Q5_1: Encoding::Blocks(GgmlType::Q5_1) => blocks::Q5_1;
    Q8_0: Encoding::Blocks(GgmlType::Q8_0) => blocks::Q8_0;
    Iq4Nl: Encoding::Blocks(GgmlType::IQ4_NL) => blocks::Iq4Nl;
    Mxfp4Blocks: Encoding::Blocks(GgmlType::MXFP4) => blocks::Mxfp4;
    Nvfp4Blocks: Encoding::Blocks(GgmlType::NVFP4) => blocks::Nvfp4;
    Q2K: Encoding::Blocks(GgmlType::Q2_K) => super_blocks::Q2K;
    Q3K: Encoding::Blocks(GgmlType::Q3_K) => super_blocks::Q3K;
    Q4K: Encoding::Blocks(GgmlType::Q4_K) => super_blocks::Q4K;
    Q5K: Encoding::Blocks(GgmlType::Q5_K) => super_blocks::Q5K;
    Q6K: Encoding::Blocks(GgmlType::Q6_K) => super_blocks::Q6K;
    Iq4Xs: Encoding::Blocks(GgmlType::IQ4_XS) => super_blocks::Iq4Xs;
    Tq1: Encoding::Blocks(GgmlType::TQ1_0) => super_blocks::Tq1;
    Tq2: Encoding::Blocks(GgmlType::TQ2_0) => super_blocks::Tq2;
    Iq2Xxs: Encoding::Blocks(GgmlType::IQ2_XXS) => grids::Iq2Xxs;
    Iq2Xs: Encoding::Blocks(GgmlType::IQ2_XS) => grids::Iq2Xs;
    Iq2S: Encoding::Blocks(GgmlType::IQ2_S) => grids::Iq2S;
    Iq3Xxs: Encoding::Blocks(GgmlType::IQ3_XXS) => grids::Iq3Xxs;
    Iq3S: Encoding::Blocks(GgmlType::IQ3_S) => grids::Iq3S;
    Iq1S: Encoding::Blocks(GgmlType::IQ1_S) => grids::Iq1S;
    Iq1M: Encoding::Blocks(GgmlType::IQ1_M) => grids::Iq1M;
    Affine2: Encoding::Affine { bits: 2, .. } => separate_scales::Affine<2>;
    Affine3: Encoding::Affine { bits: 3, .. } => separate_scales::Affine<3>;
    Affine4: Encoding::Affine { bits: 4, .. } => separate_scales::Affine<4>;
    Affine5: Encoding::Affine { bits: 5, .. } => separate_scales::Affine<5>;
    Affine6: Encoding::Affine { bits: 6, .. } => separate_scales::Affine<6>;
    Affine8: Encoding::Affine { bits: 8, .. } => separate_scales::Affine<8>;
    Mxfp4: Encoding::Micro(Micro::Mxfp4) => separate_scales::Mxfp4;
    Nvfp4: Encoding::Micro(Micro::Nvfp4) => separate_scales::Nvfp4;
}

pub(in crate::int8) use with_layout;

#[cfg(test)]
mod tests {
    use formats::WeightKernels;

    use super::*;

    /// Products with weights of a type without a row here would be computed in float32.
    #[test]
    fn each_type_with_integer_kernels_has_a_format() {
        for kind in GgmlType::ALL {
            let has_format = CodeFormat::of(Encoding::Blocks(*kind)).is_some();
            assert_eq!(has_format, matches!(kind.kernels(), WeightKernels::Integer(_)), "{kind}");
        }
        for bits in [2, 3, 4, 5, 6, 8] {
            assert!(CodeFormat::of(Encoding::Affine { bits, group: 64 }).is_some(), "{bits} bits");
        }
    }
}
