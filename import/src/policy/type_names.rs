//! Names of encodings of single tensors, as policies and users write them.

use formats::encoding::Micro;
use formats::{Dtype, Encoder, Encoding, GgmlType};

/// Names that Ollama accepts too.
const ALIASES: [(&str, &str); 6] =
    [("q4", "int4"), ("fp4", "int4"), ("q8", "int8"), ("fp8", "int8"), ("fp16", "f16"), ("fp32", "f32")];

const MICRO: [Micro; 3] = [Micro::Nvfp4, Micro::Mxfp4, Micro::Mxfp8];

const PLAIN: [Dtype; 3] = [Dtype::F16, Dtype::Bf16, Dtype::F32];

pub(super) const BITS: [u8; 6] = [2, 3, 4, 5, 6, 8];

/// Returns the encoding of a single tensor by name, regardless of case; `None` for mixes and
/// unknown names.
pub(super) fn encoding(name: &str) -> Option<Encoding> {
    let lower = name.trim().to_ascii_lowercase();
    let (kind, group) = lower.split_once(':').map_or((lower.as_str(), None), |(kind, group)| (kind, Some(group)));
    let kind = ALIASES.iter().find(|(alias, _)| *alias == kind).map_or(kind, |(_, name)| *name);
    if kind.starts_with("int") {
        let group = match group {
            Some(group) => group.parse().ok()?,
            None => default_group(kind),
        };
        return Encoding::parse(kind, group);
    }
    // Other types have a fixed group size.
    if group.is_some() {
        return None;
    }
    all().into_iter().find(|encoding| type_name(*encoding) == kind)
}

/// Returns the name from which [`encoding`] returns this encoding.
pub(super) fn type_name(encoding: Encoding) -> String {
    match encoding {
        Encoding::Plain(dtype) => dtype.name().to_ascii_lowercase(),
        Encoding::Affine { bits, group } => {
            let kind = format!("int{bits}");
            if u64::from(group) == default_group(&kind) { kind } else { format!("{kind}:{group}") }
        }
        other => other.quant_type().unwrap_or_default(),
    }
}

/// Returns the default group size: 32 for `int4`, as in Ollama, else 64, as in MLX.
fn default_group(kind: &str) -> u64 {
    if kind == "int4" { 32 } else { 64 }
}

pub(super) fn all() -> Vec<Encoding> {
    let micro = MICRO.into_iter().map(Encoding::Micro);
    let ggml = GgmlType::ALL.iter().copied().filter(|kind| kind.encoder() == Encoder::Offered).map(Encoding::Blocks);
    micro.chain(ggml).chain(PLAIN.into_iter().map(Encoding::Plain)).collect()
}
