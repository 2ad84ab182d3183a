//! GGUF models with a projector file: all ways to import one give the answers of the folder that
//! both files were made from.

use std::path::{Path, PathBuf};

use formats::Gguf;
use formats::gguf::{NewTensor, OwnedValue, write_header};
use serde_json::{Value, json};

use super::{check_same, picture, with_tokens};
use crate::export::exported;
use crate::server::{Server, in_float32};
use crate::support::{fixtures, list, object, read, root};
use crate::whole_gguf::{CONFIG, OLLAMA, push};

const PROJECTOR: &str = "application/vnd.ollama.image.projector";

/// A daemon with the tiny Gemma 3 as a folder, `folder`, and its GGUF files.
struct Models {
    server: Server,
    place: tempfile::TempDir,
}

impl Models {
    async fn start(test: &str) -> Option<Self> {
        let zoo = fixtures(test, "zoo2026")?;
        let tokens = json!({"<image_soft_token>": 310, "<start_of_image>": 311, "<end_of_image>": 312});
        let settings = json!({"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 16, "width": 16}});
        let folder = with_tokens(&zoo, "gemma3", object(&tokens), &settings);
        let server = Server::start(&[in_float32(), ("LODE_KV_CACHE_TYPE", "f32")]).await;
        server.create("folder", folder.path()).await;
        let place = tempfile::tempdir().expect("a folder");
        // The head of the tower is not in these files, and another program wrote the projector.
        let files = place.path().join("exported");
        exported(&server, "folder", &files, &["--format", "gguf", "--lossy"]);
        std::fs::rename(files.join("folder.gguf"), place.path().join("model.gguf")).expect("a file");
        std::fs::copy(projector("gemma3"), place.path().join("mmproj-F16.gguf")).expect("a copy");
        Some(Self { server, place })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Checks that a model answers as the folder does.
    async fn check(&self, model: &str, tolerance: f64) {
        check_same(&self.server, model, "folder", tolerance).await;
    }

    /// Returns the error for a request with a picture.
    async fn error(&self, model: &str) -> String {
        let request = json!({"model": model, "prompt": "x", "stream": false, "images": [picture("plain.png")]});
        let (status, answer) = self.server.call("/api/generate", &request).await;
        assert_eq!(status, 400, "{answer}");
        answer["error"].as_str().expect("a text").to_owned()
    }
}

/// Returns the projector file of a tiny model.
fn projector(model: &str) -> PathBuf {
    root().join(format!("tests/pictures/projectors/{model}.gguf"))
}

fn command(server: &Server, arguments: &[&str]) -> (bool, String) {
    let output = server.lode(arguments);
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test]
async fn a_folder_or_two_files_are_one_model() {
    let Some(models) = Models::start("pictures::projectors::a_folder_or_two_files_are_one_model").await else { return };
    let server = &models.server;
    // Of several projectors, that in 16 bits is taken.
    std::fs::create_dir(models.path("both")).expect("a folder");
    for (from, to) in [("model.gguf", "both/model.gguf"), ("mmproj-F16.gguf", "both/mmproj-F16.gguf")] {
        std::fs::copy(models.path(from), models.path(to)).expect("a copy");
    }
    std::fs::copy(projector("gemma3"), models.path("both/mmproj-second.gguf")).expect("a copy");
    let lines = server.create("both", &models.path("both")).await;
    let left_out = lines.iter().filter_map(|line| line["status"].as_str()).find(|status| status.contains("left out"));
    assert!(left_out.is_some_and(|status| status.contains("mmproj-second.gguf")), "{lines:?}");
    models.check("both", 1e-3).await;
    let shown = server.ask("/api/show", &json!({"model": "both"})).await;
    assert!(list(&shown["capabilities"]).contains(&"vision".into()), "{shown}");
    assert_eq!(shown["projector_info"]["clip.vision.embedding_length"], 32, "{shown}");

    // Two lines of a Modelfile; the files have the same name.
    std::fs::create_dir(models.path("tower")).expect("a folder");
    std::fs::copy(projector("gemma3"), models.path("tower/model.gguf")).expect("a copy");
    let write = |text: &str| std::fs::write(models.path("Modelfile"), text).expect("a file");
    write("FROM ./model.gguf\nFROM ./tower/model.gguf\n");
    let modelfile = models.path("Modelfile");
    let modelfile = modelfile.to_str().expect("a path");
    let (is_made, said) = command(server, &["create", "lines", "-f", modelfile]);
    assert!(is_made, "{said}");
    models.check("lines", 1e-3).await;
    for (lines, says) in [
        ("FROM ./model.gguf\nFROM ./model.gguf\n", "is no projector"),
        ("FROM ./model.gguf\nFROM ./tower/model.gguf\nFROM ./tower/model.gguf\n", "there are 3 FROM lines"),
        ("FROM folder\nFROM ./tower/model.gguf\n", "name the model's file"),
        ("FROM ./model.gguf\nFROM ./absent.gguf\n", "absent.gguf"),
    ] {
        write(lines);
        let (is_made, said) = command(server, &["create", "refused", "-f", modelfile]);
        assert!(!is_made && said.contains(says), "{lines}: {said}");
    }

    // Paths of the daemon's machine, and uploaded files.
    let paths = json!({"model": "paths", "path": models.path("model.gguf"), "projector": models.path("mmproj-F16.gguf"),
        "stream": false});
    server.ask("/api/create", &paths).await;
    models.check("paths", 1e-3).await;
    let mut files = serde_json::Map::new();
    for name in ["model.gguf", "mmproj-F16.gguf"] {
        let bytes = read(&models.path(name));
        let digest = content::Digest::of(&bytes).to_string();
        let sent = server.http.post(server.url(&format!("/api/blobs/{digest}"))).body(bytes).send().await;
        assert_eq!(sent.expect("the daemon answers").status().as_u16(), 201);
        files.insert(name.to_owned(), digest.into());
    }
    server.ask("/api/create", &json!({"model": "uploaded", "files": files, "stream": false})).await;
    models.check("uploaded", 1e-3).await;
    let alone = json!({"model": "x", "projector": models.path("mmproj-F16.gguf"), "from": "both"});
    assert_eq!(server.call("/api/create", &alone).await.0, 400);
}

#[tokio::test]
async fn a_named_projector_is_taken() {
    let Some(models) = Models::start("pictures::projectors::a_named_projector_is_taken").await else { return };
    let server = &models.server;
    // Files of other stores have no extension; a projector that is named takes precedence over
    // one in the folder.
    std::fs::create_dir(models.path("blobs")).expect("a folder");
    std::fs::copy(models.path("model.gguf"), models.path("blobs/sha256-a")).expect("a copy");
    std::fs::copy(projector("gemma3"), models.path("blobs/sha256-b")).expect("a copy");
    let modelfile = models.path("Modelfile");
    std::fs::write(&modelfile, "FROM ./blobs/sha256-a\nFROM ./blobs/sha256-b\n").expect("a file");
    let (is_made, said) = command(server, &["create", "blobs", "-f", modelfile.to_str().expect("a path")]);
    assert!(is_made, "{said}");
    models.check("blobs", 1e-3).await;
    std::fs::create_dir(models.path("both")).expect("a folder");
    std::fs::copy(models.path("model.gguf"), models.path("both/model.gguf")).expect("a copy");
    std::fs::copy(projector("qwen3_vl"), models.path("both/mmproj-F16.gguf")).expect("a copy");
    let named =
        json!({"model": "named", "path": models.path("both"), "projector": projector("gemma3"), "stream": false});
    server.ask("/api/create", &named).await;
    models.check("named", 1e-3).await;
    for (path, says) in [("both", "is no projector"), ("model.gguf", "is no projector"), ("absent", "absent")] {
        let paths = json!({"model": "x", "path": models.path("model.gguf"), "projector": models.path(path)});
        let answer = server.call("/api/create", &paths).await.1.to_string();
        assert!(answer.contains(says), "{path}: {answer}");
    }
    std::fs::remove_file(models.path("both/model.gguf")).expect("it is removed");
    std::fs::copy(projector("gemma3"), models.path("both/mmproj-x.gguf")).expect("a copy");
    let lines = server.lines("/api/create", &json!({"model": "x", "path": models.path("both")})).await;
    let last = lines.last().expect("a line").to_string();
    assert!(last.contains("are projectors; the model that they belong to is missing"), "{last}");
}

#[tokio::test]
async fn a_projector_follows_its_model() {
    let Some(models) = Models::start("pictures::projectors::a_projector_follows_its_model").await else { return };
    let server = &models.server;
    let paths = json!({"model": "m", "path": models.path("model.gguf"), "projector": models.path("mmproj-F16.gguf"),
        "stream": false});
    server.ask("/api/create", &paths).await;
    // Exports give both files: the same bytes, or files of the same numbers.
    exported(server, "m", &models.path("origin"), &[]);
    for name in ["model.gguf", "mmproj-F16.gguf"] {
        assert_eq!(read(&models.path("origin").join(name)), read(&models.path(name)), "{name}");
    }
    exported(server, "m", &models.path("files"), &["--format", "gguf"]);
    server.create("files", &models.path("files")).await;
    models.check("files", 1e-3).await;
    let (is_made, said) = command(server, &["export", "m", "--to", "/nowhere", "--format", "safetensors"]);
    assert!(!is_made && said.contains("the tower for pictures"), "{said}");
    // Bytes behind the tensors are kept, and are no header.
    let mut longer = read(&models.path("mmproj-F16.gguf"));
    longer.extend_from_slice(b"behind the tensors");
    std::fs::write(models.path("longer.gguf"), &longer).expect("a file");
    let paths = json!({"model": "longer", "path": models.path("model.gguf"), "projector": models.path("longer.gguf"),
        "stream": false});
    server.ask("/api/create", &paths).await;
    models.check("longer", 1e-3).await;
    exported(server, "longer", &models.path("again"), &[]);
    assert_eq!(read(&models.path("again/longer.gguf")), longer);
    // The tower keeps its numbers in a quantized model.
    server.ask("/api/create", &json!({"model": "q", "from": "m", "quantize": "q8_0", "stream": false})).await;
    models.check("q", 0.5).await;
    // Ollama's layers, which are used in place.
    let files = [(models.path("model.gguf"), OLLAMA), (models.path("mmproj-F16.gguf"), PROJECTOR)];
    let files: Vec<(&Path, &str)> = files.iter().map(|(path, kind)| (path.as_path(), *kind)).collect();
    push(server, &files, CONFIG).await;
    models.check("someone/model", 1e-3).await;
}

/// Returns a model's file that also has the keys and tensors of a tower.
fn with_tower(model: &[u8], tower: &[u8]) -> Vec<u8> {
    let files = [model, tower].map(|bytes| (Gguf::parse(bytes).expect("a GGUF file"), bytes));
    let of_tower = |key: &str| key.starts_with("gemma3.vision.") || key.starts_with("gemma3.mm.");
    let [(of_model, _), (other, _)] = &files;
    let added = other.metadata.iter().filter(|(key, _)| of_tower(key));
    let keys = of_model.metadata.iter().chain(added).map(|(key, value)| ((*key).to_owned(), OwnedValue::from(value)));
    let tensors: Vec<_> = files
        .iter()
        .flat_map(|(file, bytes)| file.tensors.iter().map(move |own| (own, file.data_start, bytes)))
        .collect();
    let new =
        tensors.iter().map(|(own, ..)| NewTensor { name: own.name.to_owned(), kind: own.kind, dims: own.dims.clone() });
    let header = write_header(&keys.collect::<Vec<_>>(), &new.collect::<Vec<_>>()).expect("a header");
    let mut file = header.bytes;
    let begin = file.len();
    file.resize(begin + header.data_size as usize, 0);
    for ((own, data, bytes), place) in tensors.iter().zip(&header.places) {
        let from = (data + own.offset) as usize;
        file[begin + place.offset as usize..][..own.size as usize].copy_from_slice(&bytes[from..][..own.size as usize]);
    }
    file
}

#[tokio::test]
async fn a_tower_may_be_in_the_models_own_file() {
    let Some(models) = Models::start("pictures::projectors::a_tower_may_be_in_the_models_own_file").await else {
        return;
    };
    let server = &models.server;
    let tower = read(&root().join("tests/pictures/embedded/gemma3.gguf"));
    let file = with_tower(&read(&models.path("model.gguf")), &tower);
    std::fs::write(models.path("own.gguf"), &file).expect("a file");
    server.create("own", &models.path("own.gguf")).await;
    models.check("own", 1e-3).await;
    let shown = server.ask("/api/show", &json!({"model": "own"})).await;
    assert!(list(&shown["capabilities"]).contains(&"vision".into()), "{shown}");
    exported(server, "own", &models.path("origin.gguf"), &[]);
    assert_eq!(read(&models.path("origin.gguf")), file);
    exported(server, "own", &models.path("again.gguf"), &["--format", "gguf"]);
    server.create("again", &models.path("again.gguf")).await;
    models.check("again", 1e-3).await;
    server.ask("/api/create", &json!({"model": "q", "from": "own", "quantize": "q8_0", "stream": false})).await;
    models.check("q", 0.5).await;
    push(server, &[(models.path("own.gguf").as_path(), OLLAMA)], CONFIG).await;
    models.check("someone/model", 1e-3).await;
    // A tower with a tensor that is not known says which one it is.
    let at = file.windows(18).position(|window| window == b"v.blk.1.layer_norm").expect("a tensor of the tower");
    let mut other = file.clone();
    other[at + 6] = b'9';
    std::fs::write(models.path("other.gguf"), other).expect("a file");
    server.create("other", &models.path("other.gguf")).await;
    let error = models.error("other").await;
    assert!(error.contains("the tensor `v.blk.9.layer_norm1."), "{error}");
}

#[tokio::test]
async fn what_cannot_see_says_why() {
    let Some(models) = Models::start("pictures::projectors::what_cannot_see_says_why").await else { return };
    let server = &models.server;
    server.create("text", &models.path("model.gguf")).await;
    let paths = json!({"model": "qwen", "path": models.path("model.gguf"), "projector": projector("qwen3_vl"),
        "stream": false});
    server.ask("/api/create", &paths).await;
    let error = models.error("qwen").await;
    assert!(error.contains("for models of the architecture qwen3vl or"), "{error}");
    let error = models.error("text").await;
    assert!(error.contains("import both together"), "{error}");
    for (name, change, says) in [
        ("kind", ("\u{6}\0\0\0\0\0\0\0gemma3", "\u{6}\0\0\0\0\0\0\0gemma9"), "projector `gemma9`"),
        ("key", ("clip.use_gelu", "clip.vision.a"), "`clip.vision.a` is not known"),
        ("width", ("embedding_length\u{4}\0\0\0\u{20}", "embedding_length\u{4}\0\0\0\0"), "a tower of width 0"),
        ("norm", ("v.blk.1.ln2.weight", "v.blk.9.ln2.weight"), "`v.blk.1.ln2.weight` of the tower is missing"),
        ("heads", ("head_count\u{4}\0\0\0\u{2}", "head_count\u{4}\0\0\0\u{5}"), "has 5 heads"),
    ] {
        let mut bytes = read(&models.path("mmproj-F16.gguf"));
        let at = bytes.windows(change.0.len()).position(|window| window == change.0.as_bytes());
        let Some(at) = at else { panic!("{name}: the file has no `{}`", change.0) };
        bytes[at..at + change.0.len()].copy_from_slice(change.1.as_bytes());
        std::fs::write(models.path("changed.gguf"), bytes).expect("a file");
        let paths = json!({"model": name, "path": models.path("model.gguf"), "projector": models.path("changed.gguf"),
            "stream": false});
        server.ask("/api/create", &paths).await;
        let error = models.error(name).await;
        assert!(error.contains(says), "{name}: {error}");
        let request = json!({"model": name, "prompt": "x", "stream": false, "options": {"num_predict": 1}});
        let answer: Value = server.ask("/api/generate", &request).await;
        assert_eq!(answer["done"], true, "{name}: {answer}");
    }
}
