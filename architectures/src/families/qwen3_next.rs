//! Qwen3-Next: gated delta nets, gated attention in every fourth layer, experts with a shared one.

use crate::blueprint::{Blueprint, DeltaNet, Mixer, Norm, Rows, Tensor};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA, all_but_every, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames, experts};

pub(super) const FAMILY: Family = Family {
    name: "qwen3_next",
    model_types: &["qwen3_next"],
    read_config,
    gguf: &GgufForm::not_yet("qwen3next"),
    hugging_face: HuggingFaceForm::of("Qwen3NextForCausalLM", "qwen3_next"),
};

const DEFAULTS: Defaults =
    Defaults { kv_heads: Some(2), head_dim: Some(256), context: 32_768, theta: 10_000.0, ..LLAMA };
const EXPERTS: experts::Defaults =
    experts::Defaults { count: 512, width: 512, top_k: 10, normalize: true, shared_width: Some(512) };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    dense.norm_offset = 1.0;
    dense.head_norms = true;
    dense.rotate_part(config, 4)?;
    let (layers, head_dim, epsilon) = (dense.layers.len() as u64, dense.head_dim, dense.norm_epsilon);
    let attends = attention_layers(config, layers)?;
    let mut blueprint = dense.blueprint(names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let prefix = format!("model.layers.{index}");
        if !attends[index] {
            layer.mixer =
                Mixer::DeltaNet(Box::new(delta_net(config, names, &format!("{prefix}.linear_attn"), epsilon)?));
        } else if let Mixer::Attention(attention) = &mut layer.mixer {
            // Of each head first the rows of the query, then those of the gate.
            let count = attention.heads.saturating_mul(head_dim);
            let part = |first| Rows { first, count, block: head_dim, stride: head_dim.saturating_mul(2) };
            attention.gate = Some(attention.query.rows(part(head_dim)));
            attention.query = attention.query.rows(part(0));
        }
    }
    experts::from_config(config, names, &mut blueprint, &EXPERTS)?;
    Ok(blueprint)
}

/// Of each key head the rows of its query, its key, its values and their gates lie together; and so do the rows of beta and
/// decay.
fn delta_net(config: Config<'_>, names: &TensorNames, module: &str, epsilon: f64) -> Result<DeltaNet, Error> {
    let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
    let (key_heads, value_heads) = (number("linear_num_key_heads", 16)?, number("linear_num_value_heads", 32)?);
    let (key_dim, value_dim) = (number("linear_key_head_dim", 128)?, number("linear_value_head_dim", 128)?);
    let share = value_heads.checked_div(key_heads).unwrap_or(0);
    let values = share.saturating_mul(value_dim);
    let own = |name: &str| projection(names, &format!("{module}.{name}"));
    let all = own("in_proj_qkvz");
    let stride = key_dim.saturating_add(values).saturating_mul(2);
    let part = |first: u64, block: u64| all.rows(Rows { first, count: key_heads.saturating_mul(block), block, stride });
    let both = own("in_proj_ba");
    let half =
        |first: u64| both.rows(Rows { first, count: value_heads, block: share, stride: share.saturating_mul(2) });
    let first_value = key_dim.saturating_mul(2);
    Ok(DeltaNet {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        query: part(0, key_dim),
        key: part(key_dim, key_dim),
        value: part(first_value, values),
        gate: part(first_value.saturating_add(values), values),
        beta: half(0),
        decay: half(share),
        decay_bias: Tensor::named(format!("{module}.dt_bias")),
        a_log: Tensor::named(format!("{module}.A_log")),
        kernel: number("linear_conv_kernel_dim", 4)?,
        convolution: Tensor::named(format!("{module}.conv1d.weight")),
        norm: Norm {
            kind: crate::NormKind::Rms,
            weight: Tensor::named(format!("{module}.norm.weight")),
            bias: None,
            epsilon,
            offset: 0.0,
        },
        output: own("out_proj"),
    })
}

/// Which layers attend: by a list of their types, or every so many.
fn attention_layers(config: Config<'_>, layers: u64) -> Result<Vec<bool>, Error> {
    if let Some(others) = config.layers_of_type("linear_attention", layers)? {
        return Ok(others.into_iter().map(|other| !other).collect());
    }
    let step = config.step("full_attention_interval", 4)?;
    Ok(all_but_every(step, layers).into_iter().map(|other| !other).collect())
}
