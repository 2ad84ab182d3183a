//! `BitNet` b1.58: norms inside of attention and of feed-forward networks. Weights of the
//! unquantized repositories are run as they are stored.

use crate::blueprint::{Activation, Blueprint, Ffn, Norm};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, LLAMA, layer_norm};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, NormKind, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "bitnet",
    model_types: &["bitnet"],
    read_config,
    gguf: &GgufForm::not_yet("bitnet"),
    hugging_face: HuggingFaceForm::of("BitNetForCausalLM", "bitnet"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(5), theta: 500_000.0, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let quantized = config.object("quantization_config")?;
    if quantized.and_then(|own| own.text("quant_method")) == Some("bitnet") {
        return Err(fail("`quantization_config` rounds weights to three values (`bitnet`), which cannot be run yet"));
    }
    let dense = Dense {
        activation: config.activation("hidden_act", Activation::ReluSquared)?,
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5),
        ..Dense::from_config(config, DEFAULTS)?
    };
    let epsilon = dense.norm_epsilon;
    let norm = |module: String| Some(Norm { kind: NormKind::Rms, ..layer_norm(names, &module, epsilon) });
    let mut blueprint = dense.blueprint(names);
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        attention.output_norm = norm(format!("model.layers.{index}.self_attn.attn_sub_norm"));
    }
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        if let Ffn::Gated(gated) = &mut layer.ffn {
            gated.norm = norm(format!("model.layers.{index}.mlp.ffn_sub_norm"));
        }
    }
    Ok(blueprint)
}
