//! Losses by rounding, where numbers are converted to floats of another type.

use std::collections::BTreeMap;

use formats::encoding::{Micro, Role};
use formats::{Dtype, Encoding};

use import::StoredTensor;

/// Number of tensors that are rounded, by source encoding and target type.
#[derive(Debug, Default)]
pub(super) struct Rounding(BTreeMap<(String, &'static str), u64>);

impl Rounding {
    pub(super) fn note(&mut self, tensor: &StoredTensor, to: Dtype) {
        if !is_exact(tensor, to) {
            *self.0.entry((tensor.encoding.to_string(), to.name())).or_default() += 1;
        }
    }

    /// Returns one sentence for each pair of types.
    pub(super) fn losses(&self) -> Vec<String> {
        let text = |((from, to), count): (&(String, &str), &u64)| match count {
            1 => format!("1 tensor is rounded from {from} to {to}"),
            _ => format!("{count} tensors are rounded from {from} to {to}"),
        };
        self.0.iter().map(text).collect()
    }
}

/// True if type `to` represents every number of such a tensor exactly. Compares the significant
/// bits (8 in BF16, 11 in F16, 24 in F32) and the range, which is smallest in F16.
fn is_exact(tensor: &StoredTensor, to: Dtype) -> bool {
    let scaled = tensor.parts.iter().any(|part| part.role == Role::GlobalScale);
    match (tensor.encoding, to) {
        (Encoding::Plain(from), _) => from == to || fits(from, to),
        // 2 significant bits of the element and 4 of the scale, from 2^-10 to 2688.
        (Encoding::Micro(Micro::Nvfp4), Dtype::Bf16 | Dtype::F16) => !scaled,
        // These encodings are defined by their values in float32. Elements with 2 and 4 significant
        // bits are exact in BF16, which has about the range of the power-of-two scales.
        (_, Dtype::F32) | (Encoding::Micro(Micro::Mxfp4 | Micro::Mxfp8), Dtype::Bf16) => true,
        _ => false,
    }
}

fn fits(from: Dtype, to: Dtype) -> bool {
    let small = matches!(from, Dtype::F8_E4M3 | Dtype::F8_E5M2);
    match to {
        Dtype::F32 => small || matches!(from, Dtype::F16 | Dtype::Bf16),
        Dtype::F16 | Dtype::Bf16 => small,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use formats::GgmlType;

    use super::*;

    #[test]
    fn tells_what_is_exact() {
        let tensor = |encoding| StoredTensor {
            name: "t".to_owned(),
            stored_name: "t".to_owned(),
            encoding,
            shape: vec![32],
            parts: Vec::new(),
        };
        let mut rounding = Rounding::default();
        for (encoding, to, exact) in [
            (Encoding::Plain(Dtype::Bf16), Dtype::F32, true),
            (Encoding::Plain(Dtype::Bf16), Dtype::F16, false),
            (Encoding::Plain(Dtype::F16), Dtype::Bf16, false),
            (Encoding::Plain(Dtype::F32), Dtype::F32, true),
            (Encoding::Plain(Dtype::F64), Dtype::F32, false),
            (Encoding::Blocks(GgmlType::Q4_1), Dtype::F32, true),
            (Encoding::Blocks(GgmlType::Q4_1), Dtype::Bf16, false),
            (Encoding::Micro(Micro::Nvfp4), Dtype::Bf16, true),
            (Encoding::Micro(Micro::Mxfp8), Dtype::Bf16, true),
            (Encoding::Micro(Micro::Mxfp8), Dtype::F16, false),
            (Encoding::Affine { bits: 4, group: 64 }, Dtype::Bf16, false),
        ] {
            assert_eq!(is_exact(&tensor(encoding), to), exact, "{encoding} to {to}");
            rounding.note(&tensor(encoding), to);
        }
        assert_eq!(rounding.losses().len(), 6, "{:?}", rounding.losses());
        assert!(rounding.losses().contains(&"1 tensor is rounded from Q4_1 to BF16".to_owned()));
    }
}
