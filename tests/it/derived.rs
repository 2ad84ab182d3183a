//! The store keeps facts of the source; everything else is derived by the running version, and no
//! claim of a config is trusted.

use content::Digest;
use serde_json::{Value, json};

use crate::export::exported;
use crate::server::Server;
use crate::stored;
use crate::support::{entries, list, name, object, read, tiny_model};

/// The name of an unknown architecture, as long as the name that it replaces.
const UNKNOWN: &str = "zzzzz";

fn replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = bytes.to_vec();
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(from.len()).position(|window| window == from.as_bytes()) {
        at += found;
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    bytes
}

/// Returns the tiny model's folder with an unknown architecture.
fn unknown_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for path in entries(&tiny_model()) {
        let bytes = read(&path);
        let is_config = name(&path) == "config.json";
        let bytes = if is_config { replaced(&bytes, "\"llama\"", "\"zzzzz\"") } else { bytes };
        std::fs::write(folder.path().join(name(&path)), bytes).expect("a copy");
    }
    folder
}

/// Returns the names and digests of the tensor layers, and the config.
fn made(server: &Server, model: &str) -> (Vec<(String, String)>, Value) {
    let manifest = stored::created(&server.home(), model).json;
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let tensors = list(&manifest["layers"]).iter();
    let tensors = tensors.filter(|layer| layer["mediaType"] == "application/vnd.ollama.image.tensor");
    let config = stored::blob(&server.home(), &text(&manifest["config"]["digest"]));
    let tensors = tensors.map(|layer| (text(&layer["name"]), text(&layer["digest"])));
    (tensors.collect(), serde_json::from_slice(&config).expect("JSON"))
}

/// An import does not depend on whether the build knows the family. The two sources differ only in
/// the architecture's name, and so do the results.
#[tokio::test]
async fn an_import_does_not_depend_on_what_is_known() {
    let server = Server::start(&[]).await;
    let place = tempfile::tempdir().expect("a folder");
    server.create("known", &tiny_model()).await;
    server.create("unknown", unknown_folder().path()).await;
    let file = place.path().join("known.gguf");
    exported(&server, "known", &file, &["--format", "gguf", "--lossy"]);
    let other = place.path().join("unknown.gguf");
    std::fs::write(&other, replaced(&read(&file), "llama", UNKNOWN)).expect("a file");
    server.create("known-gguf", &file).await;
    server.create("unknown-gguf", &other).await;
    for (known, unknown) in [("known", "unknown"), ("known-gguf", "unknown-gguf")] {
        let ((tensors, config), (same, other)) = (made(&server, known), made(&server, unknown));
        assert_eq!(tensors, same, "{unknown}");
        // The document that names the architecture is a layer too, and `rootfs` lists the digests
        // of all layers.
        let told = |mut config: Value| {
            config["rootfs"] = Value::Null;
            String::from_utf8(replaced(config.to_string().as_bytes(), UNKNOWN, "llama")).expect("text")
        };
        let keys: Vec<&str> = object(&config["lode"]).keys().map(String::as_str).collect();
        assert_eq!(keys, ["tensor_count", "parameter_count", "source_format"]);
        assert_eq!(told(config), told(other), "{unknown}");
    }
    let (tensors, _) = made(&server, "unknown-gguf");
    assert!(tensors.iter().any(|(name, _)| name == "blk.0.attn_q.weight"), "names are the file's: {tensors:?}");
    let shown = server.ask("/api/show", &json!({"model": "known-gguf", "verbose": true})).await;
    let listed = shown["tensors"].to_string();
    assert!(listed.contains("model.layers.0.self_attn.q_proj.weight") && !listed.contains("blk.0"), "{listed}");
    let (status, answer) = server.call("/api/generate", &json!({"model": "unknown-gguf", "stream": false})).await;
    assert!(status >= 400 && answer.to_string().contains("`zzzzz` cannot be run yet"), "{status} {answer}");
}

/// The experts of a layer are one blob in every architecture.
#[tokio::test]
async fn experts_of_gguf_files_share_a_blob() {
    let server = Server::start(&[]).await;
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("experts.gguf");
    std::fs::write(&file, experts()).expect("a file");
    server.create("experts", &file).await;
    let (tensors, _) = made(&server, "experts");
    let names: Vec<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["token_embd.weight", "blk.0.ffn_exps", "blk.0.ffn_shexp", "blk.0.ffn_gate_inp.weight"]);
    let back = place.path().join("back.gguf");
    exported(&server, "experts", &back, &[]);
    assert_eq!(read(&back), read(&file));
}

fn experts() -> Vec<u8> {
    use formats::GgmlType;
    use formats::gguf::{NewTensor, OwnedValue, write_header};

    let keys = [("general.architecture".to_owned(), OwnedValue::from("somemoe"))];
    let tensor =
        |name: &str, dims: &[u64]| NewTensor { name: name.to_owned(), kind: GgmlType::F32, dims: dims.to_vec() };
    let tensors = [
        tensor("token_embd.weight", &[8, 8]),
        tensor("blk.0.ffn_gate_exps.weight", &[8, 4, 2]),
        tensor("blk.0.ffn_up_exps.weight", &[8, 4, 2]),
        tensor("blk.0.ffn_down_exps.weight", &[4, 8, 2]),
        tensor("blk.0.ffn_up_shexp.weight", &[8, 4]),
        tensor("blk.0.ffn_down_shexp.weight", &[4, 8]),
        tensor("blk.0.ffn_gate_inp.weight", &[8, 2]),
    ];
    let header = write_header(&keys, &tensors).expect("a header");
    let data = (0..header.data_size).map(|n| u8::try_from(n % 251).expect("small"));
    header.bytes.iter().copied().chain(data).collect()
}

/// Puts a manifest into the registry whose config contradicts the model's documents.
async fn put_liar(server: &Server, repository: &str, lies: &Value) {
    let mut manifest = stored::created(&server.home(), "tiny").json;
    let (_, mut config) = made(server, "tiny");
    for (key, value) in object(lies) {
        config[key] = value.clone();
    }
    let raw = config.to_string().into_bytes();
    let digest = Digest::of(&raw);
    let uploads = server.url(&format!("/v2/{repository}/blobs/uploads/"));
    for layer in list(&manifest["layers"]) {
        let digest = layer["digest"].as_str().expect("text");
        let mount = server.http.post(format!("{uploads}?mount={digest}&from=library/tiny"));
        assert_eq!(mount.send().await.expect("an answer").status().as_u16(), 201, "{digest}");
    }
    let put = server.http.post(format!("{uploads}?digest={digest}")).body(raw.clone()).send().await.expect("an answer");
    assert_eq!(put.status().as_u16(), 201, "{}", put.text().await.unwrap_or_default());
    manifest["config"]["digest"] = digest.to_string().into();
    manifest["config"]["size"] = raw.len().into();
    let kind = manifest["mediaType"].as_str().expect("a type").to_owned();
    let put = server.http.put(server.url(&format!("/v2/{repository}/manifests/latest"))).header("content-type", kind);
    let done = put.body(manifest.to_string()).send().await.expect("an answer");
    assert_eq!(done.status().as_u16(), 201, "{}", done.text().await.unwrap_or_default());
}

#[tokio::test]
async fn numbers_of_a_config_are_not_believed() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    // Fields that version 0.1 wrote, with a list of layers that is too short, and sizes that no
    // memory could hold.
    let hyper = json!({"architecture": "gemma3", "layers": 2, "sliding": [], "sliding_window": 1, "heads": 0});
    let lies = json!({
        "context_length": 4_294_967_296_u64,
        "embedding_length": 1,
        "model_family": "gemma3",
        "lode": {"hyper_parameters": hyper, "tensor_count": 1, "parameter_count": 1, "source_format": "gguf"},
    });
    put_liar(&server, "library/liar", &lies).await;
    let shown = |model: &str| {
        let request = json!({"model": model});
        let server = &server;
        async move { server.ask("/api/show", &request).await }
    };
    let (tiny, liar) = (shown("tiny").await, shown("liar").await);
    for key in ["family", "context_length", "embedding_length"] {
        assert_eq!(liar["details"][key], tiny["details"][key], "{key}");
    }
    assert_eq!(liar["capabilities"], tiny["capabilities"]);
    let plan = |model: &str| {
        let output = server.lode(&["plan", model, "--format", "json"]);
        let mut plan: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (plan["model"], plan["digest"]) = (Value::Null, Value::Null);
        plan
    };
    assert_eq!(plan("liar"), plan("tiny"));
    let says = |model: &str| {
        let request =
            json!({"model": model, "prompt": "a", "stream": false, "options": {"temperature": 0, "num_predict": 8}});
        let server = &server;
        async move { server.ask("/api/generate", &request).await["response"].clone() }
    };
    assert_eq!(says("liar").await, says("tiny").await);
}

/// A store that a newer version made is not opened by any command.
#[tokio::test]
async fn a_newer_store_is_refused() {
    let mut server = Server::start(&[]).await;
    server.kill();
    let version = server.home().join("version");
    assert_eq!(std::fs::read_to_string(&version).expect("the version"), "1\n");
    std::fs::write(&version, "2\n").expect("a newer version");
    let output = server.lode(&["serve"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("format version 2") && said.contains("LODE_HOME"), "{said}");
    assert_eq!(std::fs::read_to_string(&version).expect("the version"), "2\n");
}
