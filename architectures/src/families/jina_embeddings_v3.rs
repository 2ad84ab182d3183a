//! Jina Embeddings v3: `XLM-RoBERTa` with `RoPE`. Its adapters for tasks are not applied.

use crate::blueprint::{Activation, Blueprint};
use crate::config_json::Config;
use crate::encoder::{AttentionNames, Encoder, EncoderDefaults, EncoderNames, NetworkNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

const DEFAULTS: EncoderDefaults =
    EncoderDefaults { context: 8194, epsilon: 1e-5, activation: Activation::Gelu, theta: 20_000.0, types: 1 };

pub(super) const FAMILY: Family = Family {
    name: "jina_embeddings_v3",
    model_types: &["jina_embeddings_v3"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("attn_qkv", "mixer.Wqkv"),
            ("attn_output", "mixer.out_proj"),
            ("attn_output_norm", "norm1"),
            ("ffn_up", "mlp.fc1"),
            ("ffn_down", "mlp.fc2"),
            ("layer_output_norm", "norm2"),
        ],
        model_names: name_tables::ENCODERS,
        ..GgufForm::not_yet("jina-bert-v3")
    },
    hugging_face: HuggingFaceForm::of("JinaEmbeddingsV3Model", "jina_embeddings_v3"),
};

fn names_of(root: &str, layers: &'static str) -> EncoderNames {
    EncoderNames {
        root: root.to_owned(),
        tables: ["embeddings.word_embeddings", "", "embeddings.token_type_embeddings"],
        embedding_norm: "emb_ln",
        layers,
        attention: AttentionNames::Together(["mixer.Wqkv", "mixer.out_proj"]),
        norms: ["norm1", "norm2"],
        network: NetworkNames::Plain(["mlp.fc1", "mlp.fc2"]),
    }
}

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_other_keys(&[("rope_theta", "rotary_emb_base")]);
    let root = if names.has("roberta.emb_ln.weight") { "roberta." } else { "" };
    let encoder = Encoder {
        activation: config.activation("hidden_act", DEFAULTS.activation)?,
        ..Encoder::from_config(config, &DEFAULTS, names_of(root, "encoder.layers."))?
    };
    Ok(encoder.blueprint(names))
}

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    Ok(Encoder::from_gguf(keys, &DEFAULTS, names_of("", "model.layers."))?.blueprint(names))
}
