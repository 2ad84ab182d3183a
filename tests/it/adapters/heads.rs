//! Adapters of projections whose rows belong to attention heads. The order of these rows differs
//! between families, and between a family's folders and GGUF files.

use serde_json::json;

use super::made::{self, folder_of, plain, random, save};
use super::{adapted, distance, logits};
use crate::server::Server;
use crate::support::fixtures;

/// Models as folders and as GGUF files, and the modules of each layer that are adapted.
const CASES: [(&str, &str, &[&str]); 6] = [
    ("llama", "llama", &["q_proj", "k_proj"]),
    ("qwen3", "qwen3", &["q_proj", "k_proj"]),
    ("cohere2", "cohere2-pattern", &["q_proj", "k_proj"]),
    ("glm4", "glm4", &["q_proj", "k_proj"]),
    ("deepseek_v2", "deepseek_v2", &["q_proj", "kv_a_proj_with_mqa", "kv_b_proj"]),
    ("deepseek_v3", "deepseek_v3", &["q_b_proj", "kv_b_proj"]),
];

const RANK: usize = 3;
const ALPHA: f64 = 9.0;

#[tokio::test]
async fn adapters_of_heads_compute_what_merged_ones_do() {
    const TEST: &str = "adapters::heads::adapters_of_heads_compute_what_merged_ones_do";
    let (Some(hf), Some(ggufs)) = (fixtures(TEST, "hf"), fixtures(TEST, "gguf/models")) else { return };
    let server = Server::start(&[("LODE_REFERENCE", "1"), ("LODE_MAX_LOADED_MODELS", "1")]).await;
    for (case, file, modules) in CASES {
        let place = tempfile::tempdir().expect("a temporary folder");
        let model = hf.join(case).join("model");
        let mut weights = made::weights_of(&model);
        let (mut state, mut tensors) = (1, made::Tensors::new());
        for (name, (shape, numbers)) in &mut weights {
            let module = name.trim_end_matches(".weight");
            if !modules.iter().any(|own| module.ends_with(own)) {
                continue;
            }
            let [output, input] = [0, 1].map(|at| usize::try_from(shape[at]).expect("small"));
            let (down, up) = (random(RANK, input, &mut state), random(output, RANK, &mut state));
            made::merge(numbers, &down, &up, ALPHA / RANK as f64);
            tensors.insert(format!("base_model.model.{module}.lora_A.weight"), plain(&down));
            tensors.insert(format!("base_model.model.{module}.lora_B.weight"), plain(&up));
        }
        let adapter = place.path().join("adapter");
        save(&adapter, &tensors, &json!({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA}));
        server.create("merged", &folder_of(&model, &weights, place.path().join("merged"))).await;
        server.create("folder", &model).await;
        server.create("file", &ggufs.join(file).join("model.gguf")).await;
        let expected = logits(&server, "merged").await;
        for base in ["folder", "file"] {
            let without = logits(&server, base).await;
            assert!(distance(&without, &expected) > 0.1, "{case}: the adapter changes next to nothing");
            adapted(&server, "adapted", base, &[&adapter]);
            let found = distance(&logits(&server, "adapted").await, &expected);
            assert!(found < 1e-3, "{case} on {base}: logits differ by {found}");
        }
    }
}
