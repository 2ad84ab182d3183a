//! Pictures in requests: every API takes them, the answers are those of transformers, computed
//! pictures and prefixes are used again, and what is no picture is refused.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

mod exports;
mod projectors;

use crate::server::{Server, in_float32};
use crate::support::{entries, fixtures, json as read_json, list, number, object, read, root};

/// Returns the golden answers of `make_chat.py`.
fn golden() -> Value {
    read_json(&root().join("tests/pictures/chat.json"))
}

/// Returns the file of a picture as base64.
fn picture(name: &str) -> String {
    BASE64_STANDARD.encode(read(&root().join("fuzz/seeds/pictures").join(name)))
}

/// Copies the tiny Qwen3-VL, and gives it tokens, a template and a processor for pictures.
pub(crate) fn seeing_model(zoo: &Path) -> tempfile::TempDir {
    let golden = golden();
    let folder = with_tokens(zoo, "qwen3_vl", object(&golden["tokens"]), &golden["settings"]);
    let path = folder.path().join("tokenizer_config.json");
    let mut config = read_json(&path);
    config["chat_template"] = golden["template"].clone();
    std::fs::write(path, config.to_string()).expect("a file");
    folder
}

/// Copies a tiny model. Its tokenizer gets `tokens` in place of those with their ids, and
/// `settings` are those of its processor.
fn with_tokens(zoo: &Path, model: &str, tokens: &Map<String, Value>, settings: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let model = zoo.join(model).join("model");
    for name in ["config.json", "generation_config.json", "model.safetensors", "special_tokens_map.json"] {
        std::fs::copy(model.join(name), folder.path().join(name)).expect("a copy");
    }
    let write = |name: &str, content: &Value| {
        std::fs::write(folder.path().join(name), content.to_string()).expect("a file");
    };
    let mut tokenizer = read_json(&model.join("tokenizer.json"));
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    vocabulary.retain(|_, id| !tokens.values().any(|own| own == id));
    vocabulary.extend(tokens.clone());
    let known: Vec<String> = vocabulary.keys().cloned().collect();
    let merges = tokenizer["model"]["merges"].as_array_mut().expect("merges");
    merges.retain(|pair| {
        let joined = match pair {
            Value::String(pair) => pair.replace(' ', ""),
            pair => list(pair).iter().filter_map(Value::as_str).collect(),
        };
        known.contains(&joined)
    });
    let added = tokenizer["added_tokens"].as_array_mut().expect("tokens");
    added.extend(tokens.iter().map(|(token, id)| {
        json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true})
    }));
    write("tokenizer.json", &tokenizer);
    write("tokenizer_config.json", &read_json(&model.join("tokenizer_config.json")));
    write("preprocessor_config.json", settings);
    folder
}

/// Starts a daemon with a tiny model `m` that sees pictures; `None` without reference data.
pub(crate) async fn seeing(test: &str) -> Option<Server> {
    let zoo: PathBuf = fixtures(test, "zoo2026")?;
    let server = Server::start(&[in_float32()]).await;
    server.create("m", seeing_model(&zoo).path()).await;
    Some(server)
}

/// Returns the log-probabilities of the likeliest first tokens of an answer about a picture.
async fn likeliest(server: &Server, model: &str) -> Vec<f64> {
    let request = json!({"model": model, "prompt": "What is [img-0] on it?", "raw": true, "stream": false,
        "images": [picture("plain.png")], "logprobs": true, "top_logprobs": 5,
        "options": {"temperature": 0, "num_predict": 1}});
    let found = server.ask("/api/generate", &request).await;
    let top = list(&found["logprobs"][0]["top_logprobs"]);
    top.iter().map(|token| token["logprob"].as_f64().expect("a number")).collect()
}

/// Checks that two models have the same likeliest answers about a picture.
async fn check_same(server: &Server, model: &str, other: &str, tolerance: f64) {
    let (found, expected) = (likeliest(server, model).await, likeliest(server, other).await);
    let worst = found.iter().zip(&expected).map(|(found, expected)| (found - expected).abs()).fold(0.0, f64::max);
    assert!(found.len() == 5 && worst < tolerance, "{model}: {found:?}, expected {expected:?}");
}

/// Returns a request of Ollama's chat for a few tokens.
fn asked(content: &str, pictures: &[&str]) -> Value {
    let images: Vec<String> = pictures.iter().map(|name| picture(name)).collect();
    json!({"model": "m", "stream": false, "options": {"temperature": 0, "num_predict": 4},
        "messages": [{"role": "user", "content": content, "images": images}]})
}

#[tokio::test]
async fn answers_are_those_of_transformers() {
    let Some(server) = seeing("pictures::answers_are_those_of_transformers").await else { return };
    let golden = golden();
    for answer in list(&golden["answers"]) {
        let name = answer["file"].as_str().expect("a file");
        let mut request = asked("What is [img] on it?", &[name]);
        (request["logprobs"], request["top_logprobs"]) = (true.into(), 5.into());
        let found = server.ask("/api/chat", &request).await;
        assert_eq!(found["prompt_eval_count"], answer["prompt_tokens"], "{name}");
        let top = list(&found["logprobs"][0]["top_logprobs"]);
        let pairs = top.iter().zip(list(&answer["logprobs"]));
        let difference = |(found, expected): (&Value, &Value)| {
            (found["logprob"].as_f64().expect("a number") - expected.as_f64().expect("a number")).abs()
        };
        let worst = pairs.map(difference).fold(0.0, f64::max);
        // Decoders of JPEG files round differently.
        let tolerance = if name.contains(".jpg") { 0.2 } else { 0.01 };
        assert!(top.len() == 5 && worst < tolerance, "{name}: off by {worst}: {top:?}");
    }
}

/// The same question by every API gets the same answer, and the picture is computed once: the
/// prefix with its rows is in the cache.
#[tokio::test]
async fn every_api_takes_pictures() {
    let Some(server) = seeing("pictures::every_api_takes_pictures").await else { return };
    let (file, question) = (picture("photo.jpg"), "What is it?");
    let url = format!("data:image/jpeg;base64,{file}");
    let first = server.ask("/api/chat", &asked(question, &["photo.jpg"])).await;
    let (expected, tokens) = (first["message"]["content"].as_str().expect("text"), &first["prompt_eval_count"]);
    let other = server.ask("/api/chat", &asked(question, &["palette.png"])).await;
    assert_ne!(other["message"]["content"].as_str(), Some(expected), "the picture counts");

    let generate = json!({"model": "m", "prompt": question, "images": [&file], "stream": false,
        "options": {"temperature": 0, "num_predict": 4}});
    let found = server.ask("/api/generate", &generate).await;
    assert_eq!(found["response"].as_str(), Some(expected), "{found}");
    assert!(list(&found["context"]).iter().all(|id| id.as_u64().is_some_and(|id| id < 320)), "{found}");

    let content = json!([{"type": "image_url", "image_url": {"url": &url}}, {"type": "text", "text": question}]);
    let chat = json!({"model": "m", "temperature": 0, "max_tokens": 4,
        "messages": [{"role": "user", "content": content}]});
    let found = server.ask("/v1/chat/completions", &chat).await;
    assert_eq!(found["choices"][0]["message"]["content"].as_str(), Some(expected), "{found}");
    assert_eq!(&found["usage"]["prompt_tokens"], tokens, "{found}");
    let cached = &found["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(cached.as_u64(), tokens.as_u64().map(|tokens| tokens - 1), "{found}");

    let content = json!([{"type": "input_image", "image_url": &url}, {"type": "input_text", "text": question}]);
    let responses = json!({"model": "m", "temperature": 0, "max_output_tokens": 4,
        "input": [{"role": "user", "content": content}]});
    let found = server.ask("/v1/responses", &responses).await;
    assert_eq!(found["output"][0]["content"][0]["text"].as_str(), Some(expected), "{found}");

    let source = json!({"type": "base64", "media_type": "image/jpeg", "data": &file});
    let content = json!([{"type": "image", "source": source}, {"type": "text", "text": question}]);
    let messages = json!({"model": "m", "temperature": 0, "max_tokens": 4,
        "messages": [{"role": "user", "content": content}]});
    let found = server.ask("/v1/messages", &messages).await;
    assert_eq!(found["content"][0]["text"].as_str(), Some(expected), "{found}");
    let counted = server.ask("/v1/messages/count_tokens", &messages).await;
    assert_eq!(&counted["input_tokens"], tokens, "{counted}");
}

/// Several pictures, one of them twice, in several turns of a conversation.
#[tokio::test]
async fn conversations_have_several_pictures() {
    let Some(server) = seeing("pictures::conversations_have_several_pictures").await else { return };
    let mut request = asked("[img] or [img]?", &["plain.png", "photo.jpg"]);
    request["logprobs"] = true.into();
    let first = server.ask("/api/chat", &request).await;
    assert_eq!(first["picture_encoded_count"], 2, "{first}");
    let messages = request["messages"].as_array_mut().expect("messages");
    messages.push(json!({"role": "assistant", "content": first["message"]["content"]}));
    messages.push(json!({"role": "user", "content": "And this?", "images": [picture("plain.png")]}));
    let second = server.ask("/api/chat", &request).await;
    let cached = second["prompt_cached_count"].as_u64().expect("a number");
    assert!(cached >= first["prompt_eval_count"].as_u64().expect("a number"), "{second}");
    assert_eq!(second["picture_encoded_count"], Value::Null, "the third one is known: {second}");
    // The same picture twice in a prompt is computed once.
    let twice = server.ask("/api/chat", &asked("[img] [img]", &["lossy.webp", "lossy.webp"])).await;
    assert_eq!(twice["picture_encoded_count"], 1, "{twice}");
    // Another order is another prompt.
    let mut other = asked("[img] or [img]?", &["photo.jpg", "plain.png"]);
    other["logprobs"] = true.into();
    let other = server.ask("/api/chat", &other).await;
    assert_ne!(other["logprobs"][0]["logprob"], first["logprobs"][0]["logprob"]);
    // A runner that has not seen them gives the same answer.
    server.ask("/api/generate", &json!({"model": "m", "keep_alive": 0, "stream": false})).await;
    let again = server.ask("/api/chat", &request).await;
    assert_eq!(again["message"]["content"], second["message"]["content"]);
}

#[tokio::test]
async fn what_is_no_picture_is_refused() {
    let Some(server) = seeing("pictures::what_is_no_picture_is_refused").await else { return };
    let file = picture("photo.jpg");
    let ask = |content: &str, images: Value| json!({"model": "m", "stream": false, "messages": [{"role": "user", "content": content, "images": images}]});
    let many: Vec<&str> = vec![&file; 65];
    for (request, says) in [
        (ask("x", json!(["?"])), "is not base64"),
        (ask("x", json!([""])), "the picture is empty"),
        (ask("x", json!(["aGk="])), "not a PNG, JPEG, WebP or GIF file"),
        (ask("x", json!([file, &file[..200]])), "picture 2 of 2: the picture cannot be decoded"),
        (ask("x", json!([7])), "images are a list of base64 texts"),
        (ask("x", json!(many)), "the prompt has 65 pictures, expected at most 64"),
        (ask("<|image_pad|>", json!([file])), "the text has `<|image_pad|>`"),
        (ask("\u{FFFC}0\u{FFFC}", json!([file])), "marks of pictures"),
    ] {
        let (status, answer) = server.call("/api/chat", &request).await;
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(status == 400 && error.contains(says), "{status} {answer}, expected {says}");
    }
    let url = json!({"model": "m", "messages": [{"role": "user", "content":
        [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}]});
    let (status, answer) = server.call("/v1/chat/completions", &url).await;
    assert!(status == 400 && answer.to_string().contains("data URL"), "{answer}");
    let named = json!({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content":
        [{"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}]}]});
    let (status, answer) = server.call("/v1/messages", &named).await;
    assert!(status == 400 && answer.to_string().contains("not fetched"), "{answer}");
    // The runner goes on.
    let answer = server.ask("/api/chat", &asked("x", &["photo.jpg"])).await;
    assert_eq!(answer["done"], true, "{answer}");
    // Where pictures are fetched, they are not fetched from this machine or without TLS.
    let server = server.restart(&[in_float32(), ("LODE_FETCH_IMAGES", "1")]).await;
    for (url, says) in [
        ("https://127.0.0.1:1/a.png", "on this machine"),
        ("https://localhost/a.png", "on this machine"),
        ("https://[fd00::1]/a.png", "in a private network"),
        ("http://example.com/a.png", "not fetched"),
        ("https://", "cannot be fetched"),
    ] {
        let content = json!([{"type": "image_url", "image_url": {"url": url}}]);
        let request = json!({"model": "m", "messages": [{"role": "user", "content": content}]});
        let (status, answer) = server.call("/v1/chat/completions", &request).await;
        assert!(status == 400 && answer.to_string().contains(says), "{url}: {status} {answer}");
    }
}

#[tokio::test]
async fn models_say_whether_they_see() {
    let test = "pictures::models_say_whether_they_see";
    let Some(zoo) = fixtures(test, "zoo2026") else { return };
    let server = Server::start(&[in_float32()]).await;
    let folder = seeing_model(&zoo);
    server.create("m", folder.path()).await;
    let shown = server.ask("/api/show", &json!({"model": "m"})).await;
    assert!(list(&shown["capabilities"]).contains(&"vision".into()), "{shown}");
    assert_eq!(shown["projector_info"]["clip.vision.embedding_length"], 32, "{shown}");
    // Without the settings of its processor, it answers texts only.
    std::fs::remove_file(folder.path().join("preprocessor_config.json")).expect("it is removed");
    server.create("blind", folder.path()).await;
    let shown = server.ask("/api/show", &json!({"model": "blind"})).await;
    assert!(!list(&shown["capabilities"]).contains(&"vision".into()), "{shown}");
    let mut request = asked("x", &["photo.jpg"]);
    request["model"] = "blind".into();
    let (status, answer) = server.call("/api/chat", &request).await;
    let error = answer["error"].as_str().unwrap_or_default();
    assert!(status == 400 && error.contains("images") && error.contains("preprocessor_config.json"), "{answer}");
    request["messages"][0]["images"] = json!([]);
    assert_eq!(server.ask("/api/chat", &request).await["done"], true);
}

/// Changes a file in one of several ways; the same number makes the same change.
fn mutated(file: &[u8], number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut file = file.to_vec();
    for _ in 0..=random(3) {
        let (at, length) = (random(file.len()), file.len());
        match random(5) {
            0 => file[at] ^= 1 << random(8),
            1 => file.truncate(at.max(1)),
            // Sizes and lengths lie in the first bytes of all formats.
            2 => file[at % 64 % length] = [0, 1, 0x7f, 0xff][random(4)],
            3 => {
                let part = file[at..(at + 32).min(length)].to_vec();
                file.splice(at..at, part);
            }
            _ => {
                file.drain(at..(at + 1 + random(16)).min(length));
                if file.is_empty() {
                    file.push(0);
                }
            }
        }
    }
    file
}

/// Each damaged picture gets an answer or an error, in bounded time, from the same runner.
#[tokio::test]
async fn mutated_pictures_end_nothing() {
    let Some(server) = seeing("pictures::mutated_pictures_end_nothing").await else { return };
    let seeds: Vec<Vec<u8>> = entries(&root().join("fuzz/seeds/pictures")).iter().map(|path| read(path)).collect();
    server.ask("/api/chat", &asked("x", &["photo.jpg"])).await;
    let (pid, mut answers) = (server.runner_pid().await, [0, 0]);
    for case in 0..number("LODE_CAMPAIGN_PICTURES").unwrap_or(300) {
        let file = mutated(&seeds[case as usize % seeds.len()], case);
        let request = json!({"model": "m", "stream": false, "options": {"num_predict": 1},
            "messages": [{"role": "user", "content": "x", "images": [BASE64_STANDARD.encode(&file)]}]});
        let begin = std::time::Instant::now();
        let (status, answer) = server.call("/api/chat", &request).await;
        assert!(begin.elapsed().as_secs() < 20, "case {case} took {:?}", begin.elapsed());
        assert!(status == 200 || (status == 400 && answer["error"].is_string()), "case {case}: {status} {answer}");
        answers[usize::from(status == 400)] += 1;
    }
    assert!(answers.iter().all(|count| *count > 20), "answered and refused: {answers:?}");
    assert_eq!(server.runner_pid().await, pid, "it is the same runner");
}
