//! Models whose tensors stay in other files: they work as copied models do, and changes of the
//! files are noticed.

mod changes;
mod clones;
mod tools;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::maintenance::{digest, document, done, fails, files};
use crate::real_registry::DockerRegistry;
use crate::server::Server;
use crate::support::{entries, fixtures, name, read, tiny_model};

/// A folder with a copy of the tiny model, and a GGUF file of it.
pub(super) struct Sources {
    folder: tempfile::TempDir,
}

impl Sources {
    pub(super) async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sources = Self { folder };
        std::fs::create_dir(sources.shards()).expect("a folder");
        for path in entries(&tiny_model()) {
            std::fs::write(sources.shards().join(name(&path)), read(&path)).expect("a copy");
        }
        let server = Server::start(&[]).await;
        server.create("tiny", &tiny_model()).await;
        let gguf = sources.gguf();
        done(&server, &["export", "tiny", "--to", gguf.to_str().expect("UTF-8"), "--format", "gguf"]);
        sources
    }

    /// A folder with a safetensors model.
    pub(super) fn shards(&self) -> PathBuf {
        self.folder.path().join("tiny")
    }

    pub(super) fn weights(&self) -> PathBuf {
        self.shards().join("model.safetensors")
    }

    pub(super) fn gguf(&self) -> PathBuf {
        self.folder.path().join("tiny.gguf")
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The response to a request for a continuation.
pub(crate) async fn generate(server: &Server, model: &str) -> (u16, Value) {
    let request =
        json!({"model": model, "prompt": "ab", "stream": false, "options": {"temperature": 0, "num_predict": 8}});
    server.call("/api/generate", &request).await
}

/// The answer of a model to a prompt.
pub(crate) async fn answer(server: &Server, model: &str) -> Value {
    let (status, body) = generate(server, model).await;
    assert_eq!(status, 200, "{body}");
    body["response"].clone()
}

/// Bytes of the files below a folder.
pub(crate) fn bytes(folder: &Path) -> u64 {
    files(folder).iter().map(|file| std::fs::metadata(file).expect("a file").len()).sum()
}

/// Checks that an adopted model equals the copied one in all that users see.
async fn check_same(source: &Path, weights: &Path) {
    let (copied, adopted) = (Server::start(&[]).await, Server::start(&[]).await);
    done(&copied, &["create", "m", "-f", text(source)]);
    done(&adopted, &["create", "m", "--in-place", "-f", text(source)]);
    assert_eq!(digest(&adopted, "m"), digest(&copied, "m"), "the same manifest, and with it the same blobs");
    let usage = document(&adopted, &["du", "m"]);
    let tensors = usage["models"][0]["adopted_bytes"].as_u64().expect("a number");
    let stored = usage["models"][0]["bytes"].as_u64().expect("a number");
    let whole = document(&copied, &["du", "m"])["models"][0]["bytes"].as_u64().expect("a number");
    assert_eq!(tensors + stored, whole);
    assert_eq!(bytes(&adopted.home().join("blobs")), whole - tensors, "only documents were copied");
    assert!(tensors > std::fs::metadata(weights).expect("the weights").len() * 8 / 10, "{usage}");

    let expect = answer(&copied, "m").await;
    assert_eq!(answer(&adopted, "m").await, expect);
    for arguments in [&["fsck"][..], &["gc"], &["list"], &["show", "m", "--tensors"], &["diff", "m", "m", "--values"]] {
        done(&adopted, arguments);
    }
    let adopted = adopted.restart(&[]).await;
    assert_eq!(answer(&adopted, "m").await, expect, "after a restart");

    // The files come out as they were, and models that are made from it are the same.
    let place = tempfile::tempdir().expect("a temporary folder");
    for (server, to) in [(&copied, "copied"), (&adopted, "adopted")] {
        done(server, &["export", "m", "--to", text(&place.path().join(to))]);
        done(server, &["save", "m", "-o", text(&place.path().join(format!("{to}.tar")))]);
        let modelfile = place.path().join("Modelfile");
        std::fs::write(&modelfile, "FROM m\n").expect("a Modelfile");
        done(server, &["create", "small", "-f", text(&modelfile), "-q", "q8_0"]);
    }
    let exported = |to: &str| {
        let path = place.path().join(to);
        let mut all = if path.is_dir() { files(&path) } else { vec![path] };
        all.sort();
        all.iter().map(|file| read(file)).collect::<Vec<_>>()
    };
    assert!(exported("copied") == exported("adopted"), "the exported files differ");
    assert!(exported("copied.tar") == exported("adopted.tar"), "the archives differ");
    assert_eq!(digest(&adopted, "small"), digest(&copied, "small"));
    check_pushed(&adopted, &expect).await;

    // A create that copies finds the blobs; own copies them; then the source is not needed.
    done(&adopted, &["own", "m"]);
    assert_eq!(document(&adopted, &["du", "m"])["models"][0]["adopted_bytes"], 0);
    let away = weights.with_extension("away");
    std::fs::rename(weights, &away).expect("moved");
    let adopted = adopted.restart(&[]).await;
    assert_eq!(answer(&adopted, "m").await, expect, "without the source");
    std::fs::rename(&away, weights).expect("moved back");
    done(&adopted, &["rm", "m", "small"]);
    assert_eq!(files(&adopted.home().join("extents")), Vec::<PathBuf>::new());
}

/// Pushes the model to docker-registry, and pulls it from there and from the daemon's own registry.
async fn check_pushed(server: &Server, expect: &Value) {
    let other = Server::start(&[]).await;
    let own = format!("{}/library/m", server.address);
    done(&other, &["pull", "--insecure", &own]);
    assert_eq!((digest(&other, &own), answer(&other, &own).await), (digest(server, "m"), expect.clone()));
    let Some(registry) = DockerRegistry::start("adopt", None).await else { return };
    let remote = format!("{}/team/m:1", registry.address);
    done(server, &["push", "--insecure", "m", &remote]);
    done(&other, &["pull", "--insecure", &remote]);
    assert_eq!(digest(&other, &remote), digest(server, "m"));
    done(&other, &["fsck"]);
}

#[tokio::test]
async fn an_adopted_folder_is_the_same_model() {
    let sources = Sources::new().await;
    check_same(&sources.shards(), &sources.weights()).await;
}

#[tokio::test]
async fn an_adopted_gguf_file_is_the_same_model() {
    let sources = Sources::new().await;
    check_same(&sources.gguf(), &sources.gguf()).await;
}

#[tokio::test]
async fn a_collection_leaves_the_source() {
    let sources = Sources::new().await;
    let server = Server::start(&[]).await;
    let before = read(&sources.gguf());
    done(&server, &["adopt", text(&sources.gguf()), "--name", "m"]);
    assert!(!files(&server.home().join("extents")).is_empty());
    done(&server, &["rm", "m"]);
    done(&server, &["gc"]);
    assert_eq!(files(&server.home().join("extents")), Vec::<PathBuf>::new());
    assert!(read(&sources.gguf()) == before);
    // Two models of one file have one entry for each tensor.
    done(&server, &["adopt", text(&sources.gguf()), "--name", "one"]);
    let entries = files(&server.home().join("extents")).len();
    done(&server, &["create", "two", "-f", text(&sources.gguf())]);
    assert_eq!(files(&server.home().join("extents")).len(), entries);
    assert_eq!(digest(&server, "one"), digest(&server, "two"), "a create finds adopted blobs");
    done(&server, &["rm", "one"]);
    done(&server, &["gc"]);
    answer(&server, "two").await;
}

#[tokio::test]
async fn requests_that_cannot_be_in_place_are_refused() {
    let sources = Sources::new().await;
    let server = Server::start(&[]).await;
    server.create("m", &sources.shards()).await;
    for (request, says) in [
        (json!({"model": "n", "from": "m", "in_place": true}), "'in_place' keeps the tensors"),
        (json!({"model": "n", "path": sources.gguf(), "in_place": true, "quantize": "q8_0"}), "'quantize'"),
    ] {
        let (status, body) = server.call("/api/create", &request).await;
        assert_eq!(status, 400, "{body}");
        assert!(body["error"].as_str().is_some_and(|error| error.contains(says)), "{body}");
    }
    let modelfile = sources.folder.path().join("Modelfile");
    std::fs::write(&modelfile, "FROM m\n").expect("a Modelfile");
    fails(&server, &["create", "n", "--in-place", "-f", text(&modelfile)], "whose tensors are in the store already");
    fails(&server, &["create", "n", "--in-place", "-q", "q8_0", "-f", text(&sources.gguf())], "cannot be used with");
    fails(&server, &["own", "nothing"], "not found");
    fails(&server, &["adopt", "./nothing"], "expected a file, a folder, or one of ollama");
    fails(&server, &["adopt", text(&server.home())], "no GGUF file and no safetensors model");
}

/// Weights with scales, experts in groups, and weights that an import converts.
#[tokio::test]
async fn quantized_folders_are_the_same_models() {
    let test = "adopt::quantized_folders_are_the_same_models";
    let Some(fixtures) = fixtures(test, "") else { return };
    let (copied, adopted) = (Server::start(&[]).await, Server::start(&[]).await);
    for (name, folder) in [
        ("affine", "mlx/tiny-llama-4bit-g64"),
        ("microscaled", "mlx/tiny-llama-mxfp4"),
        ("experts", "hf/mixtral/model"),
        ("gptq", "cases2026/gptq/model"),
    ] {
        let folder = fixtures.join(folder);
        done(&copied, &["create", name, "-f", text(&folder)]);
        let said = adopted.lode(&["create", name, "--in-place", "-f", text(&folder)]);
        let told = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.success(), "{name}: {told}");
        assert_eq!(told.contains("are written to the store"), name == "gptq", "{told}");
        assert_eq!(digest(&adopted, name), digest(&copied, name), "{name}");
        assert_eq!(answer(&adopted, name).await, answer(&copied, name).await, "{name}");
        done(&adopted, &["stop", name]);
    }
    done(&adopted, &["fsck"]);
    // The runner maps the files where they are: no tensor blob was copied for it.
    let usage = document(&adopted, &["du"]);
    let models = usage["models"].as_array().expect("models").iter();
    for model in models.filter(|model| model["name"] != "gptq:latest") {
        assert!(model["adopted_bytes"].as_u64() > model["bytes"].as_u64(), "{model}");
    }
}
