//! Quantizations that are stored without loss but that the runner does not support. They are
//! recognized by tensors that do not belong to a weight:
//!
//! | tensor | made by |
//! |---|---|
//! | `X.weight_packed` | compressed-tensors, in a form that [`crate::repack`] does not read |
//! | `X.qweight` | GPTQ or AWQ, without the arrays that belong to it |
//! | `X.weight.absmax`, `X.SCB` | bitsandbytes in 4 bits, or in 8 bits of another form |
//! | `X.weight_scale_2` | `ModelOpt`, in another form than nvfp4 |
//! | `X_scale_inv`, `X.weight_scale`, `X.scale` | FP8 or int8 whose block size is unknown |
//! | `X_blocks` | gpt-oss, in another form than mxfp4 |
//! | `X.W_q` | HQQ |
//! | `X.trellis` | EXL3 |
//! | `X.weight._data` | quanto |
//! | `X.weight:qdata`, `X._weight_qdata` | torchao |
//!
//! A tensor counts only if the decoder reads its weight; weights that the decoder does not read may
//! have any form.

use std::collections::HashSet;

use formats::{Dtype, Encoding};

use crate::StoredTensor;

/// Tensor that identifies a quantization method.
struct Mark {
    /// Ending of the tensor's name.
    ending: &'static str,
    /// Name of the method.
    method: &'static str,
    /// Ending of another tensor that must be present too.
    companion: Option<&'static str>,
    /// Ending of the weight for which it is stored.
    weight: &'static str,
}

const fn mark(
    ending: &'static str,
    method: &'static str,
    companion: Option<&'static str>,
    weight: &'static str,
) -> Mark {
    Mark { ending, method, companion, weight }
}

const MARKS: [Mark; 14] = [
    mark(".weight_packed", "compressed-tensors", Some(".weight_scale"), ".weight"),
    mark(".qweight", GPTQ_OR_AWQ, Some(".scales"), ".weight"),
    mark(".weight.absmax", "bitsandbytes", Some(".weight"), ".weight"),
    mark(".SCB", "bitsandbytes", Some(".weight"), ".weight"),
    mark(".weight_scale_2", "ModelOpt", Some(".weight"), ".weight"),
    mark("_scale_inv", "FP8 with blocks of a size that config.json does not tell", Some(""), ""),
    mark(".weight_scale", "FP8 or int8 with scales of an unknown form", Some(".weight"), ".weight"),
    mark(".scale", "FP8 or FP4 with scales of an unknown form", Some(".weight"), ".weight"),
    mark("_blocks", "a block format of an unknown form", Some("_scales"), ""),
    mark(".W_q", "HQQ", None, ".weight"),
    mark(".trellis", "EXL3", None, ".weight"),
    mark(".weight._data", "quanto", None, ".weight"),
    mark(".weight:qdata", "torchao", None, ".weight"),
    mark("._weight_qdata", "torchao", None, ".weight"),
];
/// Name of the method for tensors that both GPTQ and AWQ write; the config states which one it was.
const GPTQ_OR_AWQ: &str = "GPTQ or AWQ";

/// Returns the reason why the runner cannot load the model, or `None`. The text names the method, a
/// tensor, and a remedy. `reads` returns whether the decoder reads a tensor; `method` is the name
/// of the quantization in the config.
pub fn obstacle(tensors: &[StoredTensor], reads: &dyn Fn(&str) -> bool, method: Option<&str>) -> Option<String> {
    let names: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let plain = tensors.iter().filter(|tensor| tensor.parts.len() == 1);
    let found = plain.map(|tensor| tensor.name.as_str()).find_map(|name| {
        let is_left = |mark: &&Mark| {
            let Some(base) = name.strip_suffix(mark.ending) else { return false };
            let has = |ending: &str| names.contains(format!("{base}{ending}").as_str());
            !reads(name) && mark.companion.is_none_or(has) && reads(&format!("{base}{}", mark.weight))
        };
        MARKS.iter().find(is_left).map(|mark| (name, mark.method))
    });
    if let Some((name, made_by)) = found {
        let made_by = method.filter(|_| made_by == GPTQ_OR_AWQ).map_or_else(|| made_by.to_owned(), str::to_uppercase);
        return Some(format!(
            "its weights are quantized by {made_by} (`{name}`), which is stored but cannot be computed with; \
             import the model that it was made from, or one in GGUF, MLX or block FP8"
        ));
    }
    let whole = tensors.iter().find(|tensor| is_codes(tensor) && reads(&tensor.name))?;
    let said = method.map(|method| format!(" (config.json says `{method}`)")).unwrap_or_default();
    Some(format!(
        "`{}` has whole numbers{said}, which are no weights by themselves; import the model that it was made from, or one in \
         GGUF, MLX or block FP8",
        whole.name
    ))
}

/// True if the elements of a tensor are integers: codes of an unsupported quantization method.
fn is_codes(tensor: &StoredTensor) -> bool {
    let Encoding::Plain(dtype) = tensor.encoding else { return false };
    matches!(dtype, Dtype::I8 | Dtype::U8 | Dtype::I16 | Dtype::U16 | Dtype::I32 | Dtype::U32 | Dtype::I64 | Dtype::U64)
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
            (&["a.weight", "a.scale"], Some("FP8 or FP4")),
            (&["a.weight_scale", "a.qweight"], None),
            (&["a.weight", "a.W_q", "a.meta"], Some("HQQ (`a.W_q`)")),
            (&["tower.weight", "tower.SCB"], None),
        ] {
            let tensor = |name: &&str| StoredTensor {
                name: (*name).to_owned(),
                stored_name: (*name).to_owned(),
                encoding: Encoding::Plain(Dtype::F32),
                shape: vec![1],
                parts: vec![StoredPart {
                    role: Role::Weight,
                    name: (*name).to_owned(),
                    blob: Digest::of(b""),
                    offset: 0,
                    size: 1,
                    dtype: Dtype::F32,
                    shape: vec![1],
                }],
            };
            let reads = |name: &str| ["a.weight", "b.weight"].contains(&name);
            let found = obstacle(&names.iter().map(tensor).collect::<Vec<_>>(), &reads, None);
            match (found, expect) {
                (Some(found), Some(expect)) => assert!(found.contains(expect), "`{found}` should say `{expect}`"),
                (found, expect) => assert_eq!(found.as_deref(), expect, "{names:?}"),
            }
        }
    }
}
