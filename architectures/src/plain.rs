//! Shared components of transformers with a structure other than Llama's, whose names and sizes
//! differ by family.

use std::fmt::Display;

use crate::blueprint::{Activation, Blueprint, Ffn, Mixer, NormKind, Plain, Projection, Rows};
use crate::dense::{Dense, projection};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

/// Splits a tensor with queries, keys and values that are stored key head by key head: the rows of
/// its queries, then of its key, then of its value. The check of the blueprint refuses sizes that
/// overflow.
pub(crate) fn by_key_head(all: &Projection, [heads, kv_heads, head_dim]: [u64; 3]) -> [Projection; 3] {
    let queries = heads.checked_div(kv_heads).unwrap_or(0).saturating_mul(head_dim);
    let stride = queries.saturating_add(head_dim.saturating_mul(2));
    let part = |first: u64, block: u64| all.rows(Rows { first, count: kv_heads.saturating_mul(block), block, stride });
    [part(0, queries), part(queries, head_dim), part(queries.saturating_add(head_dim), head_dim)]
}

/// Splits a tensor with all queries, then all keys, then all values.
pub(crate) fn one_by_one(all: &Projection, [heads, kv_heads, head_dim]: [u64; 3]) -> [Projection; 3] {
    let [queries, keys] = [heads, kv_heads].map(|heads| heads.saturating_mul(head_dim));
    let part = |first: u64, count: u64| all.rows(Rows::run(first, count));
    [part(0, queries), part(queries, keys), part(queries.saturating_add(keys), keys)]
}

/// Replaces the networks of all layers by networks without a gate, with these modules below
/// `model.layers.N.mlp`.
pub(crate) fn without_gates(blueprint: Blueprint, names: &TensorNames, modules: [&str; 2]) -> Blueprint {
    without_gates_in(blueprint, names, "model.layers", modules.map(|module| format!("mlp.{module}")))
}

/// Replaces the networks of all layers by networks without a gate, with these modules below
/// `{list}.N`.
pub(crate) fn without_gates_in(
    mut blueprint: Blueprint,
    names: &TensorNames,
    list: &str,
    [up, down]: [impl Display; 2],
) -> Blueprint {
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let Ffn::Gated(gated) = &layer.ffn else { continue };
        let own = |module: &dyn Display| projection(names, &format!("{list}.{index}.{module}"));
        let (width, activation) = (gated.width, gated.activation);
        layer.ffn = Ffn::Plain(Box::new(Plain { width, activation, curve: None, up: own(&up), down: own(&down) }));
    }
    blueprint
}

/// Reads a GGUF file of such a transformer: layer norms, queries, keys and values as rows of one
/// tensor, networks without gates.
pub(crate) fn from_gguf(keys: Keys<'_>, names: &TensorNames, activation: Activation) -> Result<Blueprint, Error> {
    let dense = Dense { activation, ..with_layer_norms(keys)? };
    let sizes = [dense.heads, dense.kv_heads, dense.head_dim];
    let mut blueprint = without_gates(dense.blueprint(names), names, ["up_proj", "down_proj"]);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let Mixer::Attention(attention) = &mut layer.mixer else { continue };
        let whole = projection(names, &format!("model.layers.{index}.self_attn.qkv_proj"));
        [attention.query, attention.key, attention.value] = one_by_one(&whole, sizes);
    }
    Ok(blueprint)
}

/// Reads the metadata of a file with layer norms.
pub(crate) fn with_layer_norms(keys: Keys<'_>) -> Result<Dense, Error> {
    Ok(Dense {
        norm_kind: NormKind::Layer,
        norm_epsilon: keys.float("attention.layer_norm_epsilon")?.unwrap_or(1e-5),
        ..Dense::from_gguf(keys)?
    })
}
