//! `InternLM` 2 and 2.5: a Llama whose queries, keys and values are stored in one tensor, key head
//! by key head.

use super::llama;
use crate::blueprint::{Blueprint, Ffn, HeadLayout, Mixer};
use crate::config_json::Config;
use crate::dense::{Defaults, Dense, LLAMA, NormNames, projection};
use crate::experts::gated;
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::plain::by_key_head;
use crate::{Error, TensorNames, name_tables};

pub(super) const FAMILY: Family = Family {
    name: "internlm2",
    model_types: &["internlm2"],
    read_config,
    gguf: &GgufForm {
        // The converter separates queries, keys and values, and orders rows as for Llama.
        read: Some(llama::read_interleaved),
        names: name_tables::PRE_NORMS,
        layout: HeadLayout::Interleaved,
        attention_scale: Some(llama::by_head_size),
        ..GgufForm::not_yet("internlm2")
    },
    hugging_face: HuggingFaceForm::of("InternLM2ForCausalLM", "internlm2"),
};

const DEFAULTS: Defaults = Defaults { context: 2048, ..LLAMA };
const NORMS: NormNames = NormNames {
    before_mixer: Some("attention_norm"),
    after_mixer: None,
    before_ffn: Some("ffn_norm"),
    after_ffn: None,
};

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let dense = Dense {
        norms: NORMS,
        embedding: "tok_embeddings.weight",
        output: "output",
        ..Dense::from_config(config, DEFAULTS)?
    };
    let mut blueprint = dense.blueprint(names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let prefix = format!("model.layers.{index}");
        let (Mixer::Attention(attention), Ffn::Gated(ffn)) = (&mut layer.mixer, &mut layer.ffn) else { continue };
        let sizes = [attention.heads, attention.kv_heads, attention.head_dim];
        let all = projection(names, &format!("{prefix}.attention.wqkv"));
        [attention.query, attention.key, attention.value] = by_key_head(&all, sizes);
        attention.output = projection(names, &format!("{prefix}.attention.wo"));
        **ffn = gated(names, &format!("{prefix}.feed_forward"), ["w1", "w3", "w2"], ffn.width, ffn.activation);
    }
    Ok(blueprint)
}
