//! `EuroBERT`: a Llama in which every token sees all others.

use crate::blueprint::Blueprint;
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "eurobert",
    model_types: &["eurobert"],
    read_config,
    gguf: &GgufForm { read: Some(read_gguf), names: name_tables::PRE_NORMS, ..GgufForm::not_yet("eurobert") },
    hugging_face: HuggingFaceForm::of("EuroBertModel", "eurobert"),
};

const DEFAULTS: Defaults = Defaults { context: 8192, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense =
        Dense { norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5), ..Dense::from_config(config, DEFAULTS)? };
    Ok(Blueprint { causal: false, output: None, ..dense.blueprint(names) })
}

/// Reads GGUF metadata. Files also state how a classifier pools, which they do not have.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    keys.unsigned("classifier.pooling_type")?;
    Ok(Blueprint { causal: false, output: None, ..Dense::from_any_gguf(keys)?.blueprint(names) })
}
