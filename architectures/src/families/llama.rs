//! Llama 1 to 3, and models with the same structure.

use serde_json::Value as Json;

use crate::blueprint::{Activation, Blueprint, HeadLayout, RouterScores};
use crate::config_json::Config;
use crate::dense::{self, Dense};
use crate::experts;
use crate::family::{Family, GgufForm, HuggingFaceForm, Key};
use crate::gguf_keys::Keys;
use crate::{Error, RopeScaling, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "llama",
    model_types: &["llama", "internlm3"],
    read_config,
    gguf: &GGUF,
    hugging_face: HuggingFaceForm {
        class: "LlamaForCausalLM",
        model_type: "llama",
        is_written: true,
        activation_key: "hidden_act",
        norm_offset: 0.0,
        layout: HeadLayout::Half,
        fields: biases,
    },
};

/// GGUF form of the family: rows of q and k are permuted for interleaved pairs.
pub(super) const GGUF: GgufForm = GgufForm {
    architecture: "llama",
    also: &[],
    read: Some(read_gguf),
    names: name_tables::PRE_NORMS,
    model_names: &[],
    layout: HeadLayout::Interleaved,
    attention_scale: Some(by_head_size),
    keys: no_keys,
};

/// Numbers that the class of `InternLM` 3 has for missing keys.
const INTERNLM3: &[(&str, f64)] =
    &[("max_position_embeddings", 32_768.0), ("num_key_value_heads", 2.0), ("rms_norm_eps", 1e-5)];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let is_internlm3 = config.text("model_type") == Some("internlm3");
    let config = if is_internlm3 { config.with_defaults(INTERNLM3) } else { config };
    Ok(Dense::from_config(config, dense::LLAMA)?.blueprint(names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = read_interleaved(keys, names)?;
    if keys.unsigned("expert_count")?.is_some_and(|experts| experts > 0) {
        // Mixtral's files have Llama's architecture name.
        experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Softmax)?;
    }
    Ok(blueprint)
}

/// Reads a file without experts whose rows of q and k are permuted for interleaved pairs.
pub(super) fn read_interleaved(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    Ok(Dense { layout: HeadLayout::Interleaved, ..Dense::from_gguf(keys)? }.blueprint(names))
}

/// Returns the scale of scores: the inverse root of the head size.
pub(super) fn by_head_size(blueprint: &Blueprint) -> f64 {
    let head_dim = blueprint.attentions().next().map_or(1, |attention| attention.head_dim);
    (head_dim as f64).powf(-0.5)
}

/// Returns no keys, after checking that readers of such files support the model: `SiLU` only, and
/// no sliding layers.
pub(super) fn no_keys(blueprint: &Blueprint) -> Result<Vec<Key>, String> {
    only_activation(blueprint, Activation::Silu, "SiLU")?;
    only_full_attention(blueprint)?;
    Ok(Vec::new())
}

/// Checks that all layers have the activation `wanted`.
pub(super) fn only_activation(blueprint: &Blueprint, wanted: Activation, said: &str) -> Result<(), String> {
    match blueprint.gated().map(|gated| gated.activation).find(|activation| *activation != wanted) {
        Some(other) => Err(format!("the activation is {other:?}, a GGUF file of this architecture means {said}")),
        None => Ok(()),
    }
}

/// Checks that no layer slides and that all have `RoPE`.
pub(super) fn only_full_attention(blueprint: &Blueprint) -> Result<(), String> {
    if blueprint.attentions().any(|attention| attention.window.is_some()) {
        return Err("the model has sliding layers, which GGUF files of this architecture cannot express".to_owned());
    }
    if blueprint.attentions().any(|attention| attention.rope.is_none()) {
        return Err("some layers have no RoPE, which GGUF files of this architecture cannot express".to_owned());
    }
    Ok(())
}

/// Checks that frequencies are not scaled by numbers that a GGUF file stores as a tensor. Only
/// readers of Llama's architecture support that tensor.
pub(super) fn only_usual_frequencies(blueprint: &Blueprint) -> Result<(), String> {
    let mut ropes = blueprint.attentions().filter_map(|attention| attention.rope.as_ref());
    let unusual = ropes.find(|rope| !matches!(rope.scaling, RopeScaling::None | RopeScaling::Linear { .. }));
    if let Some(rope) = unusual {
        let which = if matches!(rope.scaling, RopeScaling::Llama3 { .. }) { "Llama 3's" } else { "the model's" };
        return Err(format!("{which} RoPE scaling cannot be expressed in GGUF files of this architecture"));
    }
    Ok(())
}

/// Returns the fields that state which projections have biases.
pub(super) fn biases(_: &Blueprint, has: &dyn Fn(&str) -> bool) -> Vec<(&'static str, Json)> {
    let mlp = ["gate_proj", "up_proj", "down_proj"].iter().any(|module| has(&format!(".{module}.bias")));
    vec![attention_bias(has), ("mlp_bias", mlp.into())]
}

/// Returns `attention_bias`: whether some projection of attention has a bias. Configs have one
/// field for all of them.
pub(super) fn attention_bias(has: &dyn Fn(&str) -> bool) -> (&'static str, Json) {
    let any = ["q_proj", "k_proj", "v_proj", "o_proj"].iter().any(|module| has(&format!(".{module}.bias")));
    ("attention_bias", any.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Document, Rope, describe};

    const LLAMA: &str = r#"{"model_type":"llama","hidden_size":64,"intermediate_size":128,"num_hidden_layers":2,
        "num_attention_heads":4,"vocab_size":320,"max_position_embeddings":256"#;

    fn read(extra: &str) -> Result<Blueprint, Error> {
        let raw = format!("{LLAMA}{extra}");
        describe(Document::Config(raw.as_bytes()), &TensorNames::default()).map(|architecture| architecture.blueprint)
    }

    #[test]
    fn reads_the_oldest_layout() {
        let blueprint = read("}").expect("a config");
        let attention = blueprint.attentions().next().expect("a layer");
        assert_eq!((attention.kv_heads, attention.head_dim), (4, 16));
        assert_eq!(attention.rope, Some(Rope::plain(10_000.0)));
        assert!(blueprint.tied(), "there is no output projection");
        let names =
            TensorNames::from_iter(["lm_head.weight".to_owned(), "model.layers.1.self_attn.o_proj.bias".to_owned()]);
        let raw = format!("{LLAMA}}}");
        let other = describe(Document::Config(raw.as_bytes()), &names).expect("a config").blueprint;
        assert!(!other.tied());
        let biases = |of: fn(&crate::Attention) -> bool| other.attentions().map(of).collect::<Vec<_>>();
        assert_eq!(biases(|attention| attention.output.bias.is_some()), [false, true]);
        assert_eq!(biases(|attention| attention.query.bias.is_some()), [false, false]);
    }

    #[test]
    fn says_what_is_wrong() {
        for (extra, expect) in [
            (r#","num_attention_heads":0}"#, "number of attention heads is 0"),
            (r#","num_key_value_heads":3}"#, "cannot share 3"),
            (r#","head_dim":7}"#, "head size is 7"),
            (r#","head_dim":"x"}"#, "`head_dim` is \"x\""),
            (r#","num_hidden_layers":99999999999}"#, "number of layers is 99999999999"),
            (r#","hidden_act":"relu6"}"#, "relu6"),
            (r#","rope_scaling":{"type":"spiral","factor":2}}"#, "`spiral`"),
            (r#","rope_scaling":{"type":"linear"}}"#, "no `factor`"),
            (r#","rms_norm_eps":-1}"#, "positive"),
            ("", "EOF"),
        ] {
            let error = read(extra).expect_err(extra).to_string();
            assert!(error.contains(expect), "{error} should say {expect}");
        }
        let other =
            describe(Document::Config(br#"{"model_type":"albert"}"#), &TensorNames::default()).expect_err("albert");
        assert!(other.to_string().contains("`albert` cannot be run yet: it needs layers that share"), "{other}");
    }
}
