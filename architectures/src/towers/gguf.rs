//! Towers of GGUF files: of a projector file (`mmproj`), whose architecture is `clip`, or of a
//! model's own file.
//!
//! All towers have the same names of layers. The kind of projector says how the tower computes; the
//! file has no settings of the picture processor besides sizes, means and deviations, so that the
//! filter and bounds are those of the published models.
//!
//! Source: `tools/mtmd/clip.cpp` and `conversion/` of llama.cpp.

use std::cell::RefCell;

use formats::Gguf;

use super::FoundTower;
use super::embedded::EmbeddedTower;
use super::gguf_vision::{FileKind, Vision, is_of_tower};
use super::projectors::{KINDS, ReadProjector};
use crate::blueprint::Activation;
use crate::gguf_keys::{Keys, fail};
use crate::{Error, TensorNames};

/// Prefix of the keys of a tower in a projector file.
const KEYS: &str = "clip.vision";

/// Architectures of models with vision, which cannot see without a projector.
const SEEING: [&str; 8] = ["gemma3", "gemma4", "mistral3", "qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"];

/// Returns the tower in the file `header`; `None` if it has none. `decoder` is the width of the
/// model's rows.
pub(super) fn read(
    model: &Gguf<'_>,
    header: Option<&Gguf<'_>>,
    names: &TensorNames,
    decoder: u64,
) -> Result<Option<FoundTower>, Error> {
    let architecture = model.text("general.architecture").unwrap_or_default();
    match header {
        Some(header) => of_header(model, header, names, (decoder, FileKind::Projector)),
        None if names.iter().any(is_of_tower) => {
            let embedded = EmbeddedTower::of(model)?;
            let names = embedded.names(names);
            let found = of_header(model, &embedded.header(), &names, (decoder, FileKind::Model));
            let found = found.map_err(|error| embedded.with_own_keys(&error))?;
            let own = |found: FoundTower| Ok(FoundTower { tower: embedded.with_own_names(&found.tower)?, ..found });
            found.map(own).transpose()
        }
        None if SEEING.contains(&architecture) => Err(fail(
            "its GGUF file has no tower for pictures; if the model has a projector file (mmproj), import both together",
        )),
        None => Ok(None),
    }
}

/// Reads a tower from the header of a projector file, or one that such a file would have.
fn of_header(
    model: &Gguf<'_>,
    header: &Gguf<'_>,
    names: &TensorNames,
    (decoder, file): (u64, FileKind),
) -> Result<Option<FoundTower>, Error> {
    let architecture = model.text("general.architecture").unwrap_or_default();
    let kind = header.text("clip.projector_type").or(header.text("clip.vision.projector_type"));
    // The first files of LLaVA do not name it.
    let is_llava = header.flag("clip.has_llava_projector").unwrap_or(false);
    let kind = kind.or(is_llava.then_some("mlp"));
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
    found(keys, model, (names, decoder, file), *read).map(Some)
}

fn found(
    keys: Keys<'_>,
    model: &Gguf<'_>,
    (names, decoder, file): (&TensorNames, u64, FileKind),
    read: ReadProjector,
) -> Result<FoundTower, Error> {
    // The kind of projector was read.
    keys.name("projector_type");
    // Files of LLaVA and LFM2-VL have another number there.
    keys.name("projection_dim");
    if let Some(channels) = keys.unsigned("num_channels")?.filter(|channels| *channels != 3) {
        return Err(fail(format!("the tower takes {channels} channels, expected 3")));
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
        file,
        hidden: keys.required("embedding_length")?,
        heads: keys.required("attention.head_count")?,
        epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-6),
        patch: keys.required("patch_size")?,
        side: keys.required("image_size")?,
        activation,
    };
    let found = read(&vision)?;
    let last = found.tower.projector.layers.last().map(|layer| vision.width_of(&layer.projection));
    if let Some(width) = last.filter(|width| *width != 0 && *width != decoder) {
        return Err(fail(format!(
            "its projector makes rows of {width} elements, the model takes {decoder}: it belongs to another model"
        )));
    }
    match keys.unread().as_slice() {
        [] => Ok(found),
        [key, ..] => Err(fail(format!("`{key}` is not known, and may change what the tower sees"))),
    }
}

#[cfg(test)]
mod tests {
    use formats::gguf::{OwnedValue, write_header};

    use super::*;
    use crate::{Architecture, Blueprint, Document, Pictures, describe};

    /// Files of tiny models, with the architecture of the model.
    const FILES: [(&str, &[u8]); 12] = [
        ("gemma3", include_bytes!("../../../tests/pictures/projectors/gemma3.gguf")),
        ("gemma4", include_bytes!("../../../tests/pictures/projectors/gemma4-dense.gguf")),
        ("gemma4", include_bytes!("../../../tests/pictures/projectors/gemma4-e-bounded.gguf")),
        ("qwen2", include_bytes!("../../../tests/pictures/projectors/internvl.gguf")),
        ("qwen2", include_bytes!("../../../tests/pictures/projectors/internvl-normed.gguf")),
        ("lfm2", include_bytes!("../../../tests/pictures/projectors/lfm2_vl.gguf")),
        ("llama", include_bytes!("../../../tests/pictures/projectors/llava.gguf")),
        ("llama", include_bytes!("../../../tests/pictures/projectors/llava_next.gguf")),
        ("llama", include_bytes!("../../../tests/pictures/projectors/smolvlm.gguf")),
        ("mistral3", include_bytes!("../../../tests/pictures/projectors/ministral3.gguf")),
        ("qwen2vl", include_bytes!("../../../tests/pictures/projectors/qwen2_5_vl.gguf")),
        ("qwen3vl", include_bytes!("../../../tests/pictures/projectors/qwen3_vl.gguf")),
    ];

    /// Files of tiny models that have the tower themselves.
    const OWN_FILES: [&[u8]; 5] = [
        include_bytes!("../../../tests/pictures/embedded/gemma3.gguf"),
        include_bytes!("../../../tests/pictures/embedded/gemma4-e-bounded.gguf"),
        include_bytes!("../../../tests/pictures/embedded/ministral3-silu.gguf"),
        include_bytes!("../../../tests/pictures/embedded/qwen2_5_vl.gguf"),
        include_bytes!("../../../tests/pictures/embedded/qwen3_vl.gguf"),
    ];

    fn decoder() -> Architecture {
        let config = br#"{"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_hidden_layers":4,
            "num_attention_heads":4,"vocab_size":320,"max_position_embeddings":256}"#;
        describe(Document::Config(config), &TensorNames::default()).expect("a config")
    }

    fn names(file: &Gguf<'_>) -> TensorNames {
        file.tensors.iter().map(|tensor| tensor.name.to_owned()).collect()
    }

    /// Reads a projector with a small model of that architecture.
    fn read(architecture: &str, projector: &Gguf<'_>) -> Architecture {
        let keys = [("general.architecture".to_owned(), OwnedValue::from(architecture))];
        let header = write_header(&keys, &[]).expect("a header");
        let model = Gguf::parse_header(&header.bytes).expect("it is read");
        decoder().with_projector(&model, Some(projector), &names(projector))
    }

    #[test]
    fn projectors_belong_to_models_of_their_kind() {
        for (architecture, file) in FILES {
            let projector = Gguf::parse_header(file).expect("a header");
            let found = read(architecture, &projector).blueprint.pictures;
            assert!(matches!(found, Some(Pictures::Supported(_))), "{architecture}: {found:?}");
            let other = read("llama", &projector).blueprint.pictures;
            // Several architectures have such projectors.
            let is_of_any = ["llama", "mistral3", "qwen2"].contains(&architecture);
            assert_eq!(matches!(other, Some(Pictures::Supported(_))), is_of_any, "{other:?}");
        }
    }

    /// Reads copies of a file with damaged headers; each gives a tower that can be written and
    /// read, or is refused.
    fn read_damaged(file: &[u8], read: impl Fn(&Gguf<'_>) -> Architecture) -> usize {
        let end = Gguf::parse_header(file).expect("a header").data_start as usize;
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut read_count = 0;
        for _ in 0..400 {
            let mut bytes = file.to_vec();
            for _ in 0..=random(3) {
                bytes[24 + random(end - 24)] = [0, 1, 0x7f, 0xff, random(256) as u8][random(5)];
            }
            let Ok(damaged) = Gguf::parse_header(&bytes) else { continue };
            let blueprint = read(&damaged).blueprint;
            let text = serde_json::to_string(&blueprint).expect("it is written");
            assert_eq!(serde_json::from_str::<Blueprint>(&text).expect("it was checked"), blueprint);
            read_count += 1;
        }
        read_count
    }

    #[test]
    fn damaged_headers_give_towers_that_are_checked() {
        for (architecture, file) in FILES {
            let count = read_damaged(file, |projector| read(architecture, projector));
            assert!(count > 50, "{architecture}: {count} headers were read");
        }
        for file in OWN_FILES {
            let own = |model: &Gguf<'_>| decoder().with_projector(model, None, &names(model));
            let found = own(&Gguf::parse_header(file).expect("a header")).blueprint.pictures;
            assert!(matches!(found, Some(Pictures::Supported(_))), "{found:?}");
            let count = read_damaged(file, own);
            assert!(count > 50, "{count} headers were read");
        }
    }
}
