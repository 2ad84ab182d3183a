//! `create --quantize`: equality with the bytes that MLX writes, reuse of earlier results,
//! interruptions, errors, and sharing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::canonical_blobs::without_golden;
use crate::server::Server;
use crate::stored::{self, created};
use crate::support::{fixtures, list, models, skip};

/// Every type, with the predominant type that the model then reports.
const TYPES: [(&str, &str); 27] = [
    ("int2", "int2"),
    ("int3", "int3"),
    ("int4", "int4"),
    ("int4:64", "int4"),
    ("int5", "int5"),
    ("int6", "int6"),
    ("int8", "int8"),
    ("nvfp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("mxfp8", "mxfp8"),
    ("q4_0", "Q4_0"),
    ("q4_1", "Q4_1"),
    ("q5_0", "Q5_0"),
    ("q5_1", "Q5_1"),
    ("q8_0", "Q8_0"),
    ("q2_k", "Q2_K"),
    ("q4_K", "Q4_K"),
    ("q6_k", "Q6_K"),
    ("iq4_nl", "IQ4_NL"),
    ("iq4_xs", "IQ4_XS"),
    ("q2_K_S", "Q2_K_S"),
    ("q3_K_M", "Q3_K_M"),
    ("q4_K_S", "Q4_K_S"),
    ("q4_K_M", "Q4_K_M"),
    ("q5_K_M", "Q5_K_M"),
    ("f16", "F16"),
    ("bf16", "BF16"),
];

/// The policy of MLX: all matrices are quantized, including embeddings.
const LIKE_MLX: &str = "[[rule]]\nmatch = '(_proj|embed_tokens|lm_head)\\.weight$'\ntype = 'TYPE'\n\
                        [[rule]]\nmatch = '.'\ntype = 'keep'\n";

/// The source of a request's tensors.
fn from_path(path: &Path) -> Value {
    json!({"path": path})
}

fn from_model(name: &str) -> Value {
    json!({"from": name})
}

fn request(name: &str, source: &Value, fields: &Value) -> Value {
    let mut request = json!({"model": name});
    for part in [source, fields] {
        for (key, value) in crate::support::object(part) {
            request[key] = value.clone();
        }
    }
    request
}

/// Creates a model and returns the reported statuses.
async fn quantize(server: &Server, name: &str, source: &Value, fields: Value) -> Vec<String> {
    let request = request(name, source, &fields);
    let lines = server.lines("/api/create", &request).await;
    let last = lines.last().expect("at least a line");
    assert_eq!(last["status"], "success", "{request}: {last}");
    lines.iter().map(|line| line["status"].as_str().expect("a status").to_owned()).collect()
}

/// Returns the error of a request.
async fn refused(server: &Server, source: &Value, fields: Value) -> String {
    let (status, answer) = server.call("/api/create", &request("refused", source, &fields)).await;
    let error = answer["error"].as_str().map_or_else(
        || {
            // The create failed after the response had begun.
            let lines = answer.as_str().unwrap_or_default().lines();
            let last: Value = serde_json::from_str(lines.last().unwrap_or_default()).expect("a line of JSON");
            last["error"].as_str().unwrap_or_else(|| panic!("{status} {last}")).to_owned()
        },
        str::to_owned,
    );
    assert!(status == 400 || status == 200, "{status}: {error}");
    error
}

fn like_mlx(kind: &str) -> Value {
    json!({"quantize": kind, "policy": LIKE_MLX.replace("TYPE", kind)})
}

fn hf(test: &str, name: &str) -> Option<PathBuf> {
    Some(fixtures(test, "hf")?.join(name).join("model"))
}

#[tokio::test]
async fn to_every_type() {
    let Some(llama) = hf("quantize::to_every_type", "llama") else { return };
    let server = Server::start(&[]).await;
    server.create("float", &llama).await;
    let float = created(&server.home(), "float");
    for (kind, file_type) in TYPES {
        let name = format!("m-{}", kind.replace(':', "-").to_lowercase());
        quantize(&server, &name, &from_model("float"), json!({"quantize": kind})).await;
        let model = created(&server.home(), &name);
        let config: Value = serde_json::from_slice(&stored::blob(
            &server.home(),
            model.json["config"]["digest"].as_str().expect("a digest"),
        ))
        .expect("JSON");
        assert_eq!(config["file_type"], file_type, "{kind}");
        let annotations = &model.json["annotations"];
        assert_eq!(annotations["dev.lode.model.quantization"], file_type, "{kind}");
        assert_eq!(annotations["org.opencontainers.image.base.digest"], float.digest.as_str(), "{kind}");
        assert_eq!(model.tensors().len(), float.tensors().len(), "{kind}");
        let types: BTreeSet<&str> =
            list(&model.json["layers"]).iter().filter_map(|layer| layer["mediaType"].as_str()).collect();
        assert!(!types.iter().any(|kind| kind.contains("origin") || kind.contains("header")), "{types:?}");
        let show = server.ask("/api/show", &json!({"model": name})).await;
        assert_eq!(show["details"]["quantization_level"], file_type, "{kind}");
        assert_eq!(config["lode"]["parameter_count"], float_config(&server)["lode"]["parameter_count"], "{kind}");
    }
}

fn float_config(server: &Server) -> Value {
    let float = created(&server.home(), "float");
    let digest = float.json["config"]["digest"].as_str().expect("a digest").to_owned();
    serde_json::from_slice(&stored::blob(&server.home(), &digest)).expect("JSON")
}

#[tokio::test]
async fn what_was_quantized_generates() {
    let Some(llama) = hf("quantize::what_was_quantized_generates", "llama") else { return };
    let server = Server::start(&[]).await;
    for kind in ["q8_0", "q4_K_M", "q4_0", "int4", "mxfp8"] {
        quantize(&server, "m", &from_path(&llama), json!({"quantize": kind})).await;
        let ask = json!({"model": "m", "prompt": "x", "raw": true, "stream": false, "options": {"num_predict": 2}});
        let answer = server.ask("/api/generate", &ask).await;
        assert_eq!(answer["done"], true, "{kind}: {answer}");
    }
}

#[tokio::test]
async fn the_blobs_are_those_of_mlx() {
    let Some(mlx) = fixtures("quantize::the_blobs_are_those_of_mlx", "mlx") else { return };
    let server = Server::start(&[]).await;
    let mixed = "[[rule]]\nmatch = 'down_proj'\ntype = 'int8:32'\n[[rule]]\nmatch = 'lm_head'\ntype = 'keep'\n";
    let mixed = json!({"quantize": "int4:64", "policy": format!("{mixed}{}", LIKE_MLX.replace("TYPE", "int4:64"))});
    for (source, theirs, fields) in [
        ("tiny-llama-bf16", "tiny-llama-4bit-g64", like_mlx("int4:64")),
        ("tiny-llama-bf16", "tiny-llama-4bit-g32", like_mlx("int4")),
        ("tiny-llama-bf16", "tiny-llama-8bit-g64", like_mlx("int8")),
        ("tiny-llama-bf16", "tiny-llama-nvfp4", like_mlx("nvfp4")),
        ("tiny-llama-bf16", "tiny-llama-mxfp4", like_mlx("mxfp4")),
        ("tiny-llama-bf16", "tiny-llama-mxfp8", like_mlx("mxfp8")),
        ("tiny-llama-tied-bf16", "tiny-llama-tied-4bit-g64", like_mlx("int4:64")),
        ("tiny-llama-bf16", "tiny-llama-mixed", mixed),
    ] {
        server.create("theirs", without_golden(&mlx.join(theirs)).path()).await;
        let folder = without_golden(&mlx.join(source));
        let told = quantize(&server, "ours", &from_path(folder.path()), fields).await;
        let (ours, theirs_stored) = (created(&server.home(), "ours"), created(&server.home(), "theirs"));
        assert_eq!(ours.tensors(), theirs_stored.tensors(), "{theirs}");
        // All blobs existed already.
        assert!(told.iter().any(|status| status.contains("nothing was written")), "{theirs}: {told:?}");
    }
}

#[tokio::test]
async fn the_same_request_again_writes_nothing() {
    let Some(llama) = hf("quantize::the_same_request_again_writes_nothing", "llama") else { return };
    let server = Server::start(&[]).await;
    let fields = json!({"quantize": "q4_0"});
    quantize(&server, "first", &from_path(&llama), fields.clone()).await;
    let first = created(&server.home(), "first");
    for fields in [fields.clone(), json!({"quantize": "Q4_0", "no_cache": true})] {
        let told = quantize(&server, "second", &from_path(&llama), fields.clone()).await;
        assert!(told.iter().any(|status| status.contains("nothing was written")), "{fields}: {told:?}");
        assert_eq!(created(&server.home(), "second").raw, first.raw, "{fields}");
    }
    // Quantization of a stored model gives the same tensors, regardless of its source, also after a
    // restart.
    server.create("float", &llama).await;
    let server = server.restart(&[]).await;
    let told = quantize(&server, "third", &from_model("float"), fields).await;
    assert!(told.iter().any(|status| status.contains("nothing was written")), "{told:?}");
    assert_eq!(created(&server.home(), "third").tensors(), first.tensors());
}

#[tokio::test]
async fn a_dry_run_writes_nothing() {
    let Some(llama) = hf("quantize::a_dry_run_writes_nothing", "llama") else { return };
    let server = Server::start(&[]).await;
    let before = stored::blobs(&server.home());
    let policy = "[[rule]]\nmatch = 'nothing'\ntype = 'keep'\n";
    let fields = json!({"quantize": "int4", "dry_run": true, "policy": policy});
    let plan = server.ask("/api/create", &request("m", &from_path(&llama), &fields)).await;
    assert_eq!(plan["quantize"], "int4");
    assert_eq!(plan["unused_rules"], json!(["line 2: `nothing`"]));
    let head = list(&plan["tensors"]).iter().find(|t| t["name"] == "lm_head.weight").expect("the output matrix");
    assert_eq!((&head["to"], &head["from"]), (&json!("int8:64"), &json!("F32")), "{head}");
    let norm = list(&plan["tensors"]).iter().find(|t| t["name"] == "model.norm.weight").expect("a norm");
    assert_eq!((&norm["to"], &norm["reason"]), (&json!("F32"), &json!("precision")), "{norm}");
    let number = |key: &str| plan[key].as_u64().expect("a number");
    assert_eq!(number("encoded") + number("kept"), list(&plan["tensors"]).len() as u64);
    assert!(number("after") < number("before"));

    let path = llama.to_str().expect("UTF-8");
    let table = server.lode(&["create", "m", "-f", path, "-q", "int4", "--dry-run"]);
    let text = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.status.success() && text.starts_with("TENSOR"), "{text}{}", String::from_utf8_lossy(&table.stderr));
    assert!(text.lines().any(|line| line.starts_with("lm_head.weight") && line.contains("int8:64")), "{text}");
    let document = server.lode(&["create", "m", "-f", path, "-q", "int4", "--dry-run", "--format", "json"]);
    let document: Value = serde_json::from_slice(&document.stdout).expect("JSON");
    assert_eq!(document["tensors"], plan["tensors"]);
    assert_eq!(stored::blobs(&server.home()), before);
    assert!(stored::tags(&server.home()).is_empty());
}

#[tokio::test]
async fn an_interrupted_create_goes_on() {
    let Some(llama) = hf("quantize::an_interrupted_create_goes_on", "llama") else { return };
    let server = Server::start(&[]).await;
    server.create("float", &llama).await;
    // One of the last matrices cannot be read; other matrices are complete before the create fails.
    let float = created(&server.home(), "float");
    let is_victim = |layer: &&Value| layer["name"] == "model.layers.1.mlp.down_proj.weight";
    let victim = list(&float.json["layers"]).iter().find(is_victim).expect("a matrix");
    let victim = victim["digest"].as_str().expect("a digest").to_owned();
    let bytes = stored::blob(&server.home(), &victim);
    let hex = victim.trim_start_matches("sha256:");
    let path = server.home().join("blobs/sha256").join(&hex[..2]).join(hex);
    fs::remove_file(&path).expect("the blob can be removed");
    let fields = json!({"quantize": "q4_0"});
    let error = refused_late(&server, &from_model("float"), &fields).await;
    assert!(error.contains(hex), "{error}");
    fs::write(&path, bytes).expect("the blob can be put back");

    let kept = stored::blobs(&server.home());
    let gone = server.ask("/api/lode/gc", &json!({"dry_run": false})).await;
    assert_eq!(stored::blobs(&server.home()), kept, "a lease keeps what was complete: {gone}");
    let told = quantize(&server, "m", &from_model("float"), fields.clone()).await;
    let summary = told.iter().find(|status| status.contains("are new")).expect("something was left to do");
    let new: usize = summary.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    let whole = created(&server.home(), "m").tensors();
    let quantized = whole.difference(&float.tensors()).count();
    assert!(new < quantized, "{summary}, {quantized} in all");
}

/// Returns the error of a create that fails after its response has begun.
async fn refused_late(server: &Server, source: &Value, fields: &Value) -> String {
    let lines = server.lines("/api/create", &request("refused", source, fields)).await;
    let last = lines.last().expect("at least a line");
    last["error"].as_str().unwrap_or_else(|| panic!("it was to fail: {last}")).to_owned()
}

#[tokio::test]
async fn a_fine_tune_computes_only_its_own_tensors() {
    let test = "quantize::a_fine_tune_computes_only_its_own_tensors";
    let (Some(base), Some(tuned)) = (hf(test, "qwen3_moe"), hf(test, "qwen3_moe-ft")) else { return };
    let server = Server::start(&[]).await;
    for (name, path) in [("base", &base), ("tuned", &tuned)] {
        server.create(name, path).await;
    }
    let own = created(&server.home(), "tuned").tensors().difference(&created(&server.home(), "base").tensors()).count();
    let fields = json!({"quantize": "q8_0"});
    quantize(&server, "base-q", &from_path(&base), fields.clone()).await;
    let told = quantize(&server, "tuned-q", &from_path(&tuned), fields).await;
    let (base, tuned) = (created(&server.home(), "base-q").tensors(), created(&server.home(), "tuned-q").tensors());
    assert!(own > 0 && tuned.difference(&base).count() <= own, "{own} tensors differ: {told:?}");
    assert!(tuned.intersection(&base).count() > 0);
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let Some(llama) = hf("quantize::refusals_say_what_to_do", "llama") else { return };
    let Some(mlx) = fixtures("quantize::refusals_say_what_to_do", "mlx") else { return };
    let server = Server::start(&[]).await;
    let (float, quantized) = (from_path(&llama), from_path(&mlx.join("tiny-llama-8bit-g64")));
    for (source, fields, expect) in [
        (&float, json!({"quantize": "q9_0"}), "known: int2"),
        (&float, json!({"quantize": "int4", "policy": "[[rule]]\nmatch = '('\ntype = 'keep'"}), "line 2"),
        (&float, json!({"policy": ""}), "'policy' needs 'quantize'"),
        (&float, json!({"requantize": true}), "'requantize' needs 'quantize'"),
        (&float, json!({"dry_run": true}), "'dry_run' needs 'quantize'"),
        (&quantized, json!({"quantize": "q4_0", "stream": false}), "--requantize"),
        (
            &float,
            json!({"quantize": "int4", "stream": false, "policy": "[[rule]]\nmatch = 'norm'\ntype = 'int4'"}),
            "expected a matrix",
        ),
    ] {
        let error = refused(&server, source, fields.clone()).await;
        assert!(error.contains(expect), "{fields}: {error}");
    }
    assert!(stored::tags(&server.home()).is_empty());
    quantize(&server, "again", &quantized, json!({"quantize": "q4_0", "requantize": true})).await;
}

/// The mix gives the tensors the same types as a published file of that name.
#[tokio::test]
async fn a_mix_is_that_of_a_published_file() {
    let test = "quantize::a_mix_is_that_of_a_published_file";
    let Some(file) = models().map(|folder| folder.join("gemma3-270m-q4_k_m.gguf")).filter(|file| file.is_file()) else {
        skip(test, "there is no gemma3-270m-q4_k_m.gguf among the models");
        return;
    };
    let server = Server::start(&[]).await;
    let fields = json!({"quantize": "q4_k_m", "requantize": true, "dry_run": true});
    let plan = server.ask("/api/create", &request("m", &from_path(&file), &fields)).await;
    let others: Vec<String> = list(&plan["tensors"])
        .iter()
        .filter(|tensor| tensor["from"] != tensor["to"])
        .map(|tensor| format!("{} {} -> {}", tensor["name"], tensor["from"], tensor["to"]))
        .collect();
    assert!(others.is_empty(), "{others:#?}");
    assert!(list(&plan["tensors"]).len() > 100);
}
