//! Rerankers: scores equal those of sentence-transformers, for folders and for GGUF files. Models
//! that cannot rank are refused.

use std::collections::BTreeMap;
use std::path::Path;

use formats::gguf::{NewTensor, OwnedValue, write_header};
use formats::safetensors::{Header, Member, TensorInfo, canonical_header};
use formats::{Dtype, GgmlType, Gguf};
use serde_json::{Value, json};

use crate::server::{Server, in_float32};
use crate::support::{fixtures, json as read_json, list, numbers, object, read, root};

/// The largest difference of a score.
const TOLERANCE: f64 = 1e-4;

/// A tensor with its bytes.
struct Tensor {
    member: Member,
    bytes: Vec<u8>,
}

impl Tensor {
    /// Returns a tensor that a case adds.
    fn added(own: &Value) -> Self {
        let shape = numbers(&own["shape"]);
        let [seed, scale] = ["seed", "scale"].map(|key| own[key].as_f64().expect("a number"));
        let number = |index: u64| ((seed + 12.9898 * index as f64).sin() * scale) as f32;
        let bytes: Vec<u8> = (0..shape.iter().product()).flat_map(|index| number(index).to_le_bytes()).collect();
        let name = text(&own["name"]).to_owned();
        Self { member: Member { name, dtype: Dtype::F32, shape, size: bytes.len() as u64 }, bytes }
    }

    /// Returns the tensors of a file, with a prefix before their names.
    fn of_file(path: &Path, prefix: &str) -> Vec<Self> {
        let file = read(path);
        let header = Header::parse(&file, file.len() as u64).expect("a header");
        let tensor = |own: &TensorInfo| {
            let place = |at: u64| (header.data_start + at) as usize;
            let (name, shape) = (format!("{prefix}{}", own.name), own.shape.clone());
            let member = Member { name, dtype: own.dtype, shape, size: own.size() };
            Self { member, bytes: file[place(own.begin)..place(own.end)].to_vec() }
        };
        header.tensors.iter().map(tensor).collect()
    }
}

/// Makes the folder of a case, as `make_rerank_golden.py` does.
fn folder(hf: &Path, case: &Value, into: &Path) {
    let model = hf.join(text(&case["fixture"])).join("model");
    for entry in std::fs::read_dir(&model).expect("a model").flatten() {
        if entry.path().is_file() && case["files"].get(entry.file_name().to_string_lossy().as_ref()).is_none() {
            std::fs::copy(entry.path(), into.join(entry.file_name())).expect("a copy");
        }
    }
    for (name, content) in object(&case["files"]).iter().filter(|(_, content)| !content.is_null()) {
        let path = into.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, content.as_str().map_or_else(|| content.to_string(), str::to_owned)).expect("a file");
    }
    for (name, keys) in object(&case["patches"]) {
        let mut document = read_json(&into.join(name));
        for (key, value) in object(keys) {
            let map = document.as_object_mut().expect("an object");
            map.remove(key);
            if !value.is_null() {
                map.insert(key.clone(), value.clone());
            }
        }
        std::fs::write(into.join(name), document.to_string()).expect("a file");
    }
    let mut tensors = Tensor::of_file(&model.join("model.safetensors"), text(&case["prefix"]));
    tensors.extend(list(&case["tensors"]).iter().map(Tensor::added));
    let members: Vec<Member> = tensors.iter().map(|tensor| tensor.member.clone()).collect();
    let mut file = canonical_header(&members, &BTreeMap::new());
    for tensor in &tensors {
        file.extend_from_slice(&tensor.bytes);
    }
    std::fs::write(into.join("model.safetensors"), file).expect("a file");
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// Starts a daemon whose runners compute in float32 with a float32 KV cache.
async fn exact() -> Server {
    Server::start(&[("LODE_KV_CACHE_TYPE", "f32"), in_float32()]).await
}

fn golden() -> Value {
    read_json(&root().join("tests/models/rerank.json"))
}

fn request(case: &Value, model: &str) -> Value {
    json!({"model": model, "query": case["query"], "documents": case["documents"], "instruction": case["instruction"]})
}

/// Compares a response with the scores of a case.
fn check(name: &str, answer: &Value, scores: &Value) {
    let results = list(&answer["results"]);
    assert_eq!(results.len(), list(scores).len(), "{name}: {answer}");
    let score = |result: &Value| result["relevance_score"].as_f64().expect("a score");
    assert!(results.is_sorted_by(|one, other| score(one) >= score(other)), "{name}: {answer}");
    for result in results {
        let index = result["index"].as_u64().expect("a place") as usize;
        let expected = scores[index].as_f64().expect("a score");
        assert!((score(result) - expected).abs() < TOLERANCE, "{name}, document {index}: {answer}, expected {scores}");
    }
}

#[tokio::test]
async fn scores_are_those_of_sentence_transformers() {
    let Some(hf) = fixtures("rerank::scores_are_those_of_sentence_transformers", "hf") else { return };
    let server = exact().await;
    for (index, (name, case)) in object(&golden()).iter().enumerate() {
        let made = tempfile::tempdir().expect("a folder");
        folder(&hf, case, made.path());
        let model = format!("case{index}");
        server.create(&model, made.path()).await;
        let shown = server.ask("/api/show", &json!({"model": model})).await;
        assert!(list(&shown["capabilities"]).contains(&json!("rerank")), "{name}: {}", shown["capabilities"]);
        let mut body = request(case, &model);
        let timed = server.ask("/api/rerank", &body).await;
        check(name, &timed, &case["scores"]);
        let tokens: u64 = list(&case["tokens"]).iter().filter_map(Value::as_u64).sum();
        assert_eq!(timed["prompt_eval_count"], tokens, "{name}");
        body["raw_scores"] = true.into();
        let raw = server.ask("/v1/rerank", &body).await;
        check(name, &raw, &case["raw_scores"]);
        assert_eq!(raw["usage"]["total_tokens"], tokens, "{name}");
        if name.ends_with("cut") {
            body["truncate"] = false.into();
            let (status, answer) = server.call("/v1/rerank", &body).await;
            assert_eq!(status, 400, "{name}: {answer}");
            assert!(raw["usage"]["truncated_tokens"].as_u64() > Some(0), "{name}: {raw}");
        }
    }
}

/// Returns the name of a head's module in a GGUF file.
fn module(name: &str) -> &'static str {
    match name {
        "classifier.dense" | "head.dense" => "cls",
        "head.norm" => "cls.norm",
        _ => "cls.output",
    }
}

/// Writes the GGUF file of a fixture with a head and additional metadata, as llama.cpp's converter
/// does.
fn gguf_file(fixture: &Path, more: &[(&str, OwnedValue)], heads: &[Tensor], into: &Path) {
    let bytes = read(&fixture.join("model.gguf"));
    let own = Gguf::parse(&bytes).expect("a file");
    let architecture = own.text("general.architecture").expect("a name");
    let mut keys: Vec<(String, OwnedValue)> =
        own.metadata.iter().map(|(key, value)| ((*key).to_owned(), value.into())).collect();
    for (key, value) in more {
        let key = key.replace("{}", architecture);
        keys.retain(|(own, _)| *own != key);
        keys.push((key, value.clone()));
    }
    let mut tensors: Vec<(NewTensor, &[u8])> = Vec::new();
    for tensor in &own.tensors {
        let begin = (own.data_start + tensor.offset) as usize;
        let new = NewTensor { name: tensor.name.to_owned(), kind: tensor.kind, dims: tensor.dims.clone() };
        tensors.push((new, &bytes[begin..begin + tensor.size as usize]));
    }
    for Tensor { member, bytes } in heads {
        let (head, kind) = member.name.rsplit_once('.').expect("a module");
        let dims = member.shape.iter().rev().copied().collect();
        let new = NewTensor { name: format!("{}.{kind}", module(head)), kind: GgmlType::F32, dims };
        tensors.push((new, bytes));
    }
    let new: Vec<NewTensor> = tensors.iter().map(|(new, _)| new.clone()).collect();
    let header = write_header(&keys, &new).expect("a header");
    let mut file = header.bytes.clone();
    for (place, (_, bytes)) in header.places.iter().zip(&tensors) {
        file.resize(header.bytes.len() + place.offset as usize, 0);
        file.extend_from_slice(bytes);
    }
    file.resize(header.bytes.len() + header.data_size as usize, 0);
    std::fs::write(into.join("model.gguf"), file).expect("a file");
}

/// Files in the form of the converter: for BERT they lack the pooler, for `ModernBERT` they use
/// mean pooling.
#[tokio::test]
async fn gguf_files_score_like_the_folders_that_they_came_from() {
    let test = "rerank::gguf_files_score_like_the_folders_that_they_came_from";
    let (Some(files), Some(hf)) = (fixtures(test, "gguf/models"), fixtures(test, "hf")) else { return };
    let (server, golden) = (exact().await, golden());
    let ranks = ("{}.pooling_type", OwnedValue::from(4u32));
    let separated = ("tokenizer.ggml.add_sep_token", OwnedValue::from(true));
    let pooler = Tensor::of_file(&hf.join("bert/model/model.safetensors"), "").into_iter().filter_map(|mut tensor| {
        let kind = tensor.member.name.strip_prefix("pooler.dense.")?.to_owned();
        tensor.member.name = format!("classifier.dense.{kind}");
        Some(tensor)
    });
    for (name, heads, more, scores) in [
        ("bert", Vec::new(), vec![], "raw_scores_without_pooler"),
        ("bert", pooler.collect(), vec![], "raw_scores"),
        ("xlm-roberta", Vec::new(), vec![separated], "raw_scores"),
        ("modernbert, mean", Vec::new(), vec![], "raw_scores"),
    ] {
        let case = &golden[name];
        let made = tempfile::tempdir().expect("a folder");
        let heads: Vec<Tensor> = heads.into_iter().chain(list(&case["tensors"]).iter().map(Tensor::added)).collect();
        let more: Vec<_> = more.into_iter().chain([ranks.clone()]).collect();
        gguf_file(&files.join(text(&case["fixture"])), &more, &heads, made.path());
        server.create("file", made.path()).await;
        let mut body = request(case, "file");
        body["raw_scores"] = true.into();
        check(name, &server.ask("/v1/rerank", &body).await, &case[scores]);
    }
}

/// Files in the form of converted Qwen3 rerankers: the head consists of the output rows of two
/// tokens, and a template formats the pair.
#[tokio::test]
async fn gguf_files_of_decoders_say_yes_or_no() {
    let test = "rerank::gguf_files_of_decoders_say_yes_or_no";
    let (Some(files), Some(hf)) = (fixtures(test, "gguf/models"), fixtures(test, "hf")) else { return };
    let (server, golden) = (exact().await, golden());
    let case = &golden["qwen3, yes and no"];
    let weights = Tensor::of_file(&hf.join("qwen3/model/model.safetensors"), "");
    let named = |name: &str| weights.iter().find(|tensor| tensor.member.name == name);
    let output = named("lm_head.weight").or_else(|| named("model.embed_tokens.weight")).expect("an output");
    let width = output.bytes.len() / 320;
    let score = &case["files"]["1_LogitScore/config.json"];
    let row = |key: &str| {
        let token = score[key].as_u64().expect("a token") as usize;
        // Widens BF16 to float32: the BF16 bytes are the upper half.
        output.bytes[token * width..][..width].chunks(2).flat_map(|half| [0, 0, half[0], half[1]]).collect::<Vec<u8>>()
    };
    let bytes = [row("true_token_id"), row("false_token_id")].concat();
    let shape = vec![2, bytes.len() as u64 / 8];
    let member = Member { name: "score.weight".to_owned(), dtype: Dtype::F32, shape, size: bytes.len() as u64 };
    let template = "<|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n";
    let more = [
        ("{}.pooling_type", OwnedValue::from(4u32)),
        ("{}.classifier.output_labels", OwnedValue::texts(["yes", "no"])),
        ("tokenizer.chat_templates", OwnedValue::texts(["rerank"])),
        ("tokenizer.chat_template.rerank", OwnedValue::from(template)),
    ];
    let made = tempfile::tempdir().expect("a folder");
    gguf_file(&files.join("qwen3"), &more, &[Tensor { member, bytes }], made.path());
    server.create("yes", made.path()).await;
    check("qwen3", &server.ask("/api/rerank", &request(case, "yes")).await, &case["scores"]);
    let mut instructed = request(case, "yes");
    instructed["instruction"] = "Find it.".into();
    for (path, body, expected) in [
        ("/api/generate", json!({"model": "yes", "prompt": "Hi"}), "does not support generate"),
        ("/api/rerank", instructed, "its template has no place for an instruction"),
    ] {
        let (status, answer) = server.call(path, &body).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(expected)), "{answer}");
    }
}

#[tokio::test]
async fn results_are_what_is_asked_for() {
    let Some(hf) = fixtures("rerank::results_are_what_is_asked_for", "hf") else { return };
    let server = Server::start(&[]).await;
    let made = tempfile::tempdir().expect("a folder");
    folder(&hf, &golden()["bert"], made.path());
    server.create("bert", made.path()).await;
    let ask = json!({"model": "bert", "query": "ships", "documents": ["ships", {"text": "flour and ships and flour"}], "top_n": 1,
        "return_documents": true});
    let answer = server.ask("/v1/rerank", &ask).await;
    let [result] = list(&answer["results"]) else { panic!("one result: {answer}") };
    let mut every = ask.clone();
    every["top_n"] = 9.into();
    assert_eq!(server.ask("/v1/rerank", &every).await["results"][0], *result, "the best");
    let index = result["index"].as_u64().expect("a place") as usize;
    assert_eq!(result["document"]["text"], ["ships", "flour and ships and flour"][index]);
    let mut cut = ask.clone();
    cut["max_tokens_per_doc"] = 1.into();
    cut.as_object_mut().expect("an object").remove("top_n");
    let answer = server.ask("/v1/rerank", &cut).await;
    assert!(answer["usage"]["truncated_tokens"].as_u64() > Some(0), "{answer}");
    let results = list(&answer["results"]);
    assert_ne!(results[0]["relevance_score"], results[1]["relevance_score"], "{answer}");
    // The shortest documents and the longest queries.
    for (query, document) in
        [("ships", ""), (&"ships ".repeat(400), ""), (&"ships ".repeat(400), &"ships ".repeat(400))]
    {
        let ask = json!({"model": "bert", "query": query, "documents": [document, document]});
        let answer = server.ask("/api/rerank", &ask).await;
        let results = list(&answer["results"]);
        assert_eq!(results[0]["relevance_score"], results[1]["relevance_score"], "{answer}");
    }
    // Models that generate or embed do not rank, and rerankers do not generate.
    server.create("plain", &hf.join("bert/model")).await;
    for (path, body, expected) in [
        ("/v1/rerank", json!({"model": "plain", "query": "x", "documents": ["y"]}), "does not support rerank"),
        ("/api/rerank", json!({"model": "plain", "query": "x", "documents": ["y"]}), "does not support rerank"),
        ("/api/rerank", json!({"model": "bert", "query": "x"}), "documents: there are none"),
        (
            "/api/rerank",
            json!({"model": "bert", "query": "x", "documents": ["y"], "options": {"num_ctx": 1}}),
            "the 3 tokens around the two texts exceed the context of 1 tokens",
        ),
        ("/api/rerank", json!({"model": "bert", "query": "", "documents": ["y"]}), "query: it is empty"),
        ("/api/rerank", json!({"model": "bert", "query": "x", "documents": [1]}), "a document is neither a text"),
        ("/api/generate", json!({"model": "bert", "prompt": "x"}), "does not support generate"),
    ] {
        let (status, answer) = server.call(path, &body).await;
        assert_eq!(status, 400, "{answer}");
        let message = answer["error"]["message"].as_str().or(answer["error"].as_str()).unwrap_or_default();
        assert!(message.contains(expected), "{answer}");
    }
}

/// A head that gives no score is refused with an error that names it.
#[tokio::test]
async fn heads_that_give_no_score_are_refused_by_name() {
    let Some(hf) = fixtures("rerank::heads_that_give_no_score_are_refused_by_name", "hf") else { return };
    let server = Server::start(&[]).await;
    let golden = golden();
    let mut several = golden["bert"].clone();
    several["patches"]["config.json"]["id2label"] = json!({"0": "contradicts", "1": "follows", "2": "neither"});
    several["tensors"][0]["shape"][0] = 3.into();
    several["tensors"][1]["shape"][0] = 3.into();
    let mut other = golden["bert"].clone();
    other["patches"]["config.json"]["sentence_transformers"] =
        json!({"activation_fn": "torch.nn.modules.activation.ELU"});
    let mut beyond = golden["qwen3, yes and no"].clone();
    beyond["files"]["1_LogitScore/config.json"]["true_token_id"] = 4000.into();
    let mut dense = golden["qwen3, yes and no"].clone();
    let module =
        json!({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.base.modules.dense.Dense"});
    dense["files"]["modules.json"].as_array_mut().expect("a list").push(module);
    // A chat template contains neither the query nor the document.
    let mut placeless = golden["qwen3, yes and no"].clone();
    placeless["files"]["chat_template.jinja"] =
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}...".into();
    let mut broken = golden["qwen3, yes and no"].clone();
    broken["files"]["sentence_bert_config.json"] = "{".into();
    for (name, case, expected) in [
        ("several", several, "does not support rerank"),
        ("other", other, "its scores go through `ELU`, expected Sigmoid, Identity or Tanh"),
        ("beyond", beyond, "`true_token_id` of `1_LogitScore/config.json` is 4000, which is no token of the model"),
        ("placeless", placeless, "its template has no place for both a query and a document"),
        ("broken", broken, "`sentence_bert_config.json` is not JSON"),
        (
            "dense",
            dense,
            "its module `2_Dense` (sentence_transformers.base.modules.dense.Dense) is not supported for ranking",
        ),
    ] {
        let made = tempfile::tempdir().expect("a folder");
        folder(&hf, &case, made.path());
        server.create(name, made.path()).await;
        let (status, answer) = server.call("/api/rerank", &request(&case, name)).await;
        assert_eq!(status, 400, "{name}: {answer}");
        assert!(answer["error"].as_str().is_some_and(|error| error.contains(expected)), "{name}: {answer}");
    }
}
