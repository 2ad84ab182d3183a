//! Tests with references and listings of hubs, shortened.

use serde_json::json;

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn reference(text: &str) -> HubReference {
    HubReference::parse(text).expect(text).expect(text)
}

fn listing(files: &[&str]) -> Listing {
    let siblings: Vec<_> = files.iter().map(|file| json!({"rfilename": file, "size": 5})).collect();
    Listing::parse(json!({"sha": COMMIT, "siblings": siblings}).to_string().as_bytes()).expect("a listing")
}

fn check(text: &str, files: &[&str], expect: &[&str]) {
    let listing = listing(files);
    let chosen = reference(text).choose(&listing, None).unwrap_or_else(|e| panic!("{text}: {e:#}"));
    let chosen: Vec<&str> = chosen.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(chosen, expect, "{text}");
}

#[test]
fn reads_references() {
    for (text, repository, wanted, revision, name) in [
        ("hf.co/u/R", "u/R", None, "main", "hf.co/u/R:latest"),
        ("huggingface.co/u/R:latest", "u/R", None, "main", "hf.co/u/R:latest"),
        ("https://HF.co/u/R:q8_0", "u/R", Some("q8_0"), "main", "hf.co/u/R:q8_0"),
        ("hf.co/u/R:sub/m.gguf", "u/R", Some("sub/m.gguf"), "main", "hf.co/u/R:sub-m.gguf"),
        ("hf.co/u/R@refs/pr/1", "u/R", None, "refs/pr/1", "hf.co/u/R:latest-at-refs-pr-1"),
        ("hf.co/u/R:Q4_0@v1.0", "u/R", Some("Q4_0"), "v1.0", "hf.co/u/R:Q4_0-at-v1.0"),
    ] {
        let found = reference(text);
        assert_eq!(
            (found.repository(), found.wanted.as_deref(), found.revision.as_str()),
            (repository, wanted, revision)
        );
        assert_eq!(found.model_ref().expect(text).to_string(), name);
    }
    for other in ["smollm2", "library/x:latest", "example.com/u/r", "hf.company/u/r"] {
        assert_eq!(HubReference::parse(other).expect(other), None);
    }
    let digest = format!("hf.co/u/r@{}", Digest::of(b""));
    for bad in
        ["hf.co/u", "hf.co/u/r/s", "hf.co/../r", "hf.co/u/r:", "hf.co/u/r@", "hf.co/u/r@../x", "hf.co/u/r:a b", &digest]
    {
        assert!(HubReference::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn makes_addresses() {
    let reference = reference("hf.co/u/R@refs/pr/1");
    assert_eq!(
        reference.listing_url("https://hub.example/"),
        "https://hub.example/api/models/u/R/revision/refs%2Fpr%2F1?blobs=true"
    );
    assert_eq!(
        reference.file_url("https://hub.example", &listing(&[]), "sub/a b?.gguf"),
        format!("https://hub.example/u/R/resolve/{COMMIT}/sub/a%20b%3F.gguf")
    );
}

#[test]
fn reads_listings() {
    let sha = "ab".repeat(32);
    let raw = json!({"sha": COMMIT, "siblings": [
        {"rfilename": "m.gguf", "size": 9, "blobId": "x", "lfs": {"sha256": sha, "size": 7, "pointerSize": 134}},
        {"rfilename": "README.md"},
    ]});
    let listing = Listing::parse(raw.to_string().as_bytes()).expect("a listing");
    let file = listing.file("m.gguf").expect("it is there");
    assert_eq!((file.size, file.digest.map(|digest| digest.to_string())), (Some(7), Some(format!("sha256:{sha}"))));
    assert_eq!(listing.file("README.md").expect("it is there").size, None);
    for bad in [
        json!({"siblings": []}),
        json!({"sha": "../../x", "siblings": []}),
        json!({"sha": COMMIT, "siblings": [{"rfilename": "../x"}]}),
        json!({"sha": COMMIT, "siblings": [{"rfilename": "x", "lfs": {"sha256": "zz"}}]}),
    ] {
        assert!(Listing::parse(bad.to_string().as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn chooses_gguf_files() {
    let files = [
        "README.md",
        "mmproj-m-f16.gguf",
        "m-IQ4_XS.gguf",
        "m-Q4_K_M.gguf",
        "m-Q4_K_S.gguf",
        "m-UD-Q4_K_M.gguf",
        "m.Q8_0.gguf",
        "BF16/m-BF16-00001-of-00002.gguf",
        "BF16/m-BF16-00002-of-00002.gguf",
        "config.json",
        "model.safetensors",
    ];
    let projector = "mmproj-m-f16.gguf";
    check("hf.co/u/r", &files, &["m-Q4_K_M.gguf", projector]);
    check("hf.co/u/r:q8_0", &files, &["m.Q8_0.gguf", projector]);
    check("hf.co/u/r:iq4_xs", &files, &["m-IQ4_XS.gguf", projector]);
    check("hf.co/u/r:ud-q4_k_m", &files, &["m-UD-Q4_K_M.gguf", projector]);
    check("hf.co/u/r:m-q4_k_s.gguf", &files, &["m-Q4_K_S.gguf", projector]);
    check("hf.co/u/r:m.q8_0", &files, &["m.Q8_0.gguf", projector]);
    for (projectors, preferred) in [
        (["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"], "mmproj-F16.gguf"),
        (["a.mmproj-Q8_0.gguf", "a.mmproj-f32.gguf", "mmproj.txt"], "a.mmproj-f32.gguf"),
        (["mmproj-model-bf16.gguf", "mmproj-x.gguf", "mmproj-Q8_0.gguf"], "mmproj-model-bf16.gguf"),
    ] {
        let files: Vec<&str> = ["m-Q4_K_M.gguf"].into_iter().chain(projectors).collect();
        check("hf.co/u/r", &files, &["m-Q4_K_M.gguf", preferred]);
    }
    let split = ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf", projector];
    check("hf.co/u/r:bf16", &files, &split);
    check("hf.co/u/r:model.safetensors", &files, &["model.safetensors", "config.json"]);
    check("hf.co/u/r", &["b-Q8_0.gguf", "a-Q6_K.gguf"], &["a-Q6_K.gguf"]);
    for missing in ["Q4_K", "Q3_K_M", "XS"] {
        let error = reference(&format!("hf.co/u/r:{missing}")).choose(&listing(&files), None).expect_err(missing);
        assert!(error.to_string().contains("it has m.Q8_0.gguf, "), "{error}");
    }
    let cut = listing(&["m-Q4_K_M-00001-of-00002.gguf"]);
    let error = reference("hf.co/u/r").choose(&cut, None).expect_err("one is missing").to_string();
    assert!(error.contains("00002-of-00002"), "{error}");
}

#[test]
fn chooses_safetensors_files() {
    let files = [
        "LICENSE",
        "README.md",
        "chat_template.jinja",
        "config.json",
        "consolidated.safetensors",
        "merges.txt",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        INDEX,
        "onnx/model.onnx",
        "onnx/config.json",
        "onnx/preprocessor_config.json",
        "preprocessor_config.json",
        "processor_config.json",
        "pytorch_model.bin",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
    ];
    let side = [
        "LICENSE",
        "chat_template.jinja",
        "config.json",
        "merges.txt",
        "preprocessor_config.json",
        "processor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
    ];
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    check("hf.co/u/r", &files, &[&shards[..], &side].concat());
    let (reference, listing) = (reference("hf.co/u/r"), listing(&files));
    assert_eq!(reference.index(&listing).expect("an index").map(|file| file.path.as_str()), Some(INDEX));
    let index = json!({"weight_map": {"a": shards[1], "b": shards[1]}}).to_string();
    let chosen = reference.choose(&listing, Some(index.as_bytes())).expect("chosen");
    let chosen: Vec<&str> = chosen.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(chosen, [&shards[1..], &side, &[INDEX]].concat());
    let missing = json!({"weight_map": {"a": "../other.safetensors"}}).to_string();
    assert!(reference.choose(&listing, Some(missing.as_bytes())).is_err());
    assert!(reference.choose(&super::tests::listing(&["model.bin"]), None).is_err());
}

#[test]
fn chooses_the_modules_of_sentence_transformers() {
    let files = [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "2_Dense/pytorch_model.bin",
        "config.json",
        "config_sentence_transformers.json",
        "model.safetensors",
        "modules.json",
        "onnx/config.json",
        "onnx/model.safetensors",
        "sentence_bert_config.json",
    ];
    let side = [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "config.json",
        "config_sentence_transformers.json",
        "modules.json",
        "sentence_bert_config.json",
    ];
    let chosen = [&["model.safetensors", "2_Dense/model.safetensors"][..], &side].concat();
    check("hf.co/u/r", &files, &chosen);
    check("hf.co/u/r:model.safetensors", &files, &chosen);
    let index = json!({"weight_map": {"a": "model.safetensors", "b": "2_Dense/model.safetensors"}}).to_string();
    let listing = listing(&[&files[..], &[INDEX]].concat());
    let indexed = reference("hf.co/u/r").choose(&listing, Some(index.as_bytes())).expect("chosen");
    let count = indexed.iter().filter(|file| file.path == "2_Dense/model.safetensors").count();
    assert_eq!(count, 1, "the index names it too");
}
