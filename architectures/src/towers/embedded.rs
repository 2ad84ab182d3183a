//! Towers in a model's own GGUF file, as converters of Ollama wrote them: their keys and tensors
//! are read like those of a projector file.
//!
//! Source: `convert/` and `llama/compat/` of Ollama.

use std::collections::HashMap;

use formats::Gguf;
use formats::gguf::{Array, OwnedValue, TensorInfo};

use super::gguf_vision::{POSITIONS, is_of_tower};
use crate::blueprint::Tower;
use crate::gguf_keys::{SOURCE, fail};
use crate::picture_settings::{CLIP_DEVIATION, CLIP_MEAN, HALF};
use crate::{Error, TensorNames};

/// The tower of a model's own file.
pub(super) struct EmbeddedTower<'a> {
    model: &'a Gguf<'a>,
    /// Keys of a projector file.
    keys: Vec<(String, OwnedValue)>,
    /// Tensors of the tower, each with its name in a projector file.
    tensors: Vec<(String, &'a TensorInfo<'a>)>,
}

/// Differences from projector files, for models of some architectures.
struct FileForm {
    architectures: &'static [&'static str],
    /// Kind of projector.
    kind: &'static str,
    /// Parts of names, each with what a projector file has instead.
    names: &'static [(&'static str, &'static str)],
    activation: Option<&'static str>,
    epsilon: f32,
    mean: [f64; 3],
    deviation: [f64; 3],
    /// Whether the positions are a square, from which the size of pictures follows.
    has_square: bool,
    /// Pixels of each side of the picture that the tower was made for, if the file does not have
    /// it.
    side: u32,
}

const FORMS: [FileForm; 5] = [
    FileForm {
        architectures: &["gemma3"],
        kind: "gemma3",
        names: &[
            ("v.patch_embedding.", "v.patch_embd."),
            ("v.position_embedding.", "v.position_embd."),
            ("v.post_layernorm.", "v.post_ln."),
            (".layer_norm1.", ".ln1."),
            (".layer_norm2.", ".ln2."),
            (".attn_output.", ".attn_out."),
            (".mlp.fc1.", ".ffn_up."),
            (".mlp.fc2.", ".ffn_down."),
            ("mm.mm_", "mm."),
        ],
        activation: Some("clip.use_gelu"),
        epsilon: 1e-6,
        mean: HALF,
        deviation: HALF,
        has_square: true,
        side: 896,
    },
    FileForm {
        architectures: &["gemma4"],
        kind: "gemma4v",
        names: &[
            (".attn_norm.", ".ln1."),
            (".ffn_norm.", ".ln2."),
            (".attn_output.", ".attn_out."),
            (".post_attention_norm.", ".attn_post_norm."),
            (".post_ffw_norm.", ".ffn_post_norm."),
        ],
        activation: None,
        epsilon: 1e-6,
        mean: [0.0; 3],
        deviation: [1.0; 3],
        has_square: false,
        side: 224,
    },
    FileForm {
        architectures: &["mistral3"],
        kind: "pixtral",
        names: &[
            ("v.patch_conv.", "v.patch_embd."),
            ("v.encoder_norm.", "v.pre_ln."),
            (".attn_output.", ".attn_out."),
            (".attn_norm.", ".ln1."),
            (".ffn_norm.", ".ln2."),
            ("mm.linear_1.", "mm.1."),
            ("mm.linear_2.", "mm.2."),
            ("mm.patch_merger.merging_layer.", "mm.patch_merger."),
            ("mm.norm.", "mm.input_norm."),
        ],
        activation: Some("clip.use_silu"),
        epsilon: 1e-5,
        mean: CLIP_MEAN,
        deviation: CLIP_DEVIATION,
        has_square: false,
        side: 1540,
    },
    FileForm {
        architectures: &["qwen25vl"],
        kind: "qwen2.5vl_merger",
        names: &[
            ("v.merger.ln_q.", "v.post_ln."),
            ("v.merger.mlp.", "mm."),
            ("v.patch_embd_0.weight", "v.patch_embd.weight"),
            ("v.patch_embd_1.weight", "v.patch_embd.weight.1"),
        ],
        activation: Some("clip.use_silu"),
        epsilon: 1e-6,
        mean: CLIP_MEAN,
        deviation: CLIP_DEVIATION,
        has_square: false,
        side: 560,
    },
    FileForm {
        architectures: &["qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"],
        kind: "qwen3vl_merger",
        names: &[
            ("v.pos_embed.", "v.position_embd."),
            ("v.patch_embed.", "v.patch_embd."),
            ("v.deepstack_merger.", "v.deepstack."),
            ("v.merger.norm.", "v.post_ln."),
            ("v.merger.linear_fc1.", "mm.0."),
            ("v.merger.linear_fc2.", "mm.2."),
            (".mlp.linear_fc1.", ".ffn_up."),
            (".mlp.linear_fc2.", ".ffn_down."),
            (".linear_fc1.", ".fc1."),
            (".linear_fc2.", ".fc2."),
            (".norm1.", ".ln1."),
            (".norm2.", ".ln2."),
        ],
        activation: Some("clip.use_gelu"),
        epsilon: 1e-6,
        mean: HALF,
        deviation: HALF,
        has_square: true,
        side: 768,
    },
];

/// Keys of the tower with another name in projector files.
const KEYS: [(&str, &str); 2] = [("shortest_edge", "image_min_pixels"), ("longest_edge", "image_max_pixels")];

/// Keys that projector files do not have: the names of deep projectors follow from the first one,
/// and nothing depends on the second one.
const USED: [&str; 2] = ["deepstack_visual_indexes", "spatial_patch_size"];

/// Largest number of deep projectors; more than any tower has.
const MOST_DEEP: usize = 1 << 10;

impl<'a> EmbeddedTower<'a> {
    /// Returns the tower of a model's own file.
    ///
    /// # Errors
    /// The file is of an architecture whose towers are not known.
    pub(super) fn of(model: &'a Gguf<'a>) -> Result<Self, Error> {
        let architecture = model.text("general.architecture").unwrap_or_default();
        let form = FORMS.iter().find(|form| form.architectures.contains(&architecture)).ok_or_else(|| {
            let known: Vec<&str> = FORMS.iter().flat_map(|form| form.architectures).copied().collect();
            let known = known.join(", ");
            fail(format!("the file of this `{architecture}` contains its tower, which can be run for {known} only"))
        })?;
        let deep = model.array(&format!("{architecture}.vision.deepstack_visual_indexes"));
        let deep: Vec<u64> =
            deep.iter().flat_map(Array::iter).map_while(|item| item.as_u64()).take(MOST_DEEP).collect();
        let tensors = model.tensors.iter().filter(|tensor| is_of_tower(tensor.name));
        let tensors: Vec<_> = tensors.map(|tensor| (form.name(tensor.name, &deep), tensor)).collect();
        Ok(Self { keys: form.keys(model, architecture, &tensors), tensors, model })
    }

    /// Returns the header that a projector file of the tower would have.
    pub(super) fn header(&self) -> Gguf<'_> {
        Gguf {
            metadata: self.keys.iter().map(|(key, value)| (key.as_str(), value.value())).collect(),
            tensors: self.tensors.iter().map(|(name, own)| TensorInfo { name, ..(*own).clone() }).collect(),
            ..self.model.clone()
        }
    }

    /// Returns the names of the model's tensors, those of the tower as in a projector file.
    pub(super) fn names(&self, names: &TensorNames) -> TensorNames {
        let others = names.iter().filter(|name| !is_of_tower(name)).map(str::to_owned);
        others.chain(self.tensors.iter().map(|(name, _)| name.clone())).collect()
    }

    /// Returns an error about keys or tensors of a projector file with their names in the model's
    /// file.
    pub(super) fn with_own_keys(&self, error: &Error) -> Error {
        let architecture = self.model.text("general.architecture").unwrap_or_default();
        let reason = error.to_string().replace("`clip.vision.", &format!("`{architecture}.vision."));
        let reason = self
            .tensors
            .iter()
            .fold(reason, |reason, (name, own)| reason.replace(&format!("`{name}`"), &format!("`{}`", own.name)));
        fail(reason.trim_start_matches(SOURCE).trim_start_matches(": "))
    }

    /// Gives the tensors of a tower that was read with these [names](Self::names) their names in
    /// the model's file.
    pub(super) fn with_own_names(&self, tower: &Tower) -> Result<Tower, Error> {
        let own = self.tensors.iter().map(|(name, own)| (name.as_str(), own.name)).collect();
        let wrong = |error: serde_json::Error| fail(format!("invariant: a tower is written and read: {error}"));
        let mut written = serde_json::to_value(tower).map_err(wrong)?;
        rename(&mut written, &own);
        serde_json::from_value(written).map_err(wrong)
    }
}

/// Replaces names of tensors in a written tower.
fn rename(value: &mut serde_json::Value, names: &HashMap<&str, &str>) {
    match value {
        serde_json::Value::String(text) => {
            if let Some(own) = names.get(text.as_str()) {
                (*own).clone_into(text);
            }
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(|item| rename(item, names)),
        serde_json::Value::Object(map) => map.values_mut().for_each(|item| rename(item, names)),
        _ => {}
    }
}

impl FileForm {
    /// Returns the name of a tensor in a projector file. `deep` are the layers behind which there
    /// are projectors: the model's file counts the projectors.
    fn name(&self, name: &str, deep: &[u64]) -> String {
        let name = self.names.iter().fold(name.to_owned(), |name, (own, other)| name.replace(own, other));
        let of_deep = || {
            let (index, rest) = name.strip_prefix("v.deepstack.")?.split_once('.')?;
            let layer = deep.get(index.parse::<usize>().ok()?)?;
            Some(format!("v.deepstack.{layer}.{rest}"))
        };
        of_deep().unwrap_or(name)
    }

    /// Returns the keys that a projector file has.
    fn keys(
        &self,
        model: &Gguf<'_>,
        architecture: &str,
        tensors: &[(String, &TensorInfo<'_>)],
    ) -> Vec<(String, OwnedValue)> {
        let mut keys = vec![("clip.projector_type".to_owned(), OwnedValue::from(self.kind))];
        keys.extend(self.activation.map(|key| (key.to_owned(), OwnedValue::from(true))));
        let prefix = format!("{architecture}.vision.");
        for (key, value) in &model.metadata {
            let Some(key) = key.strip_prefix(&prefix) else { continue };
            // Ollama's converter writes 0 for what a config does not have.
            if USED.contains(&key) || value.as_f64() == Some(0.0) || value.as_u64() == Some(0) {
                continue;
            }
            let key = KEYS.iter().find(|(own, _)| *own == key).map_or(key, |(_, other)| other);
            keys.push((format!("clip.vision.{key}"), OwnedValue::from(value)));
        }
        let mut add = |key: &str, value: OwnedValue| {
            let key = format!("clip.vision.{key}");
            if !keys.iter().any(|(own, _)| *own == key) {
                keys.push((key, value));
            }
        };
        let of_model = |key: &str| model.unsigned(&format!("{architecture}.{key}"));
        let number = |number: u64| OwnedValue::from(u32::try_from(number).unwrap_or(u32::MAX));
        if let Some(block) = of_model("spatial_merge_size") {
            add("spatial_merge_size", number(block));
        }
        let patch = model.unsigned(&format!("{prefix}patch_size")).unwrap_or(0);
        let positions = tensors.iter().find(|(name, _)| name == POSITIONS).and_then(|(_, own)| own.dims.get(1));
        let side = match positions {
            Some(count) if self.has_square => patch.saturating_mul(count.isqrt()),
            _ => u64::from(self.side),
        };
        add("image_size", number(side));
        if let Some(tokens) = of_model("mm.tokens_per_image") {
            let block = side.checked_div(patch).and_then(|patches| patches.checked_div(tokens.isqrt()));
            add("projector.scale_factor", number(block.unwrap_or(0)));
        }
        add("attention.layer_norm_epsilon", OwnedValue::from(self.epsilon));
        add("image_mean", OwnedValue::floats(self.mean.map(|mean| mean as f32)));
        add("image_std", OwnedValue::floats(self.deviation.map(|deviation| deviation as f32)));
        keys
    }
}
