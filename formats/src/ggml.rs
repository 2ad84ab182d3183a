//! The tensor types of GGML and the geometry of their blocks.
//!
//! Source of the numbers: `ggml-common.h` and `ggml.c` of llama.cpp. All types are listed,
//! including types that no code computes with yet; they are stored, listed and exported all the
//! same.

use std::fmt;

use crate::Dtype;

macro_rules! ggml_types {
    ($($variant:ident $name:literal $id:literal $block:literal $bytes:literal),* $(,)?) => {
        /// A tensor type as GGUF numbers it.
        #[expect(missing_docs, reason = "the names are the format's own")]
        #[expect(non_camel_case_types, reason = "the names are the format's own")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum GgmlType { $($variant),* }

        impl GgmlType {
            /// All types.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the common name, e.g. `Q4_K`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Returns the number in a file.
            pub fn id(self) -> u32 {
                match self { $(Self::$variant => $id),* }
            }

            /// Returns the elements per block; a row is a whole number of blocks.
            pub fn block_elements(self) -> u64 {
                match self { $(Self::$variant => $block),* }
            }

            /// Returns the bytes per block.
            pub fn block_bytes(self) -> u64 {
                match self { $(Self::$variant => $bytes),* }
            }
        }
    };
}

ggml_types! {
    F32 "F32" 0 1 4, F16 "F16" 1 1 2, Q4_0 "Q4_0" 2 32 18, Q4_1 "Q4_1" 3 32 20, Q5_0 "Q5_0" 6 32 22,
    Q5_1 "Q5_1" 7 32 24, Q8_0 "Q8_0" 8 32 34, Q8_1 "Q8_1" 9 32 36, Q2_K "Q2_K" 10 256 84, Q3_K "Q3_K" 11 256 110,
    Q4_K "Q4_K" 12 256 144, Q5_K "Q5_K" 13 256 176, Q6_K "Q6_K" 14 256 210, Q8_K "Q8_K" 15 256 292,
    IQ2_XXS "IQ2_XXS" 16 256 66, IQ2_XS "IQ2_XS" 17 256 74, IQ3_XXS "IQ3_XXS" 18 256 98, IQ1_S "IQ1_S" 19 256 50,
    IQ4_NL "IQ4_NL" 20 32 18, IQ3_S "IQ3_S" 21 256 110, IQ2_S "IQ2_S" 22 256 82, IQ4_XS "IQ4_XS" 23 256 136,
    I8 "I8" 24 1 1, I16 "I16" 25 1 2, I32 "I32" 26 1 4, I64 "I64" 27 1 8, F64 "F64" 28 1 8, IQ1_M "IQ1_M" 29 256 56,
    BF16 "BF16" 30 1 2, TQ1_0 "TQ1_0" 34 256 54, TQ2_0 "TQ2_0" 35 256 66, MXFP4 "MXFP4" 39 32 17,
    NVFP4 "NVFP4" 40 64 36, Q1_0 "Q1_0" 41 128 18, Q2_0 "Q2_0" 42 64 18,
}

/// Numbers of types that were removed from the format.
const REMOVED: [u32; 8] = [4, 5, 31, 32, 33, 36, 37, 38];

impl GgmlType {
    /// Returns the type with a number, or the reason why there is none.
    pub fn from_id(id: u32) -> Result<Self, &'static str> {
        match Self::ALL.iter().copied().find(|kind| kind.id() == id) {
            Some(kind) => Ok(kind),
            None if REMOVED.contains(&id) => Err("was removed from the format"),
            None => Err("is not known"),
        }
    }

    /// Returns the plain element type, for types without blocks.
    pub fn dtype(self) -> Option<Dtype> {
        Some(match self {
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::BF16 => Dtype::Bf16,
            Self::F64 => Dtype::F64,
            Self::I8 => Dtype::I8,
            Self::I16 => Dtype::I16,
            Self::I32 => Dtype::I32,
            Self::I64 => Dtype::I64,
            _ => return None,
        })
    }

    /// Returns the name in a blob's `quant_type`: lower case; GGML's MXFP4 and NVFP4 differ from
    /// MLX's types of the same name.
    pub fn quant_name(self) -> String {
        match self {
            Self::MXFP4 => "mxfp4_ggml".to_owned(),
            Self::NVFP4 => "nvfp4_ggml".to_owned(),
            other => other.name().to_ascii_lowercase(),
        }
    }

    /// Returns the type with a `quant_type`.
    pub fn from_quant_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.quant_name() == name)
    }

    /// Returns the bytes of a row of `elements`; `None` if it is not a whole number of blocks or
    /// overflows.
    pub fn row_bytes(self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.block_elements()) {
            return None;
        }
        (elements / self.block_elements()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique() {
        for (i, a) in GgmlType::ALL.iter().enumerate() {
            assert_eq!(GgmlType::from_id(a.id()), Ok(*a));
            assert_eq!(GgmlType::from_quant_name(&a.quant_name()), Some(*a));
            for b in &GgmlType::ALL[..i] {
                assert!(a.id() != b.id() && a.quant_name() != b.quant_name(), "{a} and {b}");
            }
        }
    }
}
