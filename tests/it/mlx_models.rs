//! Tiny MLX models in all its encodings, compared with MLX: logits and greedy continuations.

use std::path::Path;

use formats::safetensors::Header;

use crate::canonical_blobs::without_golden;
use crate::server::{Runner, Server};
use crate::support::{entries, fixtures, name, read, say, skip};

/// The number of models in the fixtures.
const MODELS: usize = 10;
/// The largest difference of a logit from MLX in float32, from the fixtures' README.
const TOLERANCE: f32 = 1e-3;
/// The least cosine similarity of all logits with activations that are rounded to 8 bits.
const COSINE: f64 = 0.99;

/// MLX's results for a model.
struct Golden {
    tokens: Vec<u64>,
    /// `[tokens, vocabulary]`, computed in float32 throughout.
    logits: Vec<f32>,
    /// The greedy continuation.
    greedy: Vec<u64>,
}

impl Golden {
    fn of(model: &Path) -> Self {
        let raw = read(&model.join("golden.safetensors"));
        let header = Header::parse(&raw, raw.len() as u64).expect("golden tensors");
        let words = |name: &str| -> Vec<[u8; 4]> {
            let tensor = header.tensor(name).unwrap_or_else(|| panic!("{name} is missing"));
            let at = usize::try_from(header.data_start + tensor.begin).expect("small");
            let size = usize::try_from(tensor.size()).expect("small");
            raw[at..at + size].as_chunks().0.to_vec()
        };
        let ids = |name| words(name).into_iter().map(|word| u64::from(u32::from_le_bytes(word))).collect();
        let logits = words("logits.f32").into_iter().map(f32::from_le_bytes).collect();
        Self { tokens: ids("tokens"), logits, greedy: ids("greedy") }
    }
}

#[tokio::test]
async fn reference_mode_agrees_with_mlx() {
    let Some(folder) = fixtures("mlx_models::reference_mode_agrees_with_mlx", "mlx") else { return };
    let server = Server::start(&[("LODE_REFERENCE", "1"), ("LODE_MAX_LOADED_MODELS", "1")]).await;
    for model in models(&folder) {
        let (name, golden) = (name(&model), Golden::of(&model));
        let runner = load(&server, &model).await;
        for stepwise in [false, true] {
            let logits = runner.logits(&golden.tokens, stepwise).await.concat();
            assert_eq!(logits.len(), golden.logits.len(), "{name}");
            let worst = logits.iter().zip(&golden.logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= TOLERANCE, "{name}: off by {worst}");
        }
        let (ids, _) = runner.greedy(&golden.tokens, golden.greedy.len()).await;
        assert_eq!(ids, golden.greedy, "{name}");
    }
}

#[tokio::test]
async fn normal_mode_is_close_to_mlx() {
    let Some(folder) = fixtures("mlx_models::normal_mode_is_close_to_mlx", "mlx") else { return };
    let server = Server::start(&[("LODE_MAX_LOADED_MODELS", "1")]).await;
    for model in models(&folder) {
        let (name, golden) = (name(&model), Golden::of(&model));
        let runner = load(&server, &model).await;
        let logits = runner.logits(&golden.tokens, false).await.concat();
        assert_eq!(logits.len(), golden.logits.len(), "{name}");
        let cosine = cosine(&logits, &golden.logits);
        say(&format!("{name}, normal mode: cosine of logits {cosine:.6}"));
        assert!(cosine > COSINE, "{name}: cosine {cosine}");
    }
}

fn models(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut models = entries(folder);
    models.retain(|model| model.is_dir());
    assert_eq!(models.len(), MODELS, "models in `{}`", folder.display());
    models
}

async fn load(server: &Server, model: &Path) -> Runner {
    let name = name(model);
    server.create(&name, without_golden(model).path()).await;
    server.runner(&name).await
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Cases in which `mlx_lm` deviates from the original implementation. It ignores sliding windows
/// and `OLMoE`'s clipping, always uses Phi 3's factors for long sequences, and rounds the ends of
/// gpt-oss's frequency ramp. Their reference values come from Hugging Face.
const OTHERWISE: [(&str, &str); 10] = [
    ("gpt_oss-mxfp4", "s5"),
    ("gpt_oss-mxfp4", "s37"),
    ("olmoe", "s5"),
    ("olmoe", "s37"),
    ("gemma2", "s37"),
    ("mistral", "s37"),
    ("phi3", "s37"),
    ("starcoder2", "s37"),
    ("phi3-longrope", "s5"),
    ("phi3-longrope", "s37"),
];
/// The largest difference of a logit from `mlx_lm` in float32. Its GELU is not the variant that
/// Gemma's configs name.
const CONVERTED: f32 = 4e-3;

/// Fixtures that `mlx_lm` converts, as floats and to 4 bits, compared with its logits in float32.
#[tokio::test]
async fn conversions_of_mlx_lm_compute_what_it_does() {
    const TEST: &str = "mlx_models::conversions_of_mlx_lm_compute_what_it_does";
    let Some(hf) = fixtures(TEST, "hf") else { return };
    let Some(python) = std::env::var_os("LODE_TEST_MLX") else {
        return skip(TEST, "LODE_TEST_MLX names no Python with the package `mlx_lm`; scripts/test makes one");
    };
    let out = tempfile::tempdir().expect("a temporary folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/mlx_conversions.py");
    let made = std::process::Command::new(python).arg(script).arg(&hf).arg(out.path()).output().expect("it starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let server = Server::start(&[("LODE_REFERENCE", "1"), ("LODE_MAX_LOADED_MODELS", "1")]).await;
    let (mut wrong, mut count) = (Vec::new(), 0);
    for folder in entries(out.path()) {
        if !folder.join("golden.safetensors").is_file() {
            continue;
        }
        count += 1;
        let name = name(&folder);
        let fixture = hf.join(name.trim_end_matches("-4bit"));
        let facts: serde_json::Value = serde_json::from_slice(&read(&fixture.join("golden.json"))).expect("JSON");
        server.create(&name, &folder.join("model")).await;
        let (status, answer) = server.call("/api/generate", &serde_json::json!({"model": name, "stream": false})).await;
        if status != 200 {
            wrong.push(format!("{name}: {answer}"));
            continue;
        }
        let runner = server.runner(&name).await;
        for sequence in ["s5", "s37"] {
            let tokens = crate::support::numbers(&facts["sequences"][sequence]["input_ids"]);
            let plain = name.trim_end_matches("-4bit");
            let otherwise = OTHERWISE.contains(&(plain, sequence));
            if otherwise && plain != name {
                continue;
            }
            let golden = if otherwise { &fixture } else { &folder };
            let expected = crate::fixture_models::golden(golden, &format!("logits.{sequence}"));
            let found = runner.logits(&tokens, false).await.concat();
            let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            if found.len() != expected.len() || worst > CONVERTED {
                wrong.push(format!("{name} {sequence}: off by {worst}"));
            }
        }
    }
    say(&format!("{count} conversions; mlx_lm does not know {}", String::from_utf8_lossy(&made.stdout).trim()));
    assert!(count >= 60 && wrong.is_empty(), "{count} conversions, {wrong:#?}");
}
