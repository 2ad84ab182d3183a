//! Quantizations that are stored without loss but cannot be computed with: told by the tensors that they leave behind.
//!
//! | tensor that belongs to no weight | made by |
//! |---|---|
//! | `X.weight_packed` | compressed-tensors: `pack-quantized`, `nvfp4-pack-quantized` |
//! | `X.qweight` | GPTQ, AWQ |
//! | `X.weight.absmax`, `X.SCB` | bitsandbytes |
//! | `X.weight_scale_2` | `ModelOpt`, in another form than nvfp4 |
//! | `X_scale_inv`, `X.weight_scale` | FP8 or int8 whose blocks are not known |
//! | `X_blocks` | gpt-oss, in another form than mxfp4 |

use std::collections::HashSet;

use crate::StoredTensor;

/// What a name ends in, who makes such tensors, and which tensor there is too: the same name with another ending.
const MARKS: [(&str, &str, &str); 8] = [
    (".weight_packed", "compressed-tensors", ".weight_scale"),
    (".qweight", "GPTQ or AWQ", ".scales"),
    (".weight.absmax", "bitsandbytes", ".weight"),
    (".SCB", "bitsandbytes", ".weight"),
    (".weight_scale_2", "ModelOpt", ".weight"),
    ("_scale_inv", "FP8 with blocks of a size that config.json does not tell", ""),
    (".weight_scale", "FP8 or int8 with scales of an unknown form", ".weight"),
    ("_blocks", "a block format of an unknown form", "_scales"),
];

/// Why nobody can compute with the model, where that is so: a text that names the method, a tensor, and what to do.
pub fn obstacle(tensors: &[StoredTensor]) -> Option<String> {
    let names: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let plain = tensors.iter().filter(|tensor| tensor.parts.len() == 1);
    let found = plain.map(|tensor| tensor.name.as_str()).find_map(|name| {
        let mark = MARKS.iter().find(|(ending, _, other)| {
            let base = name.strip_suffix(ending);
            base.is_some_and(|base| names.contains(format!("{base}{other}").as_str()))
        });
        mark.map(|(_, method, _)| (name, *method))
    });
    found.map(|(name, method)| {
        format!(
            "its weights are quantized by {method} (`{name}`), which is stored but cannot be computed with; \
             import the model that it was made from, or one in GGUF, MLX or block FP8"
        )
    })
}

#[cfg(test)]
mod tests {
    use content::Digest;
    use formats::encoding::Role;
    use formats::{Dtype, Encoding};

    use super::*;
    use crate::StoredPart;

    #[test]
    fn tells_methods_by_names() {
        for (names, expect) in [
            (
                &["a.weight_packed", "a.weight_scale", "a.weight_shape"][..],
                Some("compressed-tensors (`a.weight_packed`)"),
            ),
            (&["b.weight", "a.qweight", "a.qzeros", "a.scales"], Some("GPTQ or AWQ (`a.qweight`)")),
            (&["a.weight", "a.weight_scale_inv"], Some("FP8 with blocks")),
            (&["a.weight", "a.weight.absmax"], Some("bitsandbytes")),
            (&["a.weight", "a.bias", "b.weight", "a.input_scale", "a.k_scale"], None),
            (&["a.weight_scale", "a.qweight"], None),
        ] {
            let tensor = |name: &&str| StoredTensor {
                name: (*name).to_owned(),
                stored_name: (*name).to_owned(),
                encoding: Encoding::Plain(Dtype::U8),
                shape: vec![1],
                parts: vec![StoredPart {
                    role: Role::Weight,
                    name: (*name).to_owned(),
                    blob: Digest::of(b""),
                    offset: 0,
                    size: 1,
                    dtype: Dtype::U8,
                    shape: vec![1],
                }],
            };
            let found = obstacle(&names.iter().map(tensor).collect::<Vec<_>>());
            match (found, expect) {
                (Some(found), Some(expect)) => assert!(found.contains(expect), "`{found}` should say `{expect}`"),
                (found, expect) => assert_eq!(found.as_deref(), expect, "{names:?}"),
            }
        }
    }
}
