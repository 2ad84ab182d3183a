//! GPT-2: learned positions, transposed weights, queries, keys and values in one tensor.

use crate::blueprint::{
    Activation, Blueprint, Embedding, Ffn, Layer, Mixer, Output, Plain, PositionTable, Positions, Projection, Residual,
    Rows, Tensor, View,
};
use crate::config_json::{self, Config};
use crate::dense::{attention, layer_count, layer_norm};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::name_tables::Table;
use crate::plain;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "gpt2",
    model_types: &["gpt2"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: NAMES, ..GgufForm::not_yet("gpt2") },
    hugging_face: HuggingFaceForm::of("GPT2LMHeadModel", "gpt2"),
};

/// Names of the tensors of layers in GGUF files.
pub(super) const NAMES: Table = &[("ffn_norm", "post_attention_layernorm"), ("attn_qkv", "self_attn.qkv_proj")];

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let root = if names.has("transformer.wte.weight") { "transformer." } else { "" };
    let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
    let (hidden, heads, positions) = (number("n_embd", 768)?, number("n_head", 12)?, number("n_positions", 1024)?);
    let width = number("n_inner", hidden.saturating_mul(4))?;
    let activation = config.activation("activation_function", Activation::GeluTanh)?;
    let epsilon = config.float("layer_norm_epsilon")?.unwrap_or(1e-5);
    let head_dim = hidden.checked_div(heads).unwrap_or(0);
    let scaled = config.flag("scale_attn_weights")?.unwrap_or(true);
    let by_layer = config.flag("scale_attn_by_inverse_layer_idx")?.unwrap_or(false);
    if config.flag("add_cross_attention")?.unwrap_or(false) {
        return Err(config_json::fail("`add_cross_attention` is set, which cannot be run yet"));
    }
    let norm = |module: &str| layer_norm(names, &format!("{root}{module}"), epsilon);
    let layer = |index: usize| {
        let projection = |module: &str, rows| projection(names, format!("{root}h.{index}.{module}"), rows);
        let part = |which: u64| projection("attn.c_attn", Some(Rows::run(hidden.saturating_mul(which), hidden)));
        let before =
            |module: &str| Residual { before: Some(norm(&format!("h.{index}.{module}"))), ..Residual::default() };
        let mut own = attention(heads, head_dim, [part(0), part(1), part(2), projection("attn.c_proj", None)]);
        if !scaled {
            own.scale = 1.0;
        }
        if by_layer {
            own.scale /= (index + 1) as f64;
        }
        let (up, down) = (projection("mlp.c_fc", None), projection("mlp.c_proj", None));
        Layer::new(
            (Mixer::Attention(Box::new(own)), before("ln_1")),
            (Ffn::Plain(Box::new(Plain { width, activation, curve: None, up, down })), before("ln_2")),
        )
    };
    let embedding = format!("{root}wte.weight");
    let own = names.has("lm_head.weight");
    let weight = Tensor::named(if own { "lm_head.weight" } else { &embedding });
    let projection = Projection { module: "lm_head".to_owned(), weight, bias: None, clamps: None };
    Ok(Blueprint {
        vocabulary: number("vocab_size", 50_257)?,
        hidden,
        context: positions,
        causal: true,
        embedding: Embedding {
            weight: Tensor::named(&embedding),
            scale: None,
            positions: Some(Positions {
                table: PositionTable::Learned(Tensor::named(format!("{root}wpe.weight"))),
                rows: positions,
                offset: 0,
            }),
            types: None,
            norm: None,
            of_layers: None,
        },
        streams: None,
        layers: (0..layer_count(number("n_layer", 12)?)?).map(layer).collect(),
        norm: Some(norm("ln_f")),
        embedder: Vec::new(),
        output: Some(Output::of(projection)),
        scorer: None,
        pictures: None,
    })
}

/// Returns a projection whose weight is stored as `[input, output]`; `rows` are its outputs.
fn projection(names: &TensorNames, module: String, rows: Option<Rows>) -> Projection {
    let weight = Tensor { name: format!("{module}.weight"), view: View { rows, transposed: true, item: None } };
    let bias = Tensor { name: format!("{module}.bias"), view: View { rows, ..View::default() } };
    Projection { bias: names.has(&bias.name).then_some(bias), module, weight, clamps: None }
}

pub(super) fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = plain::from_gguf(keys, names, Activation::GeluTanh)?;
    for attention in blueprint.attentions_mut() {
        attention.rope = None;
    }
    let table = PositionTable::Learned(Tensor::named("model.position_embeddings.weight"));
    blueprint.embedding.positions = Some(Positions { table, rows: blueprint.context, offset: 0 });
    Ok(blueprint)
}
