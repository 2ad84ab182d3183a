//! gpt-oss: attention with sinks and biases, windows in every second layer, experts with a clamped activation.

use crate::blueprint::{
    Activation, Blueprint, Experts, Ffn, Matrices, Mixer, Projection, RouterScores, Rows, Tensor, View,
};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::experts::router;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "gpt_oss",
    model_types: &["gpt_oss"],
    read_config,
    gguf: &GgufForm::not_yet("gpt-oss"),
    hugging_face: HuggingFaceForm::of("GptOssForCausalLM", "gpt_oss"),
};

const DEFAULTS: Defaults =
    Defaults { kv_heads: Some(8), head_dim: Some(64), context: 131_072, theta: 150_000.0, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut dense = Dense::from_config(config, DEFAULTS)?;
    dense.norm_epsilon = config.float("rms_norm_eps")?.unwrap_or(1e-5);
    dense.slide_by_config(config, 2, 128)?;
    let (count, width) = (config.unsigned("num_local_experts")?.unwrap_or(128), dense.intermediate);
    let top_k = match config.unsigned("num_experts_per_tok")? {
        Some(top_k) => top_k,
        None => config.unsigned("experts_per_token")?.unwrap_or(4),
    };
    let limit = config.float("swiglu_limit")?.unwrap_or(7.0);
    let mut blueprint = dense.blueprint(names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let prefix = format!("model.layers.{index}");
        if let Mixer::Attention(attention) = &mut layer.mixer {
            attention.sinks = Some(Tensor::named(format!("{prefix}.self_attn.sinks")));
        }
        let mut router = router(names, &format!("{prefix}.mlp.router"), top_k);
        router.scores = RouterScores::SoftmaxOfChosen;
        let [gate, up, down] = experts(config, &format!("{prefix}.mlp.experts"), width);
        let activation = Activation::ClampedSilu { limit };
        layer.ffn = Ffn::Experts(Box::new(Experts { count, width, activation, router, gate, up, down, shared: None }));
    }
    Ok(blueprint)
}

/// Stacks: rows of gate and up take turns. Blocks of four bits are stored as they are multiplied, numbers the other way
/// round.
fn experts(config: Config<'_>, module: &str, width: u64) -> [Matrices; 3] {
    let quantized = config.object("quantization_config").ok().flatten();
    let transposed = quantized.and_then(|own| own.text("quant_method")) != Some("mxfp4");
    let stack = |name: &str, rows: Option<Rows>| {
        let name = format!("{module}.{name}");
        let bias = Tensor { name: format!("{name}_bias"), view: View { rows, ..View::default() } };
        let weight = Tensor { name: name.clone(), view: View { rows, transposed, item: None } };
        Matrices::Items(Projection { module: name, weight, bias: Some(bias) })
    };
    let every_second = |first| Some(Rows { first, count: width, block: 1, stride: 2 });
    [stack("gate_up_proj", every_second(0)), stack("gate_up_proj", every_second(1)), stack("down_proj", None)]
}
