//! Tests with manifests as the tools write them, shortened.

use content::Digest;
use serde_json::{Value, json};

use super::*;
use crate::layer_split::split_layers;

fn layer(media_type: &str, name: Option<&str>) -> Value {
    let digest = Digest::of(format!("{media_type}{name:?}").as_bytes()).to_string();
    let mut layer = json!({"mediaType": media_type, "digest": digest, "size": 1});
    if let Some(name) = name {
        layer["annotations"] = json!({FILE_PATH: name});
    }
    layer
}

fn manifest(artifact: Option<&str>, config: &str, layers: &[Value]) -> Manifest {
    let mut document = json!({"schemaVersion": 2, "config": layer(config, None), "layers": layers});
    if let Some(artifact) = artifact {
        document["artifactType"] = artifact.into();
    }
    Manifest::parse(document.to_string().as_bytes()).expect("a manifest")
}

fn check(artifact: Option<&str>, config: &str, layers: &[Value], expect: &[(&str, FileKind)]) {
    match classify(&manifest(artifact, config, layers)) {
        Layout::Files(files) => {
            let found: Vec<_> = files.iter().map(|file| (file.name.as_str(), file.kind)).collect();
            assert_eq!(found, expect);
        }
        other => panic!("{other:?}"),
    }
}

fn unknown(layers: &[Value], says: &str) {
    match classify(&manifest(None, "application/vnd.oci.empty.v1+json", layers)) {
        Layout::Unknown(reason) => assert!(reason.contains(says), "`{reason}` should say `{says}`"),
        other => panic!("{other:?}"),
    }
}

const IMAGE: &str = "application/vnd.docker.container.image.v1+json";

#[test]
fn ollama_keeps_its_texts() {
    let layers = ["model", "template", "system", "params", "license", "license", "messages", "projector"];
    let layers = layers.map(|kind| layer(&format!("{OLLAMA}{kind}"), None));
    let Layout::Files(files) = classify(&manifest(None, IMAGE, &layers)) else { panic!("files") };
    let divided = split_layers(files);
    let split: Vec<_> = divided.split.iter().map(|file| (file.name.as_str(), file.kind)).collect();
    assert_eq!(split, [("model.gguf", FileKind::Gguf), ("mmproj.gguf", FileKind::Projector)]);
    let kept: Vec<&str> = divided.kept.iter().map(|layer| layer.media_type().as_str()).collect();
    let expect = ["template", "system", "params", "license", "license", "messages"];
    assert_eq!(kept, expect.map(|kind| format!("{OLLAMA}{kind}")));
    assert!(divided.kept.iter().all(|layer| layer.name().is_none()), "a made-up name was written down");
}

#[test]
fn tensor_layers_are_usable() {
    let tensor = layer(media_types::TENSOR.as_str(), None);
    assert_eq!(classify(&manifest(None, IMAGE, std::slice::from_ref(&tensor))), Layout::OllamaTensors);
    let origin = layer(media_types::ORIGIN.as_str(), None);
    assert_eq!(classify(&manifest(None, IMAGE, &[tensor, origin])), Layout::Lode);
}

#[test]
fn docker_with_and_without_names() {
    let config = "application/vnd.docker.ai.model.config.v0.1+json";
    check(
        None,
        config,
        &[layer("application/vnd.docker.ai.gguf.v3", None), layer("application/vnd.docker.ai.license", None)],
        &[("model.gguf", FileKind::Gguf), ("license", FileKind::License)],
    );
    let shard = |number: u8| {
        let mut shard = json!({"mediaType": "application/vnd.docker.ai.safetensors", "size": 1});
        shard["digest"] = Digest::of(&[number]).to_string().into();
        shard
    };
    check(
        None,
        config,
        &[shard(1), shard(2), layer("application/vnd.docker.ai.vllm.config.tar", Some("config.tar"))],
        &[
            ("model-00001-of-00002.safetensors", FileKind::Safetensors),
            ("model-00002-of-00002.safetensors", FileKind::Safetensors),
            ("config.tar", FileKind::Tar),
        ],
    );
    check(
        None,
        "application/vnd.docker.ai.model.config.v0.2+json",
        &[
            layer("application/vnd.docker.ai.safetensors", Some("weights/a.safetensors")),
            layer("application/vnd.docker.ai.model.file", Some("config.json")),
            layer("application/vnd.docker.ai.chat.template.jinja", Some("chat_template.jinja")),
            layer("application/vnd.example.other", Some("notes.txt")),
        ],
        &[
            ("weights/a.safetensors", FileKind::Safetensors),
            ("config.json", FileKind::Side),
            ("chat_template.jinja", FileKind::Template),
            ("notes.txt", FileKind::Side),
        ],
    );
}

#[test]
fn model_pack_raw_tar_and_old() {
    let artifact = Some("application/vnd.cncf.model.manifest.v1+json");
    let config = "application/vnd.cncf.model.config.v1+json";
    let typed = |rest: &str, name| layer(&format!("{MODEL_PACK}{rest}"), name);
    check(
        artifact,
        config,
        &[
            typed("weight.v1.raw", Some("model.safetensors")),
            typed("weight.config.v1.raw", Some("config.json")),
            typed("doc.v1.tar+gzip", Some("docs.tgz")),
        ],
        &[("model.safetensors", FileKind::Safetensors), ("config.json", FileKind::Side), ("docs.tgz", FileKind::Side)],
    );
    check(artifact, config, &[typed("weight.v1.tar", Some("w.tar"))], &[("w.tar", FileKind::Tar)]);
    check(artifact, config, &[typed("weight.v1.raw", None)], &[("model.gguf", FileKind::Gguf)]);
    check(None, config, &[typed("weight.v1.gguf", Some("q4"))], &[("q4.gguf", FileKind::Gguf)]);
    unknown(&[typed("weight.v1.tar+zstd", Some("w.tar.zst"))], "compressed");
}

#[test]
fn files_of_any_tool() {
    let plain = "application/octet-stream";
    let config = "application/vnd.oci.empty.v1+json";
    check(None, config, &[layer(plain, Some("a/M.GGUF"))], &[("a/M.GGUF", FileKind::Gguf)]);
}

#[test]
fn refuses() {
    let gguf = |name| layer("application/vnd.docker.ai.gguf.v3", Some(name));
    unknown(&[gguf("../x.gguf")], "goes up");
    unknown(&[gguf("/x.gguf")], "absolute");
    unknown(&[gguf("x.gguf"), gguf("./x.gguf")], "two files called");
    unknown(&[layer("application/vnd.oci.image.layer.v1.tar+gzip", None)], "first layer `application/vnd.oci.image");
    unknown(&[layer("application/vnd.ollama.image.template", None)], "no layer with GGUF");
    unknown(&[layer("application/vnd.docker.ai.dduf", None)], "diffusion");
    unknown(&[], "first layer `none`");
}
