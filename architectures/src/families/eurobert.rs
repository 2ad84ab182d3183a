//! `EuroBERT`: a Llama in which every token sees all others.

use crate::blueprint::{Blueprint, HeadLayout};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "eurobert",
    model_types: &["eurobert"],
    read_config,
    gguf: &GgufForm { layout: HeadLayout::Half, ..GgufForm::not_yet("eurobert") },
    hugging_face: HuggingFaceForm::of("EuroBertModel", "eurobert"),
};

const DEFAULTS: Defaults = Defaults { context: 8192, ..LLAMA };

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense =
        Dense { norm_epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-5), ..Dense::from_config(config, DEFAULTS)? };
    Ok(Blueprint { causal: false, output: None, ..dense.blueprint(names) })
}
