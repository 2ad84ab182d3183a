//! `lode plan`: the memory that a model would need, for models in the store and before a pull.

use formats::GgmlType;
use formats::gguf::{NewTensor, OwnedValue, write_header};
use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::maintenance::done;
use crate::server::Server;
use crate::smollm2;
use crate::stored;
use crate::support::{list, say, tiny_model};

const GIB: u64 = 1 << 30;

/// Runs `lode plan … --format json`.
fn plan(server: &Server, arguments: &[&str]) -> Value {
    let output = server.lode(&[&["plan"][..], arguments, &["--format", "json"][..]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{arguments:?}: {e}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("expected a number: {value}"))
}

/// Returns the bytes of all tensors of a model.
async fn tensor_bytes(server: &Server, model: &str) -> u64 {
    let shown = server.ask("/api/show", &json!({"model": model, "verbose": true})).await;
    list(&shown["tensors"]).iter().map(|tensor| number(&tensor["size"])).sum()
}

#[tokio::test]
async fn a_model_of_the_store() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let weights = tensor_bytes(&server, "tiny").await;

    let cpu = plan(&server, &["tiny", "--ctx", "128", "--parallel", "3", "--kv", "q8_0"]);
    assert_eq!(
        (&cpu["source"], &cpu["architecture"], &cpu["context"]),
        (&json!("store"), &json!("llama"), &json!(128))
    );
    let exact = &cpu["exact"];
    assert_eq!((&exact["layers"], &exact["layers_on_devices"]), (&json!(3), &json!(0)));
    assert_eq!(number(&exact["weights"]), weights, "the embedding is the output and counts once");
    // Layers, keys and values, key heads, tokens of three slots, and a block of 34 bytes for the 16
    // elements of a head.
    assert_eq!(number(&exact["kv_cache"]), 2 * 2 * 2 * 128 * 3 * 34);
    assert_eq!(number(&exact["in_system"]), number(&exact["private"]) + weights);
    assert_eq!(exact["total"], exact["in_system"]);
    // Ollama counts a byte for each element.
    assert_eq!(number(&cpu["ollama"]["kv_cache"]), 2 * 2 * 2 * 128 * 3 * 16);

    let gpu = plan(&server, &["tiny", "--gpu", "24GiB"]);
    assert_eq!(gpu["context"], 256, "the model knows no more");
    for estimate in ["ollama", "exact"] {
        assert_eq!(gpu[estimate]["layers_on_devices"], 3, "{estimate}");
        assert_eq!(number(&gpu[estimate]["devices"][0]["free"]), 24 * GIB);
        assert_eq!(gpu[estimate]["on_devices"], gpu[estimate]["devices"][0]["total"]);
    }
    // Llama's formula for a batch and a context of 256 tokens each, where the attention term is the
    // larger one.
    let graph = |b: u64, c: u64, e: u64, h: u64| 4 * b * (1 + 4 * e + c * (1 + h));
    assert_eq!(number(&gpu["ollama"]["graph"]), graph(256, 256, 64, 4));
    assert_eq!(number(&gpu["ollama"]["kv_cache"]), 2 * 256 * (16 + 16) * 2 * 2);

    let small = plan(&server, &["tiny", "--gpu", "457MiB"]);
    assert_eq!(small["exact"]["layers_on_devices"], 0, "that much is kept free on every device");
}

#[tokio::test]
async fn a_model_before_it_is_pulled() {
    let source = Server::start(&[]).await;
    source.create("tiny", &tiny_model()).await;
    let gateway = Gateway::to(&source.address);
    let target = Server::start(&[]).await;
    let name = format!("{}/library/tiny", gateway.address);
    let asked = ["--gpu", "1GiB", "--gpu", "2GB", "--ctx", "200"];
    let (there, here) = (
        plan(&target, &[&[name.as_str()][..], &asked[..]].concat()),
        plan(&source, &[&["tiny"][..], &asked[..]].concat()),
    );
    let manifest = stored::created(&source.home(), "tiny");
    let fetched = gateway.fetched();
    assert!(fetched.is_disjoint(&manifest.tensors()), "no tensor is fetched: {fetched:?}");
    assert!(stored::blobs(&target.home()).is_empty(), "nothing is kept");
    assert_eq!((&there["source"], &there["digest"]), (&json!("registry"), &here["digest"]));
    for estimate in ["ollama", "exact"] {
        for field in ["layers", "layers_on_devices", "kv_cache", "graph", "process"] {
            assert_eq!(there[estimate][field], here[estimate][field], "{field} of {estimate}");
        }
        // Before the pull, only the sizes of the blobs are known, which include their headers.
        let (there, here) = (number(&there[estimate]["weights"]), number(&here[estimate]["weights"]));
        assert!(there > here && there < here + 256 * manifest.tensors().len() as u64, "{there} and {here}");
    }
}

#[tokio::test]
async fn ollamas_settings_of_devices_count() {
    let devices = ["tiny", "--gpu", "600MiB", "--gpu", "600MiB", "--kv", "q8_0"];
    let planned = async |environment: &[(&str, &str)]| {
        let server = Server::start(environment).await;
        server.create("tiny", &tiny_model()).await;
        plan(&server, &devices)
    };
    let used = |plan: &Value, estimate: &str| {
        let devices = list(&plan[estimate]["devices"]);
        devices.iter().filter(|device| number(&device["layers"]) > 0).count()
    };
    let plain = planned(&[]).await;
    let other = planned(&[
        ("OLLAMA_SCHED_SPREAD", "yes"),
        ("OLLAMA_FLASH_ATTENTION", "false"),
        ("OLLAMA_GPU_OVERHEAD", "0"),
        ("OLLAMA_NUM_PARALLEL", "0"),
    ])
    .await;
    for estimate in ["ollama", "exact"] {
        assert_eq!((used(&plain, estimate), used(&other, estimate)), (1, 2), "{estimate}");
    }
    // One byte per element instead of two.
    assert_eq!(2 * number(&plain["ollama"]["kv_cache"]), number(&other["ollama"]["kv_cache"]));
    assert_eq!(plain["exact"]["kv_cache"], other["exact"]["kv_cache"]);
    let full = planned(&[("LODE_GPU_OVERHEAD", "200MiB")]).await;
    for estimate in ["ollama", "exact"] {
        assert_eq!(full[estimate]["layers_on_devices"], 0, "{estimate}: 600 MiB less 457 and 200 are none");
    }
}

#[tokio::test]
async fn a_registry_that_cannot_be_asked_is_to_blame() {
    let (server, other) = (Server::start(&[]).await, Server::start(&[]).await);
    let nobody = format!("127.0.0.1:{}", crate::server::free_port());
    for (name, expect, says) in [
        (format!("{nobody}/library/x"), 502, nobody.as_str()),
        (format!("{}/library/x", other.address), 404, "not found"),
    ] {
        let (status, answer) = server.call("/api/lode/plan", &json!({"model": name, "insecure": true})).await;
        assert_eq!(status, expect, "{name}: {answer}");
        assert!(answer.to_string().contains(says), "{answer} should say {says}");
    }
}

#[tokio::test]
async fn a_table_for_people() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let output = server.lode(&["plan", "tiny", "--gpu", "24GiB", "--gpu", "2GB", "--ctx", "4096"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let has = |words: &[&str]| text.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has(&["OLLAMA", "EXACT"]), "{text}");
    assert!(has(&["layers on devices", "3 of 3"]), "{text}");
    assert!(has(&["device 0 (24.00 GiB)", "layers"]) && has(&["device 1 (1.86 GiB)"]), "{text}");
    assert!(has(&["note: the model supports 256 tokens, 4096 were requested"]), "{text}");
}

#[tokio::test]
async fn what_is_wrong_is_said() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    for (arguments, code, says) in [
        (vec!["tiny", "--gpu", "big"], 2, "expected e.g. 5GB"),
        (vec!["tiny", "--kv", "q2_k"], 1, "expected one of f32, f16, bf16, q8_0"),
        (vec!["tiny", "--ctx", "0"], 1, "expected 1 to"),
        (vec!["127.0.0.1:9/library/nope"], 1, "127.0.0.1:9"),
    ] {
        let output = server.lode(&[&["plan"][..], &arguments[..]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(says), "{arguments:?}: {error}");
    }
}

/// Returns a GGUF file that Lode cannot run, because it lacks tensors.
fn gemma3n(folder: &std::path::Path) -> std::path::PathBuf {
    let number = |key: &str, number: u32| (format!("gemma3n.{key}"), OwnedValue::from(number));
    let keys = [
        ("general.architecture".to_owned(), OwnedValue::from("gemma3n")),
        number("block_count", 2),
        number("embedding_length", 64),
        number("attention.head_count", 4),
        number("attention.head_count_kv", 2),
        number("context_length", 512),
        ("tokenizer.ggml.tokens".to_owned(), OwnedValue::texts((0..100).map(|n| n.to_string()))),
    ];
    let tensor =
        |name: &str, dims: &[u64]| NewTensor { name: name.to_owned(), kind: GgmlType::F32, dims: dims.to_vec() };
    let tensors = [
        tensor("token_embd.weight", &[64, 100]),
        tensor("blk.0.attn_q.weight", &[64, 64]),
        tensor("blk.1.attn_q.weight", &[64, 64]),
        tensor("output_norm.weight", &[64]),
    ];
    let header = write_header(&keys, &tensors).expect("a header");
    let mut bytes = header.bytes;
    bytes.resize(bytes.len() + usize::try_from(header.data_size).expect("small"), 1);
    let path = folder.join("gemma3n.gguf");
    std::fs::write(&path, bytes).expect("a file");
    path
}

#[tokio::test]
async fn a_file_that_cannot_be_run() {
    let server = Server::start(&[]).await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    server.create("other", &gemma3n(folder.path())).await;
    let plan = plan(&server, &["other", "--ctx", "128", "--gpu", "24GiB"]);
    assert!(plan.get("exact").is_none(), "{plan}");
    let notes = plan["notes"].to_string();
    assert!(notes.contains("there is no `blk.0.laurel_l.weight`"), "{notes}");
    let ollama = &plan["ollama"];
    assert_eq!(ollama["layers_on_devices"], 3);
    assert_eq!(number(&ollama["kv_cache"]), 2 * 128 * (16 + 16) * 2 * 2);
    assert_eq!(number(&ollama["weights"]), 4 * (2 * 64 * 64 + 64 + 64 * 100));
    assert_eq!(number(&ollama["graph"]), 4 * 4 * 128 * (2 + 2 * 64 + 2 * 16 * 4 + 128 * 5));
}

#[tokio::test]
async fn a_real_model() {
    let Some((_, model)) = smollm2::inputs("plan::a_real_model") else { return };
    let server = Server::start(&[]).await;
    server.create("smollm2", &model).await;
    let plan = plan(&server, &["smollm2", "--gpu", "24GiB"]);
    assert_eq!(plan["context"], 4096);
    let (ollama, exact) = (&plan["ollama"], &plan["exact"]);
    assert_eq!((&ollama["layers_on_devices"], &exact["layers_on_devices"]), (&json!(31), &json!(31)));
    for estimate in [ollama, exact] {
        assert_eq!(number(&estimate["kv_cache"]), 30 * 4096 * (64 + 64) * 3 * 2);
    }
    // The logits are the larger term of the formula.
    assert_eq!(number(&ollama["graph"]), 4 * 512 * (576 + 49_152));
    let mapped = number(&exact["in_system"]) - number(&exact["private"]);
    assert_eq!(number(&exact["weights"]), number(&ollama["weights"]) + mapped, "the embedding is there and here");
}

/// Returns the bytes of a process's memory that no file backs.
#[cfg(target_os = "linux")]
fn anonymous(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).expect("a runner of this user");
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("the kernel counts it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB") << 10
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_runner_takes_what_was_planned() {
    let Some((_, model)) = smollm2::inputs("plan::a_runner_takes_what_was_planned") else { return };
    let server = Server::start(&[("LODE_KV_CACHE_TYPE", "f32"), ("LODE_NUM_PARALLEL", "1")]).await;
    server.create("gguf", &model).await;
    let place = tempfile::tempdir().expect("a temporary folder");
    let folder = place.path().join("hf");
    let to = folder.to_str().expect("text");
    done(&server, &["export", "gguf", "--to", to, "--format", "safetensors", "--dtype", "f16", "--lossy"]);
    server.create("hf", &folder).await;
    // The memory that the allocator retains from a `tokenizer.json` depends on the timing of the
    // threads during the load.
    for (name, tolerance) in [("gguf", 0.05), ("hf", 0.15)] {
        let mut ratios = Vec::new();
        while ratios.last().is_none_or(|ratio: &f64| (ratio - 1.0).abs() > tolerance) {
            assert!(ratios.len() < 4, "{name}: none of these is within {tolerance} of the plan: {ratios:?}");
            ratios.push(compared(&server, name).await);
        }
    }
}

/// Returns the ratio of a runner's memory to the plan.
#[cfg(target_os = "linux")]
async fn compared(server: &Server, model: &str) -> f64 {
    let plan = plan(server, &[model, "--ctx", "512", "--kv", "f32"]);
    let planned = number(&plan["exact"]["private"]);
    // The kernel allocates the KV cache page by page, so the prompt must nearly fill it.
    let prompt = "the quick brown fox jumps over the lazy dog and then ".repeat(45);
    let options = json!({"num_ctx": 512, "num_predict": 4, "temperature": 0});
    let request = json!({"model": model, "prompt": prompt, "raw": true, "stream": false, "options": options});
    let answer = server.ask("/api/generate", &request).await;
    let tokens = number(&answer["prompt_eval_count"]);
    assert!((450..512).contains(&tokens), "{tokens} tokens fill the context");
    let taken = anonymous(server.runner_pid().await);
    let ratio = taken as f64 / planned as f64;
    say(&format!("{model}: planned {planned} bytes of private memory, the runner has {taken}: {ratio:.3}"));
    let unload = json!({"model": model, "keep_alive": 0, "stream": false});
    server.ask("/api/generate", &unload).await;
    ratio
}
