//! Nomic Embed v2: a BERT with `RoPE`, and with experts without gates in every second layer.

use crate::blueprint::{Activation, Blueprint, Experts, Ffn, Matrices};
use crate::dense::projection;
use crate::encoder::{AttentionNames, Encoder, EncoderDefaults, EncoderNames, NetworkNames};
use crate::experts::{ExpertSizes, routed, router};
use crate::family::{Family, GgufForm, HuggingFaceForm, gguf_only};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames, name_tables};

const DEFAULTS: EncoderDefaults =
    EncoderDefaults { context: 2048, epsilon: 1e-5, activation: Activation::Gelu, theta: 10_000.0, types: 1 };

pub(super) const FAMILY: Family = Family {
    name: "nomic_bert_moe",
    model_types: &[],
    read_config: gguf_only,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("attn_qkv", "attn.Wqkv"),
            ("attn_output", "attn.out_proj"),
            ("attn_output_norm", "norm1"),
            ("ffn_up", "mlp.fc1"),
            ("ffn_down", "mlp.fc2"),
            ("ffn_gate_inp", "mlp.router.layer"),
            ("ffn_up_exps", "mlp.experts.up"),
            ("ffn_down_exps", "mlp.experts.down"),
            ("layer_output_norm", "norm2"),
        ],
        model_names: name_tables::ENCODERS,
        ..GgufForm::not_yet("nomic-bert-moe")
    },
    hugging_face: HuggingFaceForm::of("NomicBertModel", "nomic_bert"),
};

fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let encoder = Encoder::from_gguf(
        keys,
        &DEFAULTS,
        EncoderNames {
            root: String::new(),
            tables: ["embeddings.word_embeddings", "", "embeddings.token_type_embeddings"],
            embedding_norm: "emb_ln",
            layers: "model.layers.",
            attention: AttentionNames::Together(["attn.Wqkv", "attn.out_proj"]),
            norms: ["norm1", "norm2"],
            network: NetworkNames::Plain(["mlp.fc1", "mlp.fc2"]),
        },
    )?;
    let sizes = ExpertSizes {
        count: keys.required("expert_count")?,
        width: encoder.width,
        top_k: keys.required("expert_used_count")?,
        activation: encoder.activation,
    };
    // Layers with a router have experts.
    keys.unsigned("moe_every_n_layers")?;
    let mut blueprint = encoder.blueprint(names);
    for (index, layer) in blueprint.layers.iter_mut().enumerate() {
        let module = format!("model.layers.{index}.mlp");
        if !names.has(&format!("{module}.router.layer.weight")) {
            continue;
        }
        let stack = |own: &str| Matrices::Items(projection(names, &format!("{module}.experts.{own}")));
        let router = router(names, &format!("{module}.router.layer"), sizes.top_k);
        let [up, down] = ["up", "down"].map(stack);
        layer.ffn = Ffn::Experts(Box::new(Experts { gate: None, ..routed(sizes, router, [up.clone(), up, down]) }));
    }
    Ok(blueprint)
}
