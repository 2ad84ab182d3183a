//! Apertus: norms of heads, networks without gates whose activation xIELU has learned parameters.

use crate::blueprint::{Blueprint, Ffn, Tensor, Xielu};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, NormNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::plain::without_gates;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "apertus",
    model_types: &["apertus"],
    read_config,
    gguf: &GgufForm::not_yet("apertus"),
    hugging_face: HuggingFaceForm::of("ApertusForCausalLM", "apertus"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: None, head_dim: None, context: 65_536, theta: 12_000_000.0 };
const NORMS: NormNames = NormNames {
    before_mixer: Some("attention_layernorm"),
    after_mixer: None,
    before_ffn: Some("feedforward_layernorm"),
    after_ffn: None,
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    config.needs_rope()?;
    if let Some(other) = config.text("hidden_act").filter(|name| *name != "xielu") {
        return Err(fail(format!("`hidden_act` is {other}, expected xielu")));
    }
    let dense = Dense {
        norms: NORMS,
        head_norms: true,
        norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5),
        ..Dense::without_activation(config, DEFAULTS, config.required("num_hidden_layers")?)?
    };
    let mut blueprint = without_gates(dense.blueprint(names), names, ["up_proj", "down_proj"]);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let own = |name: &str| Tensor::named(format!("model.layers.{index}.mlp.act_fn.{name}"));
        if let Ffn::Plain(plain) = &mut layer.ffn {
            plain.curve = Some(Xielu { positive: own("alpha_p"), negative: own("alpha_n") });
        }
    }
    Ok(blueprint)
}
