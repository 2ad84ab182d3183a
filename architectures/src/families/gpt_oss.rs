//! gpt-oss: attention with sinks and biases, windows in every second layer, experts with a clamped
//! activation.

use crate::blueprint::{Activation, Blueprint, Ffn, Matrices, Mixer, Projection, RouterScores, Rows, Tensor, View};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, projection};
use crate::experts::{self, ExpertSizes, routed, router};
use crate::family::{Alias, Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::plain::one_by_one;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "gpt_oss",
    model_types: &["gpt_oss"],
    read_config,
    gguf: &GgufForm {
        also: &[BY_OLLAMA],
        read: Some(read_gguf),
        names: &[("post_attention_norm", "post_attention_layernorm"), ("attn_sinks.weight", "self_attn.sinks")],
        ..GgufForm::not_yet("gpt-oss")
    },
    hugging_face: HuggingFaceForm::of("GptOssForCausalLM", "gpt_oss"),
};

/// Names that Ollama's converter writes.
const BY_OLLAMA: Alias = Alias {
    architecture: "gptoss",
    names: &[
        ("ffn_norm", "post_attention_layernorm"),
        ("attn_out", "self_attn.o_proj"),
        ("attn_sinks", "self_attn.sinks"),
        // Only in its first files.
        ("attn_qkv", "self_attn.qkv_proj"),
        ("ffn_gate_up_exps", "mlp.experts.gate_up_proj"),
    ],
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(8), head_dim: Some(64), context: 131_072, theta: 150_000.0 };
/// Every second layer has full attention.
const PATTERN: u64 = 2;
/// Default bound at which gate and up are clamped.
const LIMIT: f64 = 7.0;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    config.needs_rope()?;
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    dense.norm_epsilon = config.float("rms_norm_eps")?.unwrap_or(1e-5);
    dense.slide_by_config(config, PATTERN, 128)?;
    let (count, width) = (config.unsigned("num_local_experts")?.unwrap_or(128), dense.intermediate);
    let top_k = match config.unsigned("num_experts_per_tok")? {
        Some(top_k) => top_k,
        None => config.unsigned("experts_per_token")?.unwrap_or(4),
    };
    let limit = config.float("swiglu_limit")?.unwrap_or(LIMIT);
    let mut blueprint = with_sinks(dense, names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let prefix = format!("model.layers.{index}");
        let mut router = router(names, &format!("{prefix}.mlp.router"), top_k);
        router.scores = RouterScores::SoftmaxOfChosen;
        let sizes = ExpertSizes { count, width, top_k, activation: Activation::ClampedSilu { limit } };
        let matrices = stacks(config, &format!("{prefix}.mlp.experts"), width);
        layer.ffn = Ffn::Experts(Box::new(routed(sizes, router, matrices)));
    }
    Ok(blueprint)
}

/// Reads GGUF metadata with llama.cpp's constants: the pattern, the bound, a softmax over the
/// selected experts only. Files of Ollama's converter have a factor without a scaling type; it is
/// `YaRN`.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let activation = Activation::ClampedSilu { limit: LIMIT };
    let mut dense = Dense { activation, ..Dense::from_gguf(keys)? };
    dense.slide_by_keys(keys, PATTERN, 0)?;
    if keys.architecture == BY_OLLAMA.architecture && keys.text("rope.scaling.type")?.is_none() {
        let factor = keys.float("rope.scaling.factor")?.filter(|factor| *factor > 0.0).unwrap_or(1.0);
        let (scaling, magnitude) = keys.yarn(factor)?;
        for rope in dense.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
            *rope = rope.clone().scaled(scaling.clone(), magnitude);
        }
    }
    let sizes = [dense.heads, dense.kv_heads, dense.head_dim];
    let mut blueprint = with_sinks(dense, names);
    experts::from_gguf(keys, names, &mut blueprint, false, RouterScores::SoftmaxOfChosen)?;
    for layer in &mut blueprint.layers {
        let Ffn::Experts(experts) = &mut layer.ffn else { continue };
        // Experts always have biases, which share a blob with the stacks.
        for matrices in experts.gate.iter_mut().chain([&mut experts.up, &mut experts.down]) {
            if let Matrices::Items(stack) = matrices {
                stack.bias = Some(Tensor::named(format!("{}.bias", stack.module)));
            }
        }
    }
    split_fused(&mut blueprint, names, sizes);
    Ok(blueprint)
}

/// Splits fused tensors, if a file has them: queries, keys and values in one tensor, and gate and
/// up projections in one tensor with alternating rows.
fn split_fused(blueprint: &mut Blueprint, names: &TensorNames, sizes: [u64; 3]) {
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let prefix = format!("model.layers.{index}");
        let has = |module: &str| names.has(&format!("{module}.weight"));
        let all = format!("{prefix}.self_attn.qkv_proj");
        if let (Mixer::Attention(attention), true) = (&mut layer.mixer, has(&all)) {
            [attention.query, attention.key, attention.value] = one_by_one(&projection(names, &all), sizes);
        }
        let both = format!("{prefix}.mlp.experts.gate_up_proj");
        if let (Ffn::Experts(experts), true) = (&mut layer.ffn, has(&both)) {
            let both = projection(names, &both);
            let part = |first| Matrices::Items(both.rows(Rows::every_second(first, experts.width)));
            (experts.gate, experts.up) = (Some(part(0)), part(1));
        }
    }
}

fn with_sinks(dense: Dense, names: &TensorNames) -> Blueprint {
    let mut blueprint = dense.blueprint(names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        if let Mixer::Attention(attention) = &mut layer.mixer {
            attention.sinks = Some(Tensor::named(format!("model.layers.{index}.self_attn.sinks")));
        }
    }
    blueprint
}

/// Returns the experts as stacks, in which rows of gate and up alternate. MXFP4 blocks are stored
/// as `[output, input]`, floats are stored transposed.
fn stacks(config: Config<'_>, module: &str, width: u64) -> [Matrices; 3] {
    if config.value("quantization").is_some() {
        // MLX stores gate and up projections separately.
        return experts::MODULES.map(|own| {
            let module = format!("{module}.{own}");
            let bias = Some(Tensor::named(format!("{module}.bias")));
            Matrices::Items(Projection {
                weight: Tensor::named(format!("{module}.weight")),
                module,
                bias,
                clamps: None,
            })
        });
    }
    let quantized = config.object("quantization_config").ok().flatten();
    let transposed = quantized.and_then(|own| own.text("quant_method")) != Some("mxfp4");
    let stack = |name: &str, rows: Option<Rows>| {
        let name = format!("{module}.{name}");
        let bias = Tensor { name: format!("{name}_bias"), view: View { rows, ..View::default() } };
        let weight = Tensor { name: name.clone(), view: View { rows, transposed, item: None } };
        Matrices::Items(Projection { module: name, weight, bias: Some(bias), clamps: None })
    };
    let part = |first| stack("gate_up_proj", Some(Rows::every_second(first, width)));
    [part(0), part(1), stack("down_proj", None)]
}
