//! Exports of folders whose models see pictures: the model's GGUF file and its projector file
//! answer as the folder does.

use serde_json::{Value, json};

use super::{check_same, with_tokens};
use crate::export::exported;
use crate::server::{Server, in_float32};
use crate::support::{fixtures, json as read_json, list, object, root};

/// Models, the tokens of their pictures, and the largest difference between logarithms of
/// probabilities.
fn cases() -> Vec<(&'static str, Value, f64)> {
    let qwen = json!({"<|vision_start|>": 308, "<|vision_end|>": 309, "<|image_pad|>": 310});
    let idefics = json!({"<fake_token_around_image>": 308, "<global-img>": 309, "<image>": 310});
    vec![
        ("gemma3", json!({"<image_soft_token>": 310, "<start_of_image>": 311, "<end_of_image>": 312}), 1e-3),
        ("idefics3", idefics.clone(), 1e-3),
        ("internvl", json!({"<img>": 308, "</img>": 309, "<IMG_CONTEXT>": 310}), 1e-3),
        ("llava", json!({"<image>": 310}), 1e-3),
        ("llava_next", json!({"<image>": 310}), 1e-3),
        // Files have one key for both forms of GELU.
        ("ministral3", json!({"[IMG]": 310, "[IMG_BREAK]": 311, "[IMG_END]": 312}), 1e-2),
        ("qwen2_5_vl", qwen.clone(), 1e-3),
        ("qwen3_vl", qwen, 1e-3),
        ("smolvlm", idefics, 1e-3),
    ]
}

#[tokio::test]
async fn a_folder_becomes_a_model_and_its_projector() {
    let Some(zoo) = fixtures("pictures::exports::a_folder_becomes_a_model_and_its_projector", "zoo2026") else {
        return;
    };
    let server = Server::start(&[in_float32(), ("LODE_KV_CACHE_TYPE", "f32")]).await;
    let golden = read_json(&root().join("tests/pictures/towers.json"));
    let place = tempfile::tempdir().expect("a folder");
    for (model, tokens, tolerance) in cases() {
        let golden = list(&golden).iter().find(|case| case["model"] == model).expect("a case");
        let mut settings = golden["settings"].clone();
        if model == "llava" {
            // Files have one size; the processors of published models have it as the shorter side,
            // too.
            settings["size"]["shortest_edge"] = settings["crop_size"]["height"].clone();
        }
        let folder = with_tokens(&zoo, model, object(&tokens), &settings);
        if model == "ministral3" {
            // The decoder of Mistral Small 3.1, whose rotary embedding has a form in GGUF.
            let path = folder.path().join("config.json");
            let mut config = read_json(&path);
            let text = config["text_config"].as_object_mut().expect("a config");
            text.insert("model_type".to_owned(), "mistral".into());
            text.insert("rope_parameters".to_owned(), json!({"rope_type": "default", "rope_theta": 10000.0}));
            std::fs::write(path, config.to_string()).expect("a file");
        }
        server.create(model, folder.path()).await;
        // The last layers of LLaVA, and the heads of other towers, are left out.
        let to = place.path().join(model);
        exported(&server, model, &to, &["--format", "gguf", "--lossy"]);
        let files: Vec<_> = std::fs::read_dir(&to).expect("a folder").filter_map(Result::ok).collect();
        assert_eq!(files.len(), 2, "{model}: {files:?}");
        let name = format!("{model}-gguf");
        server.create(&name, &to).await;
        check_same(&server, &name, model, tolerance).await;
    }
}
