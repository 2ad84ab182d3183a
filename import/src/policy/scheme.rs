//! Quantization schemes by the names that users write.

use formats::encoding::Micro;
use formats::{Encoding, GgmlType};

use super::tables::{self, PolicyRule};
use super::type_names::{BITS, all, encoding, type_name};
use crate::Error;

/// Quantization scheme: the type of most weights, and the rules for weights with another type.
#[derive(Clone, Debug)]
pub struct Scheme {
    /// Canonical name: lower case, with the group size after a colon if it is not the default.
    name: String,
    pub(super) base: Encoding,
    /// Type of weights that are sensitive to quantization.
    pub(super) eight: Encoding,
    pub(super) rules: &'static [PolicyRule],
}

impl Scheme {
    /// Parses a name such as `int4`, `int4:64`, `q8_0` or `Q4_K_M`, regardless of case.
    ///
    /// # Errors
    /// The type is unknown; the text lists all types.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let lower = text.trim().to_ascii_lowercase();
        let tables = tables::tables();
        if let Some(mix) = tables.mixes.iter().find(|mix| mix.name == lower) {
            let eight = Encoding::Blocks(GgmlType::Q8_0);
            return Ok(Self { name: lower, base: mix.base, eight, rules: &mix.rules });
        }
        let Some(base) = encoding(&lower) else {
            let known = known_types();
            return Err(Error::Source(format!("`{text}` is not a type to quantize to; known: {known}")));
        };
        let (eight, rules) = match base {
            Encoding::Affine { .. } => (Encoding::Affine { bits: 8, group: 64 }, &tables.mlx),
            Encoding::Micro(_) => (Encoding::Micro(Micro::Mxfp8), &tables.mlx),
            Encoding::Plain(_) => (base, &tables.plain),
            Encoding::Blocks(_) | Encoding::BlockFp8 { .. } => (Encoding::Blocks(GgmlType::Q8_0), &tables.ggml),
        };
        Ok(Self { name: type_name(base), base, eight, rules })
    }

    /// Returns the canonical name: `int4`, `int4:64`, `q4_k_m`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name for a model's `file_type`: GGML types and mixes as Ollama writes them,
    /// `Q4_K_M`; other types in lower case.
    pub fn file_type(&self) -> String {
        match self.base {
            Encoding::Blocks(_) | Encoding::Plain(_) => self.name.to_ascii_uppercase(),
            _ => self.name.split(':').next().unwrap_or_default().to_owned(),
        }
    }
}

/// Returns all names, for messages.
fn known_types() -> String {
    let affine = BITS.iter().map(|bits| format!("int{bits}"));
    let others = all().into_iter().map(type_name);
    let mixes = tables::tables().mixes.iter().map(|mix| mix.name.clone());
    let names: Vec<String> = affine.chain(others).chain(mixes).collect();
    format!("{}; the group of the int types may follow: int4:32, int4:64, int4:128", names.join(", "))
}

#[cfg(test)]
mod tests {
    use formats::Dtype;

    use super::*;

    #[test]
    fn reads_every_spelling() {
        for (text, name, file_type, base) in [
            ("int4", "int4", "int4", Encoding::Affine { bits: 4, group: 32 }),
            ("INT4:32", "int4", "int4", Encoding::Affine { bits: 4, group: 32 }),
            ("int4:64", "int4:64", "int4", Encoding::Affine { bits: 4, group: 64 }),
            ("fp4", "int4", "int4", Encoding::Affine { bits: 4, group: 32 }),
            ("int8", "int8", "int8", Encoding::Affine { bits: 8, group: 64 }),
            ("int3", "int3", "int3", Encoding::Affine { bits: 3, group: 64 }),
            ("nvfp4", "nvfp4", "nvfp4", Encoding::Micro(Micro::Nvfp4)),
            ("MXFP8", "mxfp8", "mxfp8", Encoding::Micro(Micro::Mxfp8)),
            ("Q8_0", "q8_0", "Q8_0", Encoding::Blocks(GgmlType::Q8_0)),
            ("q4_K_M", "q4_k_m", "Q4_K_M", Encoding::Blocks(GgmlType::Q4_K)),
            ("iq4_xs", "iq4_xs", "IQ4_XS", Encoding::Blocks(GgmlType::IQ4_XS)),
            ("bf16", "bf16", "BF16", Encoding::Plain(Dtype::Bf16)),
        ] {
            let scheme = Scheme::parse(text).expect(text);
            assert_eq!((scheme.name(), scheme.file_type().as_str(), scheme.base), (name, file_type, base), "{text}");
        }
    }

    #[test]
    fn refuses_with_a_list() {
        for text in ["", "int7", "int4:16", "int4:", "q4_0:32", "q4_k_x", "mxfp4_ggml", "q8_1", "i8"] {
            let error = Scheme::parse(text).expect_err(text).to_string();
            for name in ["int2", "int8", "nvfp4", "q4_0", "iq4_xs", "q3_k_l", "bf16"] {
                assert!(error.contains(name), "{error} should list {name}");
            }
        }
    }
}
