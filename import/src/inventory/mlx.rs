//! Weights that MLX quantized: `<base>.weight` in 32-bit words, `<base>.scales`, and for affine
//! encodings `<base>.biases`.
//!
//! `config.json` states the bits and the group size, because different encodings can have the same
//! shapes. The shapes must match the config nevertheless. `<base>.bias` is an ordinary tensor: the
//! bias of the layer.

use std::collections::HashMap;

use formats::encoding::{Micro, Role};
use formats::{Dtype, Encoding};

use crate::QuantizationConfig;
use crate::split_weights::{ArrayInfo, FoundWeight};

/// Returns the weights that MLX quantized.
///
/// # Errors
/// A weight does not match the config; the text states the expected and the actual form.
pub(super) fn find(arrays: &[ArrayInfo<'_>], config: &QuantizationConfig) -> Result<Vec<FoundWeight>, String> {
    let positions: HashMap<&str, usize> = arrays.iter().enumerate().map(|(at, array)| (array.name, at)).collect();
    let mut found = Vec::new();
    for (at, codes) in arrays.iter().enumerate().filter(|(_, array)| array.dtype == Dtype::U32) {
        let Some(base) = codes.name.strip_suffix(".weight") else { continue };
        let Some(scales) = positions.get(format!("{base}.scales").as_str()).copied() else { continue };
        let biases = positions.get(format!("{base}.biases").as_str()).copied();
        let candidate = Candidate { codes, scales: &arrays[scales], biases: biases.map(|at| &arrays[at]) };
        let (encoding, shape) = candidate
            .encoding(config.mlx(base))
            .map_err(|reason| format!("`{}` is quantized by MLX, but {reason}", codes.name))?;
        let companions = [(Role::Scale, Some(scales)), (Role::Bias, biases)];
        let companions = companions.into_iter().filter_map(|(role, at)| Some((role, at?)));
        let parts = [(Role::Weight, at)].into_iter().chain(companions).collect();
        found.push(FoundWeight { name: codes.name.to_owned(), encoding, shape, parts });
    }
    Ok(found)
}

struct Candidate<'a> {
    codes: &'a ArrayInfo<'a>,
    scales: &'a ArrayInfo<'a>,
    biases: Option<&'a ArrayInfo<'a>>,
}

impl Candidate<'_> {
    /// Returns the encoding and the logical shape.
    fn encoding(&self, said: Result<Option<Encoding>, String>) -> Result<(Encoding, Vec<u64>), String> {
        if let Some(encoding) = said? {
            let shape =
                self.fits(encoding).map_err(|reason| format!("config.json says {}: {reason}", name(encoding)))?;
            return Ok((encoding, shape));
        }
        let mut fitting = all().filter_map(|encoding| Some((encoding, self.fits(encoding).ok()?)));
        match (fitting.next(), fitting.next()) {
            (Some(only), None) => Ok(only),
            (Some((one, _)), Some((other, _))) => {
                let (one, other) = (name(one), name(other));
                Err(format!("config.json does not state the encoding; by its shape it may be {one} or {other}"))
            }
            (None, _) => {
                Err(format!("config.json does not state the encoding, and no known encoding has {}", self.shapes()))
            }
        }
    }

    /// Returns the logical shape, or the reason why the arrays do not have that encoding.
    fn fits(&self, encoding: Encoding) -> Result<Vec<u64>, String> {
        let float = self.scales.dtype;
        encoding.check_scale(float).map_err(|error| format!("its scales are {error}"))?;
        let shape = encoding.logical_shape(self.codes.shape).ok_or_else(|| {
            format!("rows of {:?} words are not whole groups of 32 codes", self.codes.shape.last().unwrap_or(&0))
        })?;
        let given = [(Role::Weight, Some(self.codes)), (Role::Scale, Some(self.scales)), (Role::Bias, self.biases)];
        let parts = encoding.parts(&shape, float)?;
        for (role, array) in given {
            let expected = parts.iter().find(|part| part.role == role);
            match (expected, array) {
                (Some(part), Some(array)) if (part.dtype, part.shape.as_slice()) == (array.dtype, array.shape) => {}
                (None, None) => {}
                (Some(part), Some(array)) => {
                    let (dtype, shape) = (part.dtype, &part.shape);
                    let (name, found, dims) = (array.name, array.dtype, array.shape);
                    return Err(format!("`{name}` is {found} {dims:?}, expected {dtype} {shape:?}"));
                }
                (Some(_), None) => return Err("it has no `.biases`".to_owned()),
                (None, Some(array)) => return Err(format!("`{}` is one array too many", array.name)),
            }
        }
        Ok(shape)
    }

    fn shapes(&self) -> String {
        let (words, scales) = (self.codes.shape, self.scales.shape);
        format!("words {words:?} with scales {} {scales:?}", self.scales.dtype)
    }
}

fn name(encoding: Encoding) -> String {
    match encoding {
        Encoding::Affine { group, .. } => format!("{encoding} in groups of {group}"),
        other => other.to_string(),
    }
}

/// Returns all encodings that MLX writes.
fn all() -> impl Iterator<Item = Encoding> {
    let micro = [Micro::Nvfp4, Micro::Mxfp4, Micro::Mxfp8].map(Encoding::Micro);
    let groups = |bits| [32, 64, 128].map(|group| Encoding::Affine { bits, group });
    micro.into_iter().chain([2, 3, 4, 5, 6, 8].into_iter().flat_map(groups))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the encodings that are found for a weight `a.weight` with these arrays, given a
    /// config with that `quantization`.
    fn check(words: &[u64], scales: (Dtype, &[u64]), biased: bool, says: &str, expect: Result<(&str, &[u64]), &str>) {
        let mut arrays = vec![
            ArrayInfo { name: "a.weight", dtype: Dtype::U32, shape: words },
            ArrayInfo { name: "a.bias", dtype: Dtype::F32, shape: &[4] },
            ArrayInfo { name: "a.scales", dtype: scales.0, shape: scales.1 },
        ];
        arrays.extend(biased.then_some(ArrayInfo { name: "a.biases", dtype: scales.0, shape: scales.1 }));
        let config = QuantizationConfig::from_config(format!("{{\"quantization\":{says}}}").as_bytes());
        match (find(&arrays, &config), expect) {
            (Ok(found), Ok((encoding, shape))) => {
                let [weight] = found.as_slice() else { panic!("{found:?}") };
                assert_eq!((weight.encoding.quant_type().as_deref(), weight.shape.as_slice()), (Some(encoding), shape));
                assert_eq!(weight.parts.len(), 2 + usize::from(biased));
            }
            (Err(found), Err(expect)) => assert!(found.contains(expect), "`{found}` should say `{expect}`"),
            (found, expect) => panic!("{found:?} instead of {expect:?}"),
        }
    }

    fn bf16(shape: &[u64]) -> (Dtype, &[u64]) {
        (Dtype::Bf16, shape)
    }

    #[test]
    fn by_config_and_shapes() {
        check(&[4, 8], bf16(&[4, 1]), true, r#"{"bits":4,"group_size":64}"#, Ok(("int4", &[4, 64])));
        check(&[4, 8], bf16(&[4, 1]), true, r#"{"bits":8,"group_size":32}"#, Ok(("int8", &[4, 32])));
        check(&[2, 4, 6], bf16(&[2, 4, 1]), true, r#"{"bits":3,"group_size":64}"#, Ok(("int3", &[2, 4, 64])));
        check(&[4, 8], (Dtype::U8, &[4, 4]), false, r#"{"mode":"nvfp4"}"#, Ok(("nvfp4", &[4, 64])));
        check(&[4, 8], (Dtype::U8, &[4, 4]), false, "{}", Ok(("nvfp4", &[4, 64])));
        check(&[4, 8], (Dtype::U8, &[4, 1]), false, "{}", Ok(("mxfp8", &[4, 32])));
        check(&[4, 3], bf16(&[4, 1]), true, "{}", Ok(("int3", &[4, 32])));
    }

    #[test]
    fn says_what_does_not_fit() {
        let int4 = r#"{"bits":4,"group_size":64}"#;
        check(&[4, 8], bf16(&[4, 2]), true, int4, Err("`a.scales` is BF16 [4, 2], expected BF16 [4, 1]"));
        check(&[4, 7], bf16(&[4, 1]), true, int4, Err("int4 in groups of 64: rows of 7 words"));
        check(&[4, 8], bf16(&[4, 1]), false, int4, Err("no `.biases`"));
        check(&[4, 8], (Dtype::U8, &[4, 1]), true, int4, Err("scales are U8"));
        check(&[4, 8], bf16(&[4, 4]), false, r#"{"mode":"nvfp4"}"#, Err("`a.scales` is BF16 [4, 4], expected U8"));
        check(&[4, 8], (Dtype::U8, &[4, 4]), true, r#"{"mode":"nvfp4"}"#, Err("`a.biases` is one array too many"));
        check(&[4, 8], bf16(&[4, 1]), true, "{}", Err("may be int2 in groups of 128 or int4 in groups of 64"));
        check(&[4, 8], bf16(&[4, 5]), true, "{}", Err("no known encoding has words [4, 8] with scales BF16 [4, 5]"));
        check(&[4, 8], bf16(&[4, 1]), true, r#"{"bits":4,"a":false}"#, Err("states that the module is not quantized"));
        check(&[], bf16(&[]), true, int4, Err("a.weight"));
        check(&[u64::MAX], bf16(&[1]), true, int4, Err("a.weight"));
    }
}
