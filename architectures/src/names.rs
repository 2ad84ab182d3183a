//! Tensor names: tables between the names in GGUF files and the canonical names, which are Hugging
//! Face's.
//!
//! For known architectures, names are mapped in both directions. Files of other architectures keep
//! their names, so that no name is mapped wrongly.

use crate::family::Family;
use crate::name_tables::Table;

/// Names outside of layers.
const MODEL: Table = &[
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output_norm.bias", "model.norm.bias"),
    ("output.weight", "lm_head.weight"),
    ("output.bias", "lm_head.bias"),
    ("position_embd.weight", "model.position_embeddings.weight"),
    ("rope_freqs.weight", "model.rope_freqs.weight"),
    ("rope_factors_short.weight", "model.rope_factors_short.weight"),
    ("rope_factors_long.weight", "model.rope_factors_long.weight"),
];

/// Names inside a layer, without `blk.N.` and `model.layers.N.`; without `.weight` or `.bias` if a
/// row applies to both.
const LAYER: Table = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_gate_up_exps", "mlp.experts.gate_up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    // Stacks of a layer that share a blob.
    ("ffn_exps", "mlp.experts"),
    ("ffn_shexp", "mlp.shared_expert"),
];

/// Returns the canonical name of a tensor of a folder. The text part of a model with vision has a
/// prefix: older folders put it before `model`, newer ones after it. Other tensors keep their
/// names.
///
/// # Examples
///
/// ```
/// use lode_architectures::names::of_folder;
///
/// assert_eq!(of_folder("model.layers.0.mlp.up_proj.weight"), "model.layers.0.mlp.up_proj.weight");
/// ```
pub fn of_folder(name: &str) -> String {
    const BEFORE: &str = "language_model.";
    const BEHIND: [&str; 2] = ["model.language_model.", "model.text_model."];
    // Phi 4 Multimodal has the name of the layer that its adapters for pictures and sound wrap.
    if let Some((module, kind)) = name.split_once(".base_layer.") {
        return of_folder(&format!("{module}.{kind}"));
    }
    if let Some(rest) = BEHIND.iter().find_map(|prefix| name.strip_prefix(prefix)) {
        return format!("model.{rest}");
    }
    match name.strip_prefix(BEFORE) {
        Some(rest) if rest.starts_with("model.") || rest.starts_with("lm_head.") => rest.to_owned(),
        // The text part of an embedding model.
        Some(rest)
            if ["layers.", "embed_tokens.", "norm.", "ple.", "embedding_projection."]
                .iter()
                .any(|own| rest.starts_with(own)) =>
        {
            format!("model.{rest}")
        }
        _ => name.to_owned(),
    }
}

/// True if a tensor of a folder belongs to a tower for pictures or sounds, or to its projector.
///
/// # Examples
///
/// ```
/// use lode_architectures::names::is_of_tower;
///
/// assert!(is_of_tower("model.visual.blocks.0.attn.qkv.weight"));
/// assert!(!is_of_tower("model.layers.0.mlp.up_proj.weight"));
/// ```
pub fn is_of_tower(name: &str) -> bool {
    const ROOTS: [&str; 9] = [
        "vision_tower",
        "vision_model",
        "visual",
        "audio_tower",
        "embed_audio",
        "embed_vision",
        "multi_modal_projector",
        "connector",
        "image_newline",
    ];
    name.split('.').take(3).any(|part| ROOTS.contains(&part))
}

/// Returns the tables of an architecture: outside of layers, and inside, in order of precedence.
fn own(architecture: &str) -> Option<(Table, [Table; 3])> {
    let form = Family::of_gguf(architecture)?.gguf;
    let alias = form.also.iter().find(|alias| alias.architecture == architecture);
    Some((form.model_names, [alias.map_or(&[], |alias| alias.names), form.names, LAYER]))
}

/// Returns the canonical name of a tensor of a GGUF file of this architecture; the unchanged name
/// if the tables do not have it.
pub fn canonical(architecture: &str, name: &str) -> String {
    let Some((model, layers)) = own(architecture) else { return name.to_owned() };
    let inside = || {
        let (layer, rest) = layer_of(name, "blk.")?;
        Some(format!("model.layers.{layer}.{}", translated(&layers, rest, from_gguf)?))
    };
    let outside = from_gguf(model, name).or_else(|| from_gguf(MODEL, name));
    outside.map(str::to_owned).or_else(inside).unwrap_or_else(|| name.to_owned())
}

/// Returns the name in a GGUF file of this architecture for a tensor with a canonical name; `None`
/// if there is none.
pub fn gguf(architecture: &str, name: &str) -> Option<String> {
    let (model, layers) = own(architecture)?;
    let inside = || {
        let (layer, rest) = layer_of(name, "model.layers.")?;
        Some(format!("blk.{layer}.{}", translated(&layers, rest, to_gguf)?))
    };
    to_gguf(model, name).or_else(|| to_gguf(MODEL, name)).map(str::to_owned).or_else(inside)
}

pub(crate) fn from_gguf(table: Table, key: &str) -> Option<&'static str> {
    table.iter().find(|(gguf, _)| *gguf == key).map(|(_, canonical)| *canonical)
}

pub(crate) fn to_gguf(table: Table, key: &str) -> Option<&'static str> {
    table.iter().find(|(_, canonical)| *canonical == key).map(|(gguf, _)| *gguf)
}

/// Translates a name inside a layer, by a row for the whole name, or else by a row for its module.
fn translated(tables: &[Table], rest: &str, look: fn(Table, &str) -> Option<&'static str>) -> Option<String> {
    let find = |key: &str| tables.iter().find_map(|table| look(table, key));
    find(rest).map(str::to_owned).or_else(|| {
        let (module, kind) = rest.rsplit_once('.').filter(|(_, kind)| matches!(*kind, "weight" | "bias"))?;
        Some(format!("{}.{kind}", find(module)?))
    })
}

/// Splits the name of a tensor inside a layer into the layer's index and the rest.
fn layer_of<'n>(name: &'n str, prefix: &str) -> Option<(&'n str, &'n str)> {
    let (layer, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    let plain = !layer.is_empty() && layer.bytes().all(|b| b.is_ascii_digit());
    plain.then_some((layer, rest))
}

/// Splits the name of a tensor inside a layer into the layer's index, the module and the kind
/// (weight or bias).
pub(crate) fn in_layer<'n>(name: &'n str, prefix: &str) -> Option<(&'n str, &'n str, &'n str)> {
    let (layer, rest) = layer_of(name, prefix)?;
    let (module, kind) = rest.rsplit_once('.')?;
    matches!(kind, "weight" | "bias").then_some((layer, module, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_by_architecture() {
        for (architecture, name, expect) in [
            ("llama", "token_embd.weight", "model.embed_tokens.weight"),
            ("llama", "blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"),
            ("qwen2", "blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"),
            ("llama", "blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
            ("gemma3", "blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight"),
            ("gemma3", "blk.0.post_attention_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
            ("gpt-oss", "blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight"),
            ("gptoss", "blk.0.attn_out.weight", "model.layers.0.self_attn.o_proj.weight"),
            ("gptoss", "blk.0.attn_sinks", "model.layers.0.self_attn.sinks"),
            ("olmo3", "blk.0.post_ffw_norm.weight", "model.layers.0.post_feedforward_layernorm.weight"),
            ("glm4moelite", "blk.0.attn_kv_a_mqa.weight", "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"),
            ("nemotron_h_omni", "blk.0.attn_q.weight", "model.layers.0.mixer.q_proj.weight"),
            ("qwen25vl", "blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"),
        ] {
            assert_eq!(canonical(architecture, name), expect);
            assert_eq!(gguf(architecture, expect).as_deref(), Some(name));
        }
    }

    #[test]
    fn the_text_part_of_a_folder_has_the_usual_names() {
        for (name, expect) in [
            ("language_model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
            ("language_model.lm_head.weight", "lm_head.weight"),
            ("model.language_model.embed_tokens.weight", "model.embed_tokens.weight"),
            ("model.text_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
            ("language_model.something", "language_model.something"),
            ("vision_tower.model.layers.0.weight", "vision_tower.model.layers.0.weight"),
            ("model.norm.weight", "model.norm.weight"),
        ] {
            assert_eq!(of_folder(name), expect);
        }
    }

    #[test]
    fn leaves_what_it_does_not_know() {
        for (architecture, name) in [
            ("llama", "blk.0.something.weight"),
            ("llama", "blk.x.attn_q.weight"),
            ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
            ("bailingmoe3", "token_embd.weight"),
        ] {
            assert_eq!(canonical(architecture, name), name);
            assert_eq!(gguf(architecture, name), None);
        }
        assert_eq!(gguf("bailingmoe3", "model.norm.weight"), None);
    }

    #[test]
    fn every_name_leads_back() {
        for family in Family::ALL.iter().filter(|family| family.gguf.read.is_some()) {
            let architecture = family.gguf.architecture;
            let bare = ["ssm_a", "ffn_exps", "ffn_shexp", "exp_probs_b"];
            let whole =
                |name: &str| bare.contains(&name) || matches!(name.rsplit_once('.'), Some((_, "weight" | "bias")));
            let kind = |name: &str| if whole(name) { "" } else { ".weight" };
            let is_usual = |row: &&(&str, &str)| !family.gguf.names.iter().any(|(_, canonical)| *canonical == row.1);
            let usual = LAYER.iter().filter(is_usual);
            let layer = family.gguf.names.iter().chain(usual).map(|(gguf, _)| format!("blk.3.{gguf}{}", kind(gguf)));
            let outside = MODEL.iter().chain(family.gguf.model_names).map(|(gguf, _)| (*gguf).to_owned());
            for name in outside.chain(layer) {
                let canonical = canonical(architecture, &name);
                assert_ne!(canonical, name);
                assert_eq!(gguf(architecture, &canonical), Some(name));
            }
        }
    }
}
