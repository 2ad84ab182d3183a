//! Models of other programs: where they are found, under which names, and what cannot be adopted.

use std::fs;
use std::path::{Path, PathBuf};

use content::Digest;
use serde_json::{Value, json};

use super::{Sources, answer, text};
use crate::maintenance::{digest, document, done, fails};
use crate::server::Server;
use crate::support::read;

/// A home folder with the folders of other programs.
struct Home {
    folder: tempfile::TempDir,
    sources: Sources,
}

impl Home {
    async fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder"), sources: Sources::new().await }
    }

    fn path(&self, path: &str) -> PathBuf {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        path
    }

    fn write(&self, path: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(path);
        fs::write(&path, bytes).expect("a file");
        path
    }

    /// The variables of a user with this home.
    fn environment(&self) -> Vec<(&str, &str)> {
        let home = text(self.folder.path());
        let unset =
            ["OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE", "XDG_CACHE_HOME"];
        [("HOME", home)].into_iter().chain(unset.map(|name| (name, ""))).collect()
    }

    /// Runs `lode adopt`; returns its output.
    fn adopt(&self, server: &Server, arguments: &[&str]) -> (bool, String, String) {
        let output = server.lode_with(&self.environment(), &[&["adopt"], arguments].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    }

    fn listed(&self, server: &Server, arguments: &[&str]) -> Vec<Value> {
        let (success, out, err) = self.adopt(server, &[arguments, &["--dry-run", "--format", "json"]].concat());
        assert!(success, "{err}");
        serde_json::from_str(&out).expect("JSON")
    }

    /// Writes a blob of Ollama; returns its layer.
    fn layer(&self, kind: &str, bytes: &[u8]) -> Value {
        let digest = Digest::of(bytes);
        self.write(&format!(".ollama/models/blobs/sha256-{}", digest.hex()), bytes);
        let media_type = match kind {
            "config" => "application/vnd.docker.container.image.v1+json".to_owned(),
            kind => format!("application/vnd.ollama.image.{kind}"),
        };
        json!({"mediaType": media_type, "digest": digest.to_string(), "size": bytes.len()})
    }

    /// Writes a model of Ollama.
    fn ollama(&self, path: &str, layers: &[Value]) {
        let config = self.layer("config", br#"{"model_format":"gguf","model_family":"llama"}"#);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": config,
            "layers": layers,
        });
        self.write(&format!(".ollama/models/manifests/{path}"), manifest.to_string().as_bytes());
    }
}

fn names(listed: &[Value]) -> Vec<&str> {
    listed.iter().map(|model| model["name"].as_str().expect("a name")).collect()
}

#[tokio::test]
async fn models_of_ollama_are_adopted_with_their_texts() {
    let home = Home::new().await;
    let server = Server::start(&[]).await;
    let gguf = read(&home.sources.gguf());
    let weights = home.layer("model", &gguf);
    let template = home.layer("template", b"{{ .System }} {{ .Prompt }}");
    let layers = [
        weights.clone(),
        template,
        home.layer("system", b"You are terse."),
        home.layer("params", br#"{"stop":["<end>"],"temperature":0.5}"#),
        home.layer("license", b"A license"),
        home.layer("messages", br#"[{"role":"user","content":"hi"}]"#),
    ];
    home.ollama("registry.ollama.ai/library/tiny/1b", &layers);
    home.ollama("registry.ollama.ai/me/copy/latest", &layers[..1]);
    home.ollama("hf.co/you/repo/Q8_0", &layers[..1]);
    let mut lost = weights.clone();
    lost["digest"] = Digest::of(b"lost").to_string().into();
    home.ollama("registry.ollama.ai/library/broken/latest", &[lost]);
    home.ollama("registry.ollama.ai/library/tuned/latest", &[weights, home.layer("adapter", b"GGUF")]);
    home.write(".ollama/models/manifests/registry.ollama.ai/library/odd/latest", b"no manifest");

    let listed = home.listed(&server, &["ollama"]);
    assert_eq!(
        names(&listed),
        ["hf.co/you/repo:Q8_0", "broken:latest", "odd:latest", "tiny:1b", "tuned:latest", "me/copy:latest"]
    );
    let problem = |at: usize| listed[at]["problem"].as_str().unwrap_or_default();
    assert!(problem(1).contains("is missing") && problem(2).contains("is no manifest"), "{listed:?}");
    assert!(problem(4).contains("adapter"), "{listed:?}");
    assert_eq!(listed[3]["same_as"], "hf.co/you/repo:Q8_0", "the same file has the same digest: {listed:?}");

    let (success, out, err) = home.adopt(&server, &["ollama", "tiny:1b"]);
    assert!(success, "{err}");
    assert_eq!(out, "tiny:1b\n");
    let shown = server.ask("/api/show", &json!({"model": "tiny:1b"})).await;
    assert_eq!(shown["template"], "{{ .System }} {{ .Prompt }}", "{shown}");
    assert!(shown["parameters"].as_str().is_some_and(|text| text.contains("<end>")), "{shown}");
    assert_eq!((&shown["system"], &shown["license"]), (&json!("You are terse."), &json!("A license")), "{shown}");
    answer(&server, "tiny:1b").await;
    // All others; the ones with a problem are reported, and the rest is adopted.
    let (success, out, err) = home.adopt(&server, &["ollama"]);
    assert!(!success && err.contains("3 of 5 models were not adopted"), "{err}");
    assert_eq!(out, "hf.co/you/repo:Q8_0\nme/copy:latest\n");
    assert_eq!(digest(&server, "me/copy"), digest(&server, "hf.co/you/repo:Q8_0"));
    let known: Vec<bool> = home.listed(&server, &["ollama"]).iter().map(|model| model["in_store"] == true).collect();
    assert_eq!(known, [true, false, false, true, false, true]);
    let usage = document(&server, &["du"]);
    assert!(usage["adopted_bytes"].as_u64() > usage["bytes"].as_u64(), "{usage}");
}

/// Writes a snapshot of the hub's cache: its files are links to blobs, or the files themselves.
fn snapshot(home: &Home, repository: &str, files: &[(&str, PathBuf)], has_links: bool) {
    let folder = format!(".cache/huggingface/hub/models--{}", repository.replace('/', "--"));
    home.write(&format!("{folder}/refs/main"), b"abc123");
    for (name, source) in files {
        let bytes = read(source);
        let place = home.path(&format!("{folder}/snapshots/abc123/{name}"));
        if has_links {
            let hex = Digest::of(&bytes).hex();
            home.write(&format!("{folder}/blobs/{hex}"), &bytes);
            std::os::unix::fs::symlink(Path::new("../../blobs").join(hex), place).expect("a link");
        } else {
            fs::write(place, bytes).expect("a file");
        }
    }
}

#[tokio::test]
async fn models_of_the_hub_are_found_in_both_layouts() {
    let home = Home::new().await;
    let server = Server::start(&[]).await;
    let folder: Vec<PathBuf> = crate::support::entries(&home.sources.shards());
    let files: Vec<(&str, PathBuf)> =
        folder.iter().map(|path| (path.file_name().and_then(|n| n.to_str()).expect("a name"), path.clone())).collect();
    snapshot(&home, "one/Linked", &files, true);
    snapshot(&home, "two/Plain", &files, false);
    snapshot(
        &home,
        "three/GGUF",
        &[("Tiny-Q8_0.gguf", home.sources.gguf()), ("Tiny-F16.gguf", home.sources.gguf())],
        true,
    );
    let part: Vec<(&str, PathBuf)> = files.iter().filter(|(name, _)| *name != "config.json").cloned().collect();
    snapshot(&home, "four/Part", &part, true);
    let listed = home.listed(&server, &["huggingface"]);
    assert_eq!(
        names(&listed),
        [
            "hf.co/four/Part:latest",
            "hf.co/one/Linked:latest",
            "hf.co/three/GGUF:F16",
            "hf.co/three/GGUF:Q8_0",
            "hf.co/two/Plain:latest"
        ]
    );
    assert!(listed[0]["problem"].as_str().is_some_and(|problem| problem.contains("no config.json")), "{listed:?}");
    assert_eq!(listed[3]["same_as"], "hf.co/three/GGUF:F16");
    let (success, _, err) = home.adopt(&server, &["huggingface"]);
    assert!(!success && err.contains("1 of 5 models were not adopted"), "{err}");
    assert_eq!(digest(&server, "hf.co/one/Linked"), digest(&server, "hf.co/two/Plain"));
    // The same model as from a copy.
    server.create("copied", &home.sources.shards()).await;
    assert_eq!(digest(&server, "hf.co/one/Linked"), digest(&server, "copied"));
    answer(&server, "hf.co/one/Linked").await;
    answer(&server, "hf.co/three/GGUF:Q8_0").await;
    // A folder of the cache can be named.
    let named = home.path(".cache/huggingface/hub/models--one--Linked");
    let listed = home.listed(&server, &[text(&named)]);
    assert_eq!(names(&listed), ["hf.co/one/Linked:latest"]);
}

#[tokio::test]
async fn caches_of_gguf_files_are_found() {
    let home = Home::new().await;
    let server = Server::start(&[]).await;
    let gguf = read(&home.sources.gguf());
    home.write(".lmstudio/models/owner/Repo-GGUF/Repo-Q4_K_M.gguf", &gguf);
    home.write(".cache/llama.cpp/owner_other_Other-Q8_0.gguf", &gguf);
    let url = json!({"etag": "x", "url": "https://huggingface.co/owner/other/resolve/main/Other-Q8_0.gguf"});
    home.write(".cache/llama.cpp/owner_other_Other-Q8_0.gguf.json", url.to_string().as_bytes());
    home.write(".cache/llama.cpp/Local-Q8_0.gguf", &gguf);
    let listed = home.listed(&server, &[]);
    let expect = ["hf.co/owner/Repo-GGUF:Q4_K_M", "Local:Q8_0", "hf.co/owner/other:Q8_0"];
    assert_eq!(names(&listed), expect);
    let from: Vec<&Value> = listed.iter().map(|model| &model["from"]).collect();
    assert_eq!(from, ["lmstudio", "llama.cpp", "llama.cpp"]);
    let (success, table, told) = home.adopt(&server, &[]);
    assert!(success && table.contains("hf.co/owner/other:Q8_0"), "{table}");
    assert!(told.contains("3 of 3 models can be adopted"), "{told}");
    for tool in ["lmstudio", "llama.cpp"] {
        let (success, _, err) = home.adopt(&server, &[tool]);
        assert!(success, "{err}");
    }
    answer(&server, "hf.co/owner/other:Q8_0").await;
    let (success, out, err) = home.adopt(&server, &["lmstudio"]);
    assert!(success && out.is_empty() && err.contains("nothing to adopt"), "{err}");
    // Names that are wrong are told with the right ones.
    let (success, _, err) = home.adopt(&server, &["llama.cpp", "nothing"]);
    assert!(!success && err.contains("there are Local:Q8_0, hf.co/owner/other:Q8_0"), "{err}");
    let (success, _, err) = home.adopt(&server, &["llama.cpp", "--name", "x"]);
    assert!(!success && err.contains("--name is for one model, 2 were found"), "{err}");
    let (success, out, err) = home.adopt(&server, &["llama.cpp", "local:q8_0", "--name", "mine"]);
    assert!(success && out == "mine:latest\n", "{out}{err}");
    fails(&server, &["adopt", "--name", "x"], "required");
    done(&server, &["fsck"]);
}

#[tokio::test]
async fn nothing_found_is_said() {
    let home = Home::new().await;
    let server = Server::start(&[]).await;
    let (success, out, err) = home.adopt(&server, &[]);
    assert!(success && out.is_empty() && err.contains("no model of Ollama"), "{out}{err}");
    assert_eq!(home.listed(&server, &["ollama"]), Vec::<Value>::new());
}
