//! Towers of GGUF files: of a projector file (`mmproj`), whose architecture is `clip`.
//!
//! All towers have the same names of layers. The kind of projector says how the tower computes; the
//! file has no settings of the picture processor besides sizes, means and deviations, so that the
//! filter and bounds are those of the published models.
//!
//! Source: `tools/mtmd/clip.cpp` and `conversion/` of llama.cpp.

use std::cell::RefCell;

use formats::Gguf;

use super::FoundTower;
use super::gguf_vision::Vision;
use super::projectors::{KINDS, ReadProjector};
use crate::blueprint::Activation;
use crate::gguf_keys::{Keys, fail};
use crate::{Error, TensorNames};

/// Prefix of the keys of a tower in a projector file.
const KEYS: &str = "clip.vision";

/// Architectures of models with vision, which cannot see without a projector.
const SEEING: [&str; 8] = ["gemma3", "gemma4", "mistral3", "qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"];

/// True if the tensor belongs to a tower for pictures. Sounds have a tower of their own, and the
/// embedding of a token is that of the model.
pub(super) fn is_of_tower(name: &str) -> bool {
    let is_other = name.starts_with("mm.a.") || name.starts_with("v.token_embd.");
    (name.starts_with("v.") || name.starts_with("mm.")) && !is_other
}

/// Returns the tower in the file `header`; `None` if it has none. `decoder` is the width of the
/// model's rows.
pub(super) fn read(
    model: &Gguf<'_>,
    header: Option<&Gguf<'_>>,
    names: &TensorNames,
    decoder: u64,
) -> Result<Option<FoundTower>, Error> {
    let architecture = model.text("general.architecture").unwrap_or_default();
    let Some(header) = header else {
        return if SEEING.contains(&architecture) {
            Err(fail(
                "its GGUF file has no tower for pictures; if the model has a projector file (mmproj), import both together",
            ))
        } else {
            Ok(None)
        };
    };
    let kind = header.text("clip.projector_type").or(header.text("clip.vision.projector_type"));
    let has_vision = header.flag("clip.has_vision_encoder").unwrap_or(kind.is_some());
    let Some(kind) = kind.filter(|_| has_vision) else { return Ok(None) };
    let Some((_, models, read)) = KINDS.iter().find(|(own, ..)| *own == kind) else {
        let known: Vec<&str> = KINDS.iter().map(|(own, ..)| *own).collect();
        let known = known.join(", ");
        return Err(fail(format!("its projector `{kind}` cannot be run yet, expected one of {known}")));
    };
    if !models.is_empty() && !models.contains(&architecture) {
        return Err(fail(format!(
            "its projector is `{kind}`, for models of the architecture {}, and the model is `{architecture}`",
            models.join(" or ")
        )));
    }
    let asked = RefCell::default();
    let keys = Keys { gguf: header, architecture: KEYS, asked: &asked };
    found(keys, model, (names, decoder), *read).map(Some)
}

fn found(
    keys: Keys<'_>,
    model: &Gguf<'_>,
    (names, decoder): (&TensorNames, u64),
    read: ReadProjector,
) -> Result<FoundTower, Error> {
    // The kind of projector was read.
    keys.name("projector_type");
    let width = keys.unsigned("projection_dim")?.filter(|width| *width > 0);
    if let Some(width) = width.filter(|width| *width != decoder) {
        return Err(fail(format!(
            "its projector makes rows of {width} elements, the model takes {decoder}: it belongs to another model"
        )));
    }
    let flag = |key: &str| keys.gguf.flag(key).unwrap_or(false);
    let activation = match (flag("clip.use_gelu"), flag("clip.use_silu")) {
        (false, false) => Activation::GeluQuick,
        (true, false) => Activation::GeluTanh,
        (false, true) => Activation::Silu,
        (true, true) => return Err(fail("`clip.use_gelu` and `clip.use_silu` are both true")),
    };
    let vision = Vision {
        keys,
        model,
        names,
        shapes: keys.gguf.tensors.iter().map(|tensor| (tensor.name, tensor.dims.as_slice())).collect(),
        decoder,
        hidden: keys.required("embedding_length")?,
        heads: keys.required("attention.head_count")?,
        epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-6),
        patch: keys.required("patch_size")?,
        side: keys.required("image_size")?,
        activation,
    };
    let found = read(&vision)?;
    match keys.unread().as_slice() {
        [] => Ok(found),
        [key, ..] => Err(fail(format!("`{key}` is not known, and may change what the tower sees"))),
    }
}
