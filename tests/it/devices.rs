//! Layers on GPUs, and weights on GPUs that several models share. The kernels run on the emulated
//! device, with real daemons, runners and holders, isolated as with a GPU. If `LODE_TEST_DEVICE`
//! names a GPU, the tests for a single GPU run on that.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::server::{LODE, Server};
use crate::support::{entries, list, name, read, skip, tiny_model};

/// Returns the GPU that replaces the emulated device, if any.
fn gpu() -> Option<String> {
    std::env::var("LODE_TEST_DEVICE").ok()
}

/// Returns the device for a test that needs one.
fn device(emulated: &str) -> String {
    gpu().unwrap_or_else(|| emulated.to_owned())
}

/// Returns the kernels for a test that needs several devices or a device of a certain size. A
/// single GPU is not suitable.
fn kernels_of_several(test: &str) -> Option<String> {
    if gpu().is_some() {
        skip(test, "it takes emulated devices");
        return None;
    }
    kernels(test)
}

/// Returns a folder with the kernels for the emulated device. They are compiled once per machine.
fn kernels(test: &str) -> Option<String> {
    if gpu().is_some() {
        return Some(std::env::var("LD_LIBRARY_PATH").unwrap_or_default());
    }
    let folder = std::env::temp_dir().join("lode-kernels");
    std::fs::create_dir_all(&folder).expect("a folder");
    let runner = Path::new(&*LODE).with_file_name("lode-runner");
    let compiled = Command::new(runner).arg("--emulator").arg(&folder).output().expect("the runner starts");
    if !compiled.status.success() {
        skip(test, &format!("kernels are not compiled: {}", String::from_utf8_lossy(&compiled.stderr)));
        return None;
    }
    Some(folder.to_str().expect("UTF-8").to_owned())
}

async fn server(kernels: &str, environment: &[(&str, &str)]) -> Server {
    let own = [("LD_LIBRARY_PATH", kernels), ("LODE_LOG", "info")];
    Server::start(&[&own, environment].concat()).await
}

/// Constrained output and sampling work with the best logits, which the device selects.
#[tokio::test]
async fn answers_are_held_to_what_they_are_asked_for() {
    let Some(kernels) = kernels("answers on a device") else { return };
    let server = server(&kernels, &[("LODE_DEVICE", &device("emulated:600"))]).await;
    server.create("tiny", &tiny_model()).await;
    let schema = json!({"type": "object", "properties": {"colour": {"enum": ["red", "green"]}, "many": {"type": "boolean"}},
        "required": ["colour", "many"]});
    let options = |extra: Value| {
        let mut all = json!({"num_predict": 60, "seed": 5, "repeat_penalty": 1.2, "presence_penalty": 0.1});
        all.as_object_mut().expect("options").extend(extra.as_object().expect("options").clone());
        all
    };
    for extra in [json!({}), json!({"top_k": 0}), json!({"temperature": 0}), json!({"top_k": 0, "top_p": 1.0})] {
        let options = options(extra);
        let request = json!({"model": "tiny", "prompt": "Hello", "raw": true, "stream": false, "format": schema,
            "options": options});
        let [first, again] = [server.ask("/api/generate", &request).await, server.ask("/api/generate", &request).await];
        let text = first["response"].as_str().expect("an answer");
        let told: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{options}: `{text}`: {error}"));
        assert!(told["many"].is_boolean() && ["red", "green"].contains(&told["colour"].as_str().unwrap_or_default()));
        assert_eq!(first["response"], again["response"], "the same seed: {options}");
    }
    let logprobs = json!({"model": "tiny", "prompt": "Hello", "raw": true, "stream": false, "logprobs": true,
        "top_logprobs": 3, "options": {"num_predict": 2, "temperature": 0}});
    let told = server.ask("/api/generate", &logprobs).await;
    assert_eq!(told["logprobs"][0]["top_logprobs"].as_array().map(Vec::len), Some(3), "{told}");
}

/// Returns the tiny model with changed down projections: a fine-tune that shares all other weights.
fn fine_tune() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for path in entries(&tiny_model()) {
        let mut bytes = read(&path);
        if name(&path).ends_with("safetensors") {
            change(&mut bytes, "mlp.down_proj.weight");
        }
        std::fs::write(folder.path().join(name(&path)), bytes).expect("a copy");
    }
    folder
}

/// Changes the lowest bits of the tensors whose names have this ending.
fn change(file: &mut [u8], ending: &str) {
    let length = u64::from_le_bytes(*file.first_chunk().expect("a length")) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).expect("a header");
    for (tensor, facts) in header.as_object().expect("tensors") {
        if tensor.ends_with(ending) {
            let [begin, end] =
                [0, 1].map(|at| 8 + length + facts["data_offsets"][at].as_u64().expect("an offset") as usize);
            for byte in file[begin..end].iter_mut().step_by(4) {
                *byte ^= 1;
            }
        }
    }
}

async fn answer(server: &Server, model: &str, options: Value) -> String {
    let mut all = json!({"num_predict": 8, "temperature": 0});
    all.as_object_mut().expect("options").extend(options.as_object().expect("options").clone());
    // An earlier request may have asked to unload the model immediately.
    let request =
        json!({"model": model, "prompt": "Hello", "raw": true, "stream": false, "options": all, "keep_alive": "5m"});
    server.ask("/api/generate", &request).await["response"].as_str().expect("an answer").to_owned()
}

async fn loaded(server: &Server) -> Vec<Value> {
    let answer = server.http.get(server.url("/api/ps")).send().await.expect("the daemon answers");
    list(&answer.json::<Value>().await.expect("JSON")["models"]).to_vec()
}

async fn unload(server: &Server, model: &str) {
    server.ask("/api/generate", &json!({"model": model, "keep_alive": 0, "stream": false})).await;
    while loaded(server).await.iter().any(|own| own["model"] == format!("{model}:latest")) {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

/// Returns the bytes that each load so far has copied to devices.
fn copied(server: &Server) -> Vec<u64> {
    let log = server.log();
    let numbers = log.lines().filter_map(|line| {
        let told = line.split_once("weights are held on the device")?.1;
        // The log colours names and values; a colour is an escape sequence that ends with `m`.
        let plain: String =
            told.split('\u{1b}').map(|part| part.split_once('m').map_or(part, |(_, text)| text)).collect();
        plain.split_once("copied=")?.1.trim().parse().ok()
    });
    numbers.collect()
}

/// Returns the processes that hold weights for a daemon.
fn holders(daemon: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").expect("there is /proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_one = |pid: &u32| {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        read("cmdline").contains("--hold") && read("stat").contains(&format!(" {daemon} "))
    };
    pids.filter(is_one).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn models_share_what_they_have_in_common_on_a_device() {
    let Some(kernels) = kernels("weights held on devices") else { return };
    let device = device("emulated:700");
    let server = server(&kernels, &[("LODE_DEVICE", &device), ("LODE_GPU_KEEP", "100%")]).await;
    let own = fine_tune();
    let reference = Server::start(&[("LODE_DEVICE", "cpu")]).await;
    for server in [&server, &reference] {
        server.create("base", &tiny_model()).await;
        server.create("tune", own.path()).await;
    }
    for model in ["base", "tune"] {
        let expected = answer(&reference, model, json!({})).await;
        assert_eq!(answer(&server, model, json!({})).await, expected, "{model}");
    }
    let entry = &loaded(&server).await[0];
    assert_eq!((&entry["device"], entry["size_vram"].as_u64() > Some(0)), (&json!(device), true), "{entry}");
    let [base, tune] = copied(&server)[..] else { panic!("two loads: {:?}", copied(&server)) };
    assert!(tune > 0 && tune * 4 < base, "the second model copies what differs: {tune} of {base}");
    // A reload of an unloaded model copies nothing, also after its runner was killed.
    unload(&server, "base").await;
    answer(&server, "base", json!({})).await;
    assert_eq!(copied(&server)[2..], [0]);
    let pid =
        loaded(&server).await.iter().find(|own| own["model"] == "base:latest").expect("it is loaded")["pid"].clone();
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill runs").success());
    while loaded(&server).await.iter().any(|own| own["pid"] == pid) {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    answer(&server, "base", json!({})).await;
    assert_eq!(copied(&server)[3..], [0]);
    // Clients that disconnect while their model is planned and loaded leave no output for the next
    // client.
    for _ in 0..10 {
        unload(&server, "base").await;
        let request = json!({"model": "base", "prompt": "Hello", "stream": false});
        let call = server.http.post(server.url("/api/generate")).json(&request).send();
        let _ = tokio::time::timeout(std::time::Duration::from_millis(4), call).await;
    }
    answer(&server, "base", json!({})).await;
    assert!(copied(&server)[4..].iter().all(|bytes| *bytes == 0), "{:?}", copied(&server));
    let loads = copied(&server).len();
    // The holder dies. Runners that have mapped its memory continue, and the next load starts
    // another holder.
    let before = holders(server.pid());
    assert_eq!(before.len(), 1, "{before:?}");
    assert!(Command::new("kill").args(["-9", &before[0].to_string()]).status().expect("kill runs").success());
    let expected = answer(&reference, "base", json!({})).await;
    assert_eq!(answer(&server, "base", json!({})).await, expected);
    unload(&server, "tune").await;
    answer(&server, "tune", json!({})).await;
    assert_eq!(copied(&server)[loads..], [base], "nothing was there any more");
    let after = holders(server.pid());
    assert!(after.len() == 1 && after != before, "{after:?}");
}

/// Only one model fits at a time, and unused weights are not kept. The next model still finds the
/// weights that it shares with the previous one.
#[tokio::test(flavor = "multi_thread")]
async fn models_in_turns_cost_what_differs() {
    let Some(kernels) = kernels("weights held on devices") else { return };
    let device = device("emulated:700");
    let alone = [("LODE_DEVICE", &*device), ("LODE_GPU_KEEP", "0"), ("LODE_MAX_LOADED_MODELS", "1")];
    let server = server(&kernels, &alone).await;
    server.create("base", &tiny_model()).await;
    server.create("tune", fine_tune().path()).await;
    for model in ["base", "tune", "base", "tune"] {
        answer(&server, model, json!({})).await;
        assert_eq!(loaded(&server).await.len(), 1);
    }
    let all = copied(&server);
    let [base, tune, ..] = all[..] else { panic!("four loads: {all:?}") };
    assert!(tune > 0 && tune * 4 < base && all[1..].iter().all(|bytes| *bytes <= tune), "{all:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_uses_stays_within_its_bound() {
    let Some(kernels) = kernels("weights held on devices") else { return };
    let server = server(&kernels, &[("LODE_DEVICE", &device("emulated:700")), ("LODE_GPU_KEEP", "0")]).await;
    server.create("base", &tiny_model()).await;
    answer(&server, "base", json!({})).await;
    unload(&server, "base").await;
    // No load follows: the holder logs when its waiting time is over.
    server.log_until("evicted unused weights").await;
    answer(&server, "base", json!({})).await;
    let [first, again] = copied(&server)[..] else { panic!("two loads: {:?}", copied(&server)) };
    assert!(first > 0 && first == again, "it stayed: {again} of {first}");
}

/// More requests than slots, each with a different prompt, get the same output as one by one.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_requests_in_eight_slots() {
    let Some(kernels) = kernels("many requests on a device") else { return };
    let server = server(&kernels, &[("LODE_DEVICE", &device("emulated:700")), ("LODE_NUM_PARALLEL", "8")]).await;
    server.create("base", &tiny_model()).await;
    let ask = |at: usize| {
        let request = json!({"model": "base", "prompt": format!("{at}: "), "raw": true, "stream": false,
            "options": {"num_predict": 4, "temperature": 0}});
        let server = &server;
        async move { server.ask("/api/generate", &request).await }
    };
    let all = futures_util::future::join_all((0..200).map(ask)).await;
    let mut others = 0;
    for (at, found) in all.iter().enumerate() {
        assert_eq!((&found["done"], found["eval_count"].as_u64()), (&json!(true), Some(4)), "{at}: {found}");
        if at % 10 == 0 {
            others += usize::from(ask(at).await["response"] != found["response"]);
        }
    }
    // Attention rounds differently for different batch sizes, and two tokens may have nearly the
    // same probability.
    assert!(others <= 2, "{others} of 20 answers differ from those that are given alone");
    assert_eq!(loaded(&server).await.len(), 1);
}

/// One model on two devices, each of which has room for only a part of it.
#[tokio::test(flavor = "multi_thread")]
async fn devices_share_a_model() {
    let Some(kernels) = kernels_of_several("layers on several devices") else { return };
    let spread = [("LODE_DEVICE", "emulated:700+701"), ("LODE_SCHED_SPREAD", "1")];
    let server = server(&kernels, &spread).await;
    let reference = Server::start(&[("LODE_DEVICE", "cpu")]).await;
    for server in [&server, &reference] {
        server.create("base", &tiny_model()).await;
    }
    assert_eq!(answer(&server, "base", json!({})).await, answer(&reference, "base", json!({})).await);
    let entry = &loaded(&server).await[0];
    assert_eq!(entry["device"], "emulated:701+emulated:700", "{entry}");
    assert_eq!(copied(&server).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_are_where_somebody_wants_them() {
    let Some(kernels) = kernels_of_several("layers on several devices") else { return };
    let server = server(&kernels, &[("LODE_DEVICE", "emulated:700+701")]).await;
    server.create("base", &tiny_model()).await;
    let reference = Server::start(&[("LODE_DEVICE", "cpu")]).await;
    reference.create("base", &tiny_model()).await;
    let expected = answer(&reference, "base", json!({})).await;
    for (options, device) in [
        (json!({}), "emulated:701"),
        (json!({"num_gpu": 1}), "cpu+emulated:701"),
        (json!({"num_gpu": 0}), "cpu"),
        (json!({"main_gpu": 0}), "emulated:700"),
        (json!({"num_gpu": 99, "main_gpu": 1}), "emulated:701"),
        (json!({"main_gpu": -1}), "emulated:701"),
    ] {
        assert_eq!(answer(&server, "base", options.clone()).await, expected, "{options}");
        let entry = &loaded(&server).await[0];
        assert_eq!(entry["device"], device, "{options}: {entry}");
        let (size, on_devices) =
            (entry["size"].as_u64().expect("a size"), entry["size_vram"].as_u64().expect("a size"));
        let is_right = if device == "cpu" { on_devices == 0 } else { (1..=size).contains(&on_devices) };
        assert!(is_right, "{entry}");
        assert_eq!(on_devices < size / 2 + 1, device.contains("cpu"), "{entry}");
    }
    let said = server.lode(&["ps"]);
    assert!(String::from_utf8_lossy(&said.stdout).contains("100% GPU"), "{said:?}");
    let request = json!({"model": "base", "prompt": "x", "options": {"main_gpu": 5}});
    let (status, refused) = server.call("/api/generate", &request).await;
    assert!(status == 400 && refused["error"].as_str().is_some_and(|text| text.contains("main_gpu")), "{refused}");
    // A request without placement options uses the loaded model.
    answer(&server, "base", json!({"num_gpu": 0})).await;
    answer(&server, "base", json!({})).await;
    assert_eq!(loaded(&server).await[0]["device"], "cpu");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_device_gets_what_fits_and_idle_models_go_first() {
    let Some(kernels) = kernels_of_several("layers on a small device") else { return };
    let folder: PathBuf = tiny_model();
    // The daemon keeps 457 MiB of each device free. Activations and recorded launches of this model
    // take most of the rest.
    let server = server(&kernels, &[("LODE_DEVICE", "emulated:470"), ("LODE_NUM_PARALLEL", "16")]).await;
    server.create("base", &folder).await;
    server.create("other", fine_tune().path()).await;
    answer(&server, "base", json!({})).await;
    let alone = loaded(&server).await[0].clone();
    answer(&server, "other", json!({})).await;
    let entries = loaded(&server).await;
    assert_eq!(entries.len(), 1, "the idle one went: {entries:?}");
    assert_eq!(entries[0]["device"], alone["device"], "{entries:?}");
    let server = self::server(&kernels, &[("LODE_DEVICE", "emulated:8")]).await;
    server.create("base", &folder).await;
    answer(&server, "base", json!({})).await;
    let entry = &loaded(&server).await[0];
    let note = entry["device_note"].as_str().expect("a note");
    assert!(entry["device"] == "cpu" && note.contains("none has room"), "{entry}");
}

/// Compares the negative log-likelihood of texts on a device and on the CPU, in nats per token.
#[tokio::test(flavor = "multi_thread")]
async fn texts_are_as_likely_as_on_the_cpu() {
    let Some(kernels) = kernels("perplexity on a device") else { return };
    // The emulator takes seconds for a few hundred tokens of a tiny model.
    let real = crate::support::models().map(|folder| folder.join("smollm2-135m-q4_1.gguf"));
    let real = real.filter(|path| gpu().is_some() && path.is_file());
    let text = if real.is_some() { text_of_the_project() } else { "All human beings are born free. ".repeat(4) };
    let mut found = Vec::new();
    for server in [
        server(&kernels, &[("LODE_DEVICE", &device("emulated:700"))]).await,
        Server::start(&[("LODE_DEVICE", "cpu")]).await,
    ] {
        server.create("one", real.as_deref().unwrap_or(&tiny_model())).await;
        let request = json!({"model": "one", "text": text, "window": 128});
        let told = server.ask("/api/lode/perplexity", &request).await;
        found.push((told["tokens"].clone(), told["mean_nll"].as_f64().expect("a number")));
    }
    let [(tokens, on_device), (as_many, on_cpu)] = &found[..] else { panic!("two of them") };
    assert_eq!(tokens, as_many);
    assert!((on_device - on_cpu).abs() < 0.005 * on_cpu, "{on_device} on the device, {on_cpu} on the CPU");
}

/// Returns about ten thousand tokens of prose.
fn text_of_the_project() -> String {
    let read = |name: &str| std::fs::read_to_string(crate::support::root().join(name)).expect("a text of the project");
    ["README.md", "ARCHITECTURE.md", "docs/gpu.md"].map(read).concat()
}
