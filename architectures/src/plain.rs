//! Transformers that are not built like a Llama: their names and sizes are their own. What they share is put together here.

use crate::blueprint::{
    Activation, Attention, Blueprint, Ffn, HeadLayout, Mixer, Norm, NormKind, NormedPart, Plain, Projection, Rows,
    Tensor,
};
use crate::dense::{Dense, projection};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

/// A layer norm, with a bias where there is one.
pub(crate) fn layer_norm(names: &TensorNames, module: &str, epsilon: f64) -> Norm {
    let bias = format!("{module}.bias");
    Norm {
        kind: NormKind::Layer,
        weight: Tensor::named(format!("{module}.weight")),
        bias: names.has(&bias).then(|| Tensor::named(bias)),
        epsilon,
        offset: 0.0,
    }
}

/// Attention without grouped heads, windows or `RoPE`, from its query, key, value and output projections.
pub(crate) fn attention(heads: u64, head_dim: u64, [query, key, value, output]: [Projection; 4]) -> Attention {
    Attention {
        heads,
        kv_heads: heads,
        head_dim,
        value_dim: head_dim,
        layout: HeadLayout::Half,
        scale: (head_dim as f64).powf(-0.5),
        soft_cap: None,
        window: None,
        rope: None,
        query,
        key,
        value,
        output,
        clip: None,
        normed: NormedPart::Head,
        query_norm: None,
        key_norm: None,
        sinks: None,
        gate: None,
    }
}

/// Replaces the networks of all layers by ones without a gate, whose modules below `model.layers.N.mlp` are these.
pub(crate) fn without_gates(mut blueprint: Blueprint, names: &TensorNames, [up, down]: [&str; 2]) -> Blueprint {
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let Ffn::Gated(gated) = &layer.ffn else { continue };
        let own = |module: &str| projection(names, &format!("model.layers.{index}.mlp.{module}"));
        let (width, activation) = (gated.width, gated.activation);
        layer.ffn = Ffn::Plain(Box::new(Plain { width, activation, up: own(up), down: own(down) }));
    }
    blueprint
}

/// A GGUF file of such a transformer: layer norms, queries, keys and values as rows of one tensor, networks without gates.
pub(crate) fn from_gguf(keys: Keys<'_>, names: &TensorNames, activation: Activation) -> Result<Blueprint, Error> {
    let dense = Dense { activation, ..with_layer_norms(keys)? };
    let hidden = dense.hidden;
    let mut blueprint = without_gates(dense.blueprint(names), names, ["up_proj", "down_proj"]);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let Mixer::Attention(attention) = &mut layer.mixer else { continue };
        let whole = projection(names, &format!("model.layers.{index}.self_attn.qkv_proj"));
        let part = |which: u64| whole.rows(Rows::run(hidden.saturating_mul(which), hidden));
        (attention.query, attention.key, attention.value) = (part(0), part(1), part(2));
    }
    Ok(blueprint)
}

/// What a file with layer norms says.
pub(crate) fn with_layer_norms(keys: Keys<'_>) -> Result<Dense, Error> {
    Ok(Dense {
        norm_kind: NormKind::Layer,
        norm_epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-5),
        ..Dense::from_gguf(keys)?
    })
}
