//! DBRX: layer norms without biases, clipped queries, keys and values in one tensor, experts in
//! every layer. In folders, the experts' output matrices are transposed blocks of one tensor, which
//! cannot be read yet.

use crate::blueprint::{Blueprint, RouterScores};
use crate::dense::{Dense, NormNames, projection};
use crate::experts;
use crate::family::{Family, GgufForm, HuggingFaceForm, gguf_only};
use crate::gguf_keys::Keys;
use crate::plain::{one_by_one, with_layer_norms};
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "dbrx",
    model_types: &[],
    read_config: gguf_only,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[("attn_qkv", "self_attn.qkv_proj"), ("attn_output_norm", "post_attention_layernorm")],
        ..GgufForm::not_yet("dbrx")
    },
    hugging_face: HuggingFaceForm::of("DbrxForCausalLM", "dbrx"),
};

const NORMS: NormNames = NormNames {
    before_mixer: Some("input_layernorm"),
    after_mixer: None,
    before_ffn: Some("post_attention_layernorm"),
    after_ffn: None,
};

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let clip = keys.float("attention.clamp_kqv")?.filter(|clip| *clip != 0.0);
    let dense = Dense { norms: NORMS, ..with_layer_norms(keys)? };
    let sizes = [dense.heads, dense.kv_heads, dense.head_dim];
    let mut blueprint = dense.blueprint(names);
    for (index, attention) in blueprint.attentions_mut().enumerate() {
        attention.clip = clip;
        let all = projection(names, &format!("model.layers.{index}.self_attn.qkv_proj"));
        [attention.query, attention.key, attention.value] = one_by_one(&all, sizes);
    }
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Softmax)?;
    Ok(blueprint)
}
