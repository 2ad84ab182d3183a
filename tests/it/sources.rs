//! Sources of a create that are not models, or are incomplete: each gets an error that names the
//! file and the remedy.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use formats::Gguf;
use serde_json::{Value, json};

use crate::export::exported;
use crate::server::Server;
use crate::support::{skip, tiny_model};

/// Copies the tiny model's folder.
fn copied(to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(tiny_model()).expect("the model").flatten() {
        if entry.path().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).expect("a copy");
        }
    }
}

/// Runs `lode create` with a path, and returns its messages. Asserts that it succeeds or fails as
/// expected.
fn created(server: &Server, path: &Path, succeeds: bool) -> String {
    let output = server.lode(&["create", "made", "-f", &path.to_string_lossy()]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), succeeds, "{}: {told}", path.display());
    assert!(!told.contains("panicked") && !told.contains("failed to fill"), "{told}");
    told
}

fn changed_config(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).expect("a config")).expect("JSON");
    change(&mut config);
    fs::write(path, config.to_string()).expect("written");
}

#[tokio::test]
async fn what_is_no_model_is_named() {
    let server = Server::start(&[]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| -> PathBuf { folder.path().join(name) };
    let make = |name: &str, files: &[(&str, &[u8])]| {
        fs::create_dir(place(name)).expect("a folder");
        for (file, bytes) in files {
            fs::write(place(name).join(file), bytes).expect("a file");
        }
        place(name)
    };
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0000000000000000000000000000000000000000000000000000000000000000\nsize 1234\n";
    fs::write(place("model.bin"), b"PK\x03\x04").expect("a file");
    fs::write(place("pointer.gguf"), pointer).expect("a file");
    let adapter = make("adapter", &[("adapter_config.json", b"{}")]);
    fs::copy(place_of_weights(), adapter.join("adapter_model.safetensors")).expect("a copy");
    for (path, expected) in [
        (make("empty", &[]), &["empty` is empty", "*.gguf"][..]),
        (make("config", &[("config.json", b"{}")]), &["config", "has no weights", "*.safetensors"]),
        (make("pickles", &[("pytorch_model.bin", b"PK")]), &["pytorch_model.bin", "pickle", "*.safetensors"]),
        (place("model.bin"), &["model.bin", "Modelfile"]),
        (PathBuf::from("/bin/ls"), &["/bin/ls"]),
        (place("pointer.gguf"), &["pointer.gguf", "git lfs pull"]),
        (
            make("pointers", &[("config.json", b"{}"), ("model.safetensors", pointer)]),
            &["model.safetensors", "git lfs"],
        ),
        (adapter, &["adapter_config.json", "is an adapter", "ADAPTER"]),
        (place("missing"), &["missing", "-f names the Modelfile"]),
    ] {
        let told = created(&server, &path, false);
        for part in expected {
            assert!(told.contains(part), "{}: `{told}` should say `{part}`", path.display());
        }
    }
    let pipe = place("pipe.gguf");
    if !Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()) {
        return skip("sources::what_is_no_model_is_named", "there is no `mkfifo`");
    }
    assert!(created(&server, &pipe, false).contains("is a pipe or a device"));
}

fn place_of_weights() -> PathBuf {
    let files = fs::read_dir(tiny_model()).expect("the model").flatten().map(|entry| entry.path());
    let mut weights = files.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
    weights.next().expect("weights")
}

#[tokio::test]
async fn a_source_that_says_more_than_is_read_is_kept_and_not_run() {
    let server = Server::start(&[]).await;
    let folder = tempfile::tempdir().expect("a folder");
    copied(folder.path());
    created(&server, folder.path(), true);
    changed_config(folder.path(), |config| config["logit_curve"] = json!(2.5));
    let told = created(&server, folder.path(), true);
    assert!(told.contains("cannot be run") && told.contains("`logit_curve`"), "{told}");
    assert!(told.contains("remove it from config.json"), "{told}");
    let (status, answer) = server.call("/api/generate", &json!({"model": "made", "prompt": "w5"})).await;
    assert!(status == 400 && answer.to_string().contains("`logit_curve`"), "{status} {answer}");
    changed_config(folder.path(), |config| config["logit_curve"] = Value::Null);
    created(&server, folder.path(), true);
}

#[tokio::test]
async fn additional_templates_are_in_an_exported_gguf_file() {
    let server = Server::start(&[]).await;
    let folder = tempfile::tempdir().expect("a folder");
    copied(folder.path());
    fs::write(folder.path().join("chat_template.jinja"), "{{ messages[0].content }}").expect("written");
    fs::create_dir(folder.path().join("additional_chat_templates")).expect("a folder");
    let more = folder.path().join("additional_chat_templates/tool_use.jinja");
    fs::write(more, "{{ tools }}{{ messages[0].content }}").expect("written");
    created(&server, folder.path(), true);
    let file = folder.path().join("made.gguf");
    exported(&server, "made", &file, &["--format", "gguf", "--lossy"]);
    let bytes = fs::read(&file).expect("a file");
    let gguf = Gguf::parse_header(&bytes).expect("a header");
    assert_eq!(gguf.text("tokenizer.chat_template"), Some("{{ messages[0].content }}"));
    assert_eq!(gguf.text("tokenizer.chat_template.tool_use"), Some("{{ tools }}{{ messages[0].content }}"));
}

#[tokio::test]
async fn a_model_without_a_template_is_told() {
    let server = Server::start(&[]).await;
    let folder = tempfile::tempdir().expect("a folder");
    copied(folder.path());
    for name in ["chat_template.jinja", "chat_template.json"] {
        let _ = fs::remove_file(folder.path().join(name));
    }
    let path = folder.path().join("tokenizer_config.json");
    let mut config: Value = fs::read(&path).ok().and_then(|raw| serde_json::from_slice(&raw).ok()).unwrap_or(json!({}));
    config.as_object_mut().expect("an object").remove("chat_template");
    fs::write(&path, config.to_string()).expect("written");
    assert!(created(&server, folder.path(), true).contains("completes text, it does not chat"));
    let shown = server.ask("/api/show", &json!({"model": "made"})).await;
    assert_eq!(shown["only_completes"], true, "{shown}");
    let output = server.lode(&["list", "--format", "json"]);
    let tags: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(tags["models"][0]["only_completes"], true, "{tags}");
    // Python writes `Infinity` if a tokenizer has no maximum length.
    let template =
        r#"{"model_max_length": Infinity, "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}"#;
    fs::write(&path, template).expect("written");
    assert!(!created(&server, folder.path(), true).contains("does not chat"));
    let shown = server.ask("/api/show", &json!({"model": "made"})).await;
    assert!(shown["only_completes"].is_null() && shown["template"].as_str().is_some(), "{shown}");
}

#[tokio::test]
async fn folders_of_other_tools_are_understood() {
    let server = Server::start(&[]).await;
    let folder = tempfile::tempdir().expect("a folder");
    // The cache of a hub client: files are links to blobs.
    let cache = folder.path().join("models--u--n");
    let snapshot = cache.join("snapshots/0123");
    for part in ["blobs", "refs", "snapshots/0123", "snapshots/older"] {
        fs::create_dir_all(cache.join(part)).expect("a folder");
    }
    copied(&cache.join("blobs"));
    for entry in fs::read_dir(cache.join("blobs")).expect("blobs").flatten() {
        symlink(Path::new("../../blobs").join(entry.file_name()), snapshot.join(entry.file_name())).expect("a link");
    }
    fs::write(cache.join("refs/main"), "0123").expect("a file");
    created(&server, &cache, true);
    // The daemon opens a path in a request by itself, and follows links within the cache.
    server.create("by-path", &cache).await;
    fs::write(cache.join("refs/main"), "../../..").expect("a file");
    fs::remove_dir(cache.join("snapshots/older")).expect("removed");
    created(&server, &cache, true);
    // A folder that has weights itself is read as that model, even if it also contains a folder
    // `snapshots`.
    let whole = folder.path().join("whole");
    copied(&whole);
    fs::create_dir_all(whole.join("snapshots/step-100")).expect("a folder");
    created(&server, &whole, true);
    // Weights that do not belong to the model are reported.
    fs::copy(place_of_weights(), whole.join("adapter_model.safetensors")).expect("a copy");
    assert!(created(&server, &whole, true).contains("`adapter_model.safetensors` is not part of the model"));
}
