//! `MPNet`, an encoder with learned biases for ranges of distances beside its learned positions.

use crate::blueprint::{Blueprint, Buckets, PositionBias, Tensor};
use crate::config_json::Config;
use crate::encoder::{AttentionNames, Encoder, EncoderNames, NetworkNames};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "mpnet",
    model_types: &["mpnet"],
    read_config,
    gguf: &GgufForm::not_yet("mpnet"),
    hugging_face: HuggingFaceForm::of("MPNetModel", "mpnet"),
};

/// Row of the first position: the class uses the padding token with the id 1 for all models.
const OFFSET: u64 = 2;
/// Distance from which all keys are in the last bucket; no key of the config states it.
const REACH: u64 = 128;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let root = if names.has("mpnet.embeddings.word_embeddings.weight") { "mpnet." } else { "" };
    let own = EncoderNames {
        root: root.to_owned(),
        tables: ["embeddings.word_embeddings", "embeddings.position_embeddings", ""],
        embedding_norm: "embeddings.LayerNorm",
        layers: "encoder.layer.",
        attention: AttentionNames::Separate([
            "attention.attn.q",
            "attention.attn.k",
            "attention.attn.v",
            "attention.attn.o",
        ]),
        norms: ["attention.LayerNorm", "output.LayerNorm"],
        network: NetworkNames::Plain(["intermediate.dense", "output.dense"]),
    };
    let encoder = Encoder::with_positions(config, OFFSET, 0, own)?;
    let mut blueprint = encoder.blueprint(names);
    let buckets = Buckets {
        weight: Tensor::named(format!("{root}encoder.relative_attention_bias.weight")),
        count: config.unsigned("relative_attention_num_buckets")?.unwrap_or(32),
        reach: REACH,
    };
    for attention in blueprint.attentions_mut() {
        attention.position_bias = Some(PositionBias::Buckets(buckets.clone()));
    }
    Ok(blueprint)
}
