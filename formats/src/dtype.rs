//! The element types of safetensors 0.8.

use std::fmt;

macro_rules! dtypes {
    ($($variant:ident $name:literal $bits:literal),* $(,)?) => {
        /// Type of a tensor's elements, with the names of safetensors.
        #[expect(missing_docs, reason = "the names are the format's own")]
        #[expect(non_camel_case_types, reason = "the names are the format's own")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Dtype { $($variant),* }

        impl Dtype {
            /// All types.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the name in a header.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Returns the bits per element; types smaller than a byte are packed.
            pub fn bits(self) -> u64 {
                match self { $(Self::$variant => $bits),* }
            }
        }
    };
}

dtypes! {
    Bool "BOOL" 8, F4 "F4" 4, F6_E2M3 "F6_E2M3" 6, F6_E3M2 "F6_E3M2" 6, U8 "U8" 8, I8 "I8" 8,
    F8_E5M2 "F8_E5M2" 8, F8_E4M3 "F8_E4M3" 8, F8_E8M0 "F8_E8M0" 8,
    F8_E4M3Fnuz "F8_E4M3FNUZ" 8, F8_E5M2Fnuz "F8_E5M2FNUZ" 8,
    I16 "I16" 16, U16 "U16" 16, F16 "F16" 16, Bf16 "BF16" 16, I32 "I32" 32, U32 "U32" 32, F32 "F32" 32,
    C64 "C64" 64, F64 "F64" 64, I64 "I64" 64, U64 "U64" 64,
}

impl Dtype {
    /// Returns the type with a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.name() == name)
    }

    /// Returns the bytes of a tensor with a shape, or why such a tensor cannot exist.
    pub fn byte_count(self, shape: &[u64]) -> Result<u64, &'static str> {
        let elements = element_count(shape).ok_or("the number of elements overflows")?;
        let bits = elements.checked_mul(self.bits()).ok_or("the size in bytes overflows")?;
        if bits % 8 == 0 { Ok(bits / 8) } else { Err("the elements do not fill whole bytes") }
    }
}

/// Returns the product of a shape's dimensions; `None` if it overflows at any step, even if a later
/// dimension is 0.
///
/// # Examples
///
/// ```
/// use lode_formats::dtype::element_count;
///
/// assert_eq!(element_count(&[2, 3]), Some(6));
/// assert_eq!(element_count(&[u64::MAX, 2]), None);
/// ```
pub fn element_count(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |product, dimension| product.checked_mul(*dimension))
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
