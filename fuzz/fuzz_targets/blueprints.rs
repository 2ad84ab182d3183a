//! Fuzzes `config.json` of every family, and serialized blueprints. Every accepted blueprint
//! survives a round trip through JSON and is validated alike regardless of its source. A config
//! without `model_type` is tried as each family in turn.
#![no_main]

use architectures::{Architecture, Blueprint, Document, Family, Sizes, TensorNames, describe};
use lode_fuzz::assert_told;
use serde_json::{Map, Value};

/// Tensor names whose presence families use to tell variants of a model apart.
const NAMES: [&str; 11] = [
    "lm_head.weight",
    "model.layers.0.self_attn.q_proj.bias",
    "model.layers.0.self_attn.o_proj.bias",
    "model.layers.0.self_attn.q_norm.weight",
    "model.layers.0.mlp.gate_proj.bias",
    "model.layers.0.mlp.gate.e_score_correction_bias",
    "model.layers.0.mlp.experts.gate_up_proj",
    "model.layers.0.ple.ple_embedding.ngram_embedding.weight",
    "model.layers.0.self_attn.index_q_proj.weight",
    "model.layers.0.self_attn.indexer.index_q_proj.weight",
    "model.norm.bias",
];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(blueprint) = serde_json::from_slice::<Blueprint>(bytes) {
        check(&blueprint);
    }
    read(bytes);
    let Ok(config) = serde_json::from_slice::<Map<String, Value>>(bytes) else { return };
    if config.contains_key("model_type") || config.contains_key("text_config") {
        return;
    }
    for family in Family::ALL {
        let mut config = config.clone();
        config.insert("model_type".to_owned(), family.hugging_face.model_type.into());
        read(Value::Object(config).to_string().as_bytes());
    }
});

fn read(raw: &[u8]) {
    let sizes = Sizes::of(Document::Config(raw));
    assert!(sizes.architecture.chars().count() <= 60);
    for names in [TensorNames::default(), NAMES.iter().map(|name| (*name).to_owned()).collect()] {
        match describe(Document::Config(raw), &names) {
            Ok(architecture) => {
                check_facts(&architecture);
                // The same document as settings of pictures.
                check(&architecture.with_pictures(raw, &[raw.to_vec()], &names).blueprint);
            }
            Err(error) => assert_told(&error),
        }
    }
}

fn check_facts(architecture: &Architecture) {
    let blueprint = &architecture.blueprint;
    let layers = architecture.facts().into_iter().find(|(key, _)| *key == "block_count");
    assert_eq!(layers, Some(("block_count", architectures::Fact::Unsigned(blueprint.layers.len() as u64))));
    check(blueprint);
}

fn check(blueprint: &Blueprint) {
    assert!(blueprint.vocabulary > 0 && blueprint.hidden > 0 && blueprint.context > 0 && !blueprint.layers.is_empty());
    assert_eq!(blueprint.states().count(), blueprint.layers.len());
    let reads = blueprint.reads();
    assert!(blueprint.read_by_every_token().all(|name| reads.has(name)));
    let text = serde_json::to_string(blueprint).expect("it is written");
    assert_eq!(serde_json::from_str::<Blueprint>(&text).expect("what was checked passes the check"), *blueprint);
}
