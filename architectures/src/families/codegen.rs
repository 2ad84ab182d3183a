//! `CodeGen`: a GPT-J whose queries, keys and values are rows of one tensor, in four blocks.

use super::gptj;
use crate::blueprint::{Blueprint, Rows};
use crate::config_json::Config;
use crate::dense::projection;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "codegen",
    model_types: &["codegen"],
    read_config,
    gguf: &GgufForm::not_yet("codegen"),
    hugging_face: HuggingFaceForm::of("CodeGenForCausalLM", "codegen").interleaved(),
};

/// Number of blocks, each with the rows of some queries, then of their values, then of their keys.
const BLOCKS: u64 = 4;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = gptj::decoder(config, names)?;
    let hidden = blueprint.hidden;
    let block = hidden / BLOCKS;
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        let all = projection(names, &format!("transformer.h.{index}.attn.qkv_proj"));
        let part = |which: u64| {
            let (first, stride) = (block.saturating_mul(which), block.saturating_mul(3));
            all.rows(Rows { first, count: hidden, block, stride })
        };
        [attention.query, attention.value, attention.key] = [part(0), part(1), part(2)];
    }
    Ok(blueprint)
}
