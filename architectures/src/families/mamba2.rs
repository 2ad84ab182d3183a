//! Mamba 2: state space models, without feed-forward networks.

use crate::blueprint::{Blueprint, Embedding, Ffn, Layer, Mixer, Norm, NormKind, Output, Residual, Tensor};
use crate::config_json::Config;
use crate::dense::{layer_count, layer_norm, projection, vocabulary};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::state_space::{StateSpaceSizes, step_limits};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "mamba2",
    model_types: &["mamba2"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("attn_norm", "norm"),
            ("ssm_in", "mixer.in_proj"),
            ("ssm_conv1d", "mixer.conv1d"),
            ("ssm_dt.bias", "mixer.dt_bias"),
            ("ssm_a", "mixer.A"),
            ("ssm_d", "mixer.D"),
            ("ssm_norm", "mixer.norm"),
            ("ssm_out", "mixer.out_proj"),
        ],
        ..GgufForm::not_yet("mamba2")
    },
    hugging_face: HuggingFaceForm::of("Mamba2ForCausalLM", "mamba2"),
};

/// The longest context of a model without attention, whose memory does not grow.
pub(super) const CONTEXT: u64 = 1 << 20;

/// Sizes of a model, and the names of its tensors outside of layers.
pub(super) struct MambaSizes {
    pub(super) vocabulary: u64,
    pub(super) hidden: u64,
    pub(super) layers: usize,
    pub(super) context: u64,
    pub(super) epsilon: f64,
    pub(super) names: OuterNames,
}

/// Names of the tensors outside of layers.
pub(super) struct OuterNames {
    root: &'static str,
    embedding: &'static str,
    norm: &'static str,
}

/// Names in folders.
pub(super) const IN_FOLDERS: OuterNames =
    OuterNames { root: "backbone.", embedding: "embeddings.weight", norm: "norm_f" };

/// Names in GGUF files.
pub(super) const IN_FILES: OuterNames = OuterNames { root: "model.", embedding: "embed_tokens.weight", norm: "norm" };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
    let epsilon = config.float("layer_norm_epsilon")?.unwrap_or(1e-5);
    let sizes = MambaSizes {
        vocabulary: config.required("vocab_size")?,
        hidden: config.required("hidden_size")?,
        layers: layer_count(config.required("num_hidden_layers")?)?,
        context: CONTEXT,
        epsilon,
        names: IN_FOLDERS,
    };
    let mixer = StateSpaceSizes {
        heads: number("num_heads", 128)?,
        groups: number("n_groups", 8)?,
        head_dim: number("head_dim", 64)?,
        state_dim: number("state_size", 128)?,
        kernel: number("conv_kernel", 4)?,
        step_limits: step_limits(config)?,
        epsilon,
    };
    Ok(blueprint(names, &sizes, |module| Mixer::StateSpace(Box::new(mixer.mixer(names, module)))))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let epsilon = keys.float("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5);
    let sizes = MambaSizes {
        vocabulary: vocabulary(keys)?,
        hidden: keys.required("embedding_length")?,
        layers: layer_count(keys.required("block_count")?)?,
        context: keys.required("context_length")?,
        epsilon,
        names: IN_FILES,
    };
    let mixer = StateSpaceSizes::from_gguf(keys, epsilon)?;
    Ok(blueprint(names, &sizes, |module| Mixer::StateSpace(Box::new(mixer.mixer(names, module)))))
}

/// Returns a model of layers with a mixer each; `mixer` returns the one below a module.
pub(super) fn blueprint(names: &TensorNames, sizes: &MambaSizes, mixer: impl Fn(&str) -> Mixer) -> Blueprint {
    let OuterNames { root, embedding, norm: final_norm } = sizes.names;
    let norm =
        |module: &str| Norm { kind: NormKind::Rms, ..layer_norm(names, &format!("{root}{module}"), sizes.epsilon) };
    let layer = |index: usize| {
        Layer::new(
            (
                mixer(&format!("{root}layers.{index}.mixer")),
                Residual { before: Some(norm(&format!("layers.{index}.norm"))), ..Residual::default() },
            ),
            (Ffn::None, Residual::default()),
        )
    };
    let embedding = Tensor::named(format!("{root}{embedding}"));
    let mut output = projection(names, "lm_head");
    if !names.has("lm_head.weight") {
        output.weight = embedding.clone();
    }
    Blueprint {
        vocabulary: sizes.vocabulary,
        hidden: sizes.hidden,
        context: sizes.context,
        causal: true,
        embedding: Embedding::of_tokens(embedding),
        streams: None,
        layers: (0..sizes.layers).map(layer).collect(),
        norm: Some(norm(final_norm)),
        embedder: Vec::new(),
        output: Some(Output::of(output)),
        scorer: None,
        pictures: None,
    }
}
