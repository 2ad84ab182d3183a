//! Transformers that are not built like a Llama: their names and sizes are their own. What they share is put together here.

use crate::blueprint::{
    Activation, Attention, Blueprint, Ffn, HeadLayout, Mixer, Norm, NormKind, NormedPart, Plain, Projection, Tensor,
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

/// A GGUF file of such a transformer: layer norms, queries, keys and values as rows of one tensor, networks without gates.
pub(crate) fn from_gguf(keys: Keys<'_>, names: &TensorNames, activation: Activation) -> Result<Blueprint, Error> {
    let dense = Dense {
        norm_kind: NormKind::Layer,
        norm_epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-5),
        activation,
        ..Dense::from_gguf(keys)?
    };
    let (width, hidden) = (dense.intermediate, dense.hidden);
    let mut blueprint = dense.blueprint(names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let own = |module: &str| projection(names, &format!("model.layers.{index}.{module}"));
        layer.ffn =
            Ffn::Plain(Box::new(Plain { width, activation, up: own("mlp.up_proj"), down: own("mlp.down_proj") }));
        let Mixer::Attention(attention) = &mut layer.mixer else { continue };
        let part = |which: u64| {
            let (mut part, first) = (own("self_attn.qkv_proj"), hidden.saturating_mul(which));
            part.weight = Tensor::rows(part.weight.name, first, hidden);
            part.bias = part.bias.map(|bias| Tensor::rows(bias.name, first, hidden));
            part
        };
        (attention.query, attention.key, attention.value) = (part(0), part(1), part(2));
    }
    Ok(blueprint)
}
