//! The tensor types of GGML: one row has all facts about a type.
//!
//! Formats, quantization policies, exports and the kernels of runners read the table. Tests fail if
//! a row promises an encoder or a kernel that does not exist: `docs/add-a-quantization.md`.
//!
//! Source of the numbers: `ggml-common.h` and `ggml.c` of llama.cpp. All types are listed,
//! including types without kernels; they are stored, listed and exported all the same.

use std::fmt;

use crate::Dtype;

/// Generates [`GgmlType`] from one row for each type.
macro_rules! ggml_types {
    ($($variant:ident $id:literal $elements:literal $bytes:literal $quant_name:literal $file_type:expr,
       $encoder:ident $shorter:expr, $kernels:expr;)*) => {
        /// A tensor type as GGUF numbers it.
        #[expect(missing_docs, reason = "the names are the format's own")]
        #[expect(non_camel_case_types, reason = "the names are the format's own")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum GgmlType { $($variant),* }

        impl GgmlType {
            /// All types.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            fn row(self) -> &'static TypeRow {
                use GgmlType::*;
                use WeightKernels::{Absent, Integer, Plain};
                match self {
                    $(Self::$variant => &TypeRow {
                        name: stringify!($variant),
                        id: $id,
                        block_elements: $elements,
                        block_bytes: $bytes,
                        quant_name: $quant_name,
                        file_type: $file_type,
                        encoder: Encoder::$encoder,
                        shorter: $shorter,
                        kernels: $kernels,
                    }),*
                }
            }
        }
    };
}

/// Facts about a type.
struct TypeRow {
    name: &'static str,
    id: u32,
    block_elements: u64,
    block_bytes: u64,
    quant_name: &'static str,
    file_type: Option<u32>,
    encoder: Encoder,
    shorter: Option<GgmlType>,
    kernels: WeightKernels,
}

/// Whether Lode can write a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoder {
    /// There is no encoder.
    Absent,
    /// Exports write the type; models cannot be quantized to it.
    Internal,
    /// Models can be quantized to it by its name.
    Offered,
}

/// How runners compute with a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightKernels {
    /// Plain elements.
    Plain(Dtype),
    /// Kernels for CPUs and GPUs that multiply 8-bit codes, with this suffix of their names.
    Integer(&'static str),
    /// None: rows are expanded to float32 first, which is slower.
    Absent,
}

// The columns: type; number in a file; elements and bytes per block; `quant_type` of blobs;
// `general.file_type` of files that mostly have the type; encoder; the type that replaces it if
// rows are not whole blocks; kernels.
//
// `quant_type` is the name in lower case, but GGML's MXFP4 and NVFP4 differ from MLX's types of the
// same name. File types: `enum llama_ftype` in llama.cpp's `llama.h`. Replacements:
// `tensor_type_fallback` in `llama-quant.cpp` of llama.cpp, before `Q2_K` and `Q3_K` were replaced
// by types of less than 4.5 bits per weight.
ggml_types! {
    F32     0  1   4   "f32"        Some(0),  Absent   None,         Plain(Dtype::F32);
    F16     1  1   2   "f16"        Some(1),  Absent   None,         Plain(Dtype::F16);
    Q4_0    2  32  18  "q4_0"       Some(2),  Offered  None,         Integer("q4_0");
    Q4_1    3  32  20  "q4_1"       Some(3),  Offered  None,         Integer("q4_1");
    Q5_0    6  32  22  "q5_0"       Some(8),  Offered  None,         Integer("q5_0");
    Q5_1    7  32  24  "q5_1"       Some(9),  Offered  None,         Integer("q5_1");
    Q8_0    8  32  34  "q8_0"       Some(7),  Offered  None,         Integer("q8_0");
    Q8_1    9  32  36  "q8_1"       None,     Absent   None,         Absent;
    Q2_K    10 256 84  "q2_k"       Some(10), Offered  Some(IQ4_NL), Integer("q2_k");
    Q3_K    11 256 110 "q3_k"       Some(12), Offered  Some(IQ4_NL), Integer("q3_k");
    Q4_K    12 256 144 "q4_k"       Some(15), Offered  Some(Q5_0),   Integer("q4_k");
    Q5_K    13 256 176 "q5_k"       Some(17), Offered  Some(Q5_1),   Integer("q5_k");
    Q6_K    14 256 210 "q6_k"       Some(18), Offered  Some(Q8_0),   Integer("q6_k");
    Q8_K    15 256 292 "q8_k"       None,     Absent   None,         Absent;
    IQ2_XXS 16 256 66  "iq2_xxs"    None,     Absent   None,         Integer("iq2_xxs");
    IQ2_XS  17 256 74  "iq2_xs"     None,     Absent   None,         Integer("iq2_xs");
    IQ3_XXS 18 256 98  "iq3_xxs"    None,     Absent   None,         Integer("iq3_xxs");
    IQ1_S   19 256 50  "iq1_s"      None,     Absent   None,         Integer("iq1_s");
    IQ4_NL  20 32  18  "iq4_nl"     Some(25), Offered  None,         Integer("iq4_nl");
    IQ3_S   21 256 110 "iq3_s"      None,     Absent   None,         Integer("iq3_s");
    IQ2_S   22 256 82  "iq2_s"      None,     Absent   None,         Integer("iq2_s");
    IQ4_XS  23 256 136 "iq4_xs"     Some(30), Offered  Some(IQ4_NL), Integer("iq4_xs");
    I8      24 1   1   "i8"         None,     Absent   None,         Plain(Dtype::I8);
    I16     25 1   2   "i16"        None,     Absent   None,         Plain(Dtype::I16);
    I32     26 1   4   "i32"        None,     Absent   None,         Plain(Dtype::I32);
    I64     27 1   8   "i64"        None,     Absent   None,         Plain(Dtype::I64);
    F64     28 1   8   "f64"        None,     Absent   None,         Plain(Dtype::F64);
    IQ1_M   29 256 56  "iq1_m"      None,     Absent   None,         Integer("iq1_m");
    BF16    30 1   2   "bf16"       Some(32), Absent   None,         Plain(Dtype::Bf16);
    TQ1_0   34 256 54  "tq1_0"      None,     Internal None,         Integer("tq1_0");
    TQ2_0   35 256 66  "tq2_0"      None,     Internal None,         Integer("tq2_0");
    MXFP4   39 32  17  "mxfp4_ggml" None,     Internal None,         Integer("mxfp4_blocks");
    NVFP4   40 64  36  "nvfp4_ggml" None,     Absent   None,         Integer("nvfp4_blocks");
    Q1_0    41 128 18  "q1_0"       None,     Absent   None,         Absent;
    Q2_0    42 64  18  "q2_0"       None,     Absent   None,         Absent;
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

    /// Returns the common name, e.g. `Q4_K`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the number in a file.
    pub fn id(self) -> u32 {
        self.row().id
    }

    /// Returns the elements per block; a row is a whole number of blocks.
    pub fn block_elements(self) -> u64 {
        self.row().block_elements
    }

    /// Returns the bytes per block.
    pub fn block_bytes(self) -> u64 {
        self.row().block_bytes
    }

    /// Returns the plain element type, for types without blocks.
    pub fn dtype(self) -> Option<Dtype> {
        match self.row().kernels {
            WeightKernels::Plain(dtype) => Some(dtype),
            WeightKernels::Integer(_) | WeightKernels::Absent => None,
        }
    }

    /// Returns the kernels for the type.
    pub fn kernels(self) -> WeightKernels {
        self.row().kernels
    }

    /// Returns whether Lode can write the type.
    pub fn encoder(self) -> Encoder {
        self.row().encoder
    }

    /// Returns the type to which tensors are quantized instead if their rows are not whole blocks;
    /// `None` if there is no shorter block for the type.
    pub fn shorter(self) -> Option<Self> {
        self.row().shorter
    }

    /// Returns the value of `general.file_type` for files whose tensors mostly have this type;
    /// `None` if exports state none.
    pub fn file_type(self) -> Option<u32> {
        self.row().file_type
    }

    /// Returns the name in a blob's `quant_type`.
    pub fn quant_name(self) -> &'static str {
        self.row().quant_name
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
            assert_eq!(GgmlType::from_quant_name(a.quant_name()), Some(*a));
            for b in &GgmlType::ALL[..i] {
                assert!(a.id() != b.id() && a.quant_name() != b.quant_name(), "{a} and {b}");
            }
        }
    }

    #[test]
    fn the_page_of_models_lists_the_types_of_weights() {
        const PAGE: &str = include_str!("../../docs/models.md");
        let files = PAGE.split_once("- **GGUF files:**").and_then(|(_, rest)| rest.split_once("\n\n"));
        let (fast, slow) = files.and_then(|(files, _)| files.split_once("Without kernels")).expect("both lists");
        for kind in GgmlType::ALL {
            let name = format!("`{}`", kind.name().to_lowercase());
            let listed = (fast.contains(&name), slow.contains(&name));
            let expected = match kind.kernels() {
                WeightKernels::Plain(_) => (false, false),
                WeightKernels::Integer(_) => (true, false),
                WeightKernels::Absent => (false, true),
            };
            assert_eq!(listed, expected, "{name} among types with and without kernels");
        }
    }
}
