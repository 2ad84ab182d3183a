//! GPT-NeoX and Pythia: queries, keys and values stored head by head, `RoPE` on a part of each
//! head, parallel attention and feed-forward network.

use crate::Rope;
use crate::blueprint::{Activation, Blueprint, Embedding, Ffn, Layer, Mixer, Output, Plain, Residual, Tensor};
use crate::config_json::Config;
use crate::config_json::share;
use crate::dense::{attention, layer_count, layer_norm, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::plain::{self, by_key_head};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "gpt_neox",
    model_types: &["gpt_neox"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[("ffn_norm", "post_attention_layernorm"), ("attn_qkv", "self_attn.qkv_proj")],
        ..GgufForm::not_yet("gptneox")
    },
    hugging_face: HuggingFaceForm::of("GPTNeoXForCausalLM", "gpt_neox"),
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
    let (hidden, heads) = (config.required("hidden_size")?, config.required("num_attention_heads")?);
    let head_dim = hidden.checked_div(heads).unwrap_or(0);
    let epsilon = config.float("layer_norm_eps")?.unwrap_or(1e-5);
    let width = config.required("intermediate_size")?;
    let activation = config.activation("hidden_act", Activation::Gelu)?;
    let parallel = config.flag("use_parallel_residual")?.unwrap_or(true);
    let rope = rope(config, head_dim)?;
    let norm = |module: &str| layer_norm(names, &format!("gpt_neox.{module}"), epsilon);
    let layer = |index: usize| {
        let own = |module: &str| projection(names, &format!("gpt_neox.layers.{index}.{module}"));
        let qkv = own("attention.query_key_value");
        let [query, key, value] = by_key_head(&qkv, [heads, heads, head_dim]);
        let before =
            |module: &str| Residual { before: Some(norm(&format!("layers.{index}.{module}"))), ..Residual::default() };
        let mut mixer = attention(heads, head_dim, [query, key, value, own("attention.dense")]);
        mixer.rope = Some(rope.clone());
        let (up, down) = (own("mlp.dense_h_to_4h"), own("mlp.dense_4h_to_h"));
        Layer {
            parallel,
            ..Layer::new(
                (Mixer::Attention(Box::new(mixer)), before("input_layernorm")),
                (
                    Ffn::Plain(Box::new(Plain { width, activation, curve: None, up, down })),
                    before("post_attention_layernorm"),
                ),
            )
        }
    };
    let embedding = Tensor::named("gpt_neox.embed_in.weight");
    let mut output = projection(names, "embed_out");
    if !names.has("embed_out.weight") {
        output.weight = embedding.clone();
    }
    Ok(Blueprint {
        vocabulary: config.required("vocab_size")?,
        hidden,
        context: number("max_position_embeddings", 2048)?,
        causal: true,
        embedding: Embedding::of_tokens(embedding),
        streams: None,
        layers: (0..layer_count(config.required("num_hidden_layers")?)?).map(layer).collect(),
        norm: Some(norm("final_layer_norm")),
        embedder: Vec::new(),
        output: Some(Output::of(output)),
        scorer: None,
        pictures: None,
    })
}

/// Reads `RoPE`. In the classic layout, the base and the rotated share have keys of this family.
fn rope(config: Config<'_>, head_dim: u64) -> Result<Rope, Error> {
    const SHARE: f64 = 0.25;
    let theta = config.float("rotary_emb_base")?.unwrap_or(10_000.0);
    let rope = config.rope("full_attention", theta)?;
    let rotated = if config.says_rotated()? {
        config.rotated(head_dim)?
    } else {
        let rotated = share(head_dim, config.float("rotary_pct")?.unwrap_or(SHARE));
        Some(rotated).filter(|rotated| *rotated != head_dim)
    };
    Ok(Rope { dimension: rotated, ..rope })
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let parallel = keys.flag("use_parallel_residual")?.unwrap_or(true);
    let mut blueprint = plain::from_gguf(keys, names, Activation::Gelu)?;
    for layer in &mut blueprint.layers {
        layer.parallel = parallel;
    }
    Ok(blueprint)
}
