//! Requests, documents and streams of completions.

use protocol::{GenerateEvent, Logprob, Prompt, Usage};
use serde_json::{Value, json};

use super::*;
use crate::{CollectedAnswer, GenerationOptions, Refusal};

fn read(request: Value) -> Result<(Vec<CompletionPrompt>, GenerationOptions), Refusal> {
    serde_json::from_value::<CompletionRequest>(request).expect("a request").translate()
}

fn text(text: &str) -> GenerateEvent {
    let token = Logprob { id: 1, text: text.to_owned(), logprob: -1.0, top: Vec::new() };
    GenerateEvent::Text { text: text.to_owned(), logprobs: vec![token] }
}

fn done() -> GenerateEvent {
    let usage = Usage { prompt_tokens: 5, tokens: 1, ..Usage::default() };
    GenerateEvent::Done { reason: FinishReason::Stop, usage, tokens: Vec::new(), stop: None }
}

fn answer() -> CollectedAnswer {
    let mut answer = CollectedAnswer::default();
    answer.push(text("lo"));
    answer.push(done());
    answer
}

#[test]
fn every_form_of_prompt() {
    let text = |text: &str| Prompt::Text { text: text.to_owned() };
    for (prompt, prompts) in [
        (json!("a"), vec![text("a")]),
        (json!(["a", "b"]), vec![text("a"), text("b")]),
        (json!([1, 2]), vec![Prompt::Tokens { tokens: vec![1, 2] }]),
        (json!([[1], [2]]), vec![Prompt::Tokens { tokens: vec![1] }, Prompt::Tokens { tokens: vec![2] }]),
    ] {
        let (read, demand) = read(json!({"prompt": prompt, "max_tokens": 16, "logprobs": 3})).expect("prompts");
        assert_eq!(read.into_iter().map(|one| one.prompt).collect::<Vec<_>>(), prompts);
        assert_eq!((demand.options.num_predict, demand.top_logprobs), (Some(16), Some(3)));
    }
    let (insert, _) = read(json!({"prompt": "a", "suffix": "c", "echo": true})).expect("a prompt");
    let prompt = Prompt::Insert { prefix: "a".to_owned(), suffix: "c".to_owned() };
    assert_eq!(insert, [CompletionPrompt { prompt, echo: true }]);
}

#[test]
fn what_cannot_be_had_is_refused_by_name() {
    for (request, param) in [
        (json!({}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": vec!["x"; 257]}), "prompt"),
        (json!({"prompt": [[1], []]}), "prompt"),
        (json!({"prompt": [1], "suffix": "x"}), "suffix"),
        (json!({"prompt": "x", "echo": true, "logprobs": 0}), "echo"),
        (json!({"prompt": "x", "logprobs": 21}), "logprobs"),
    ] {
        assert_eq!(read(request.clone()).expect_err("refused").param, param, "{request}");
    }
    let choices = |request: Value| serde_json::from_value::<CompletionRequest>(request).expect("a request").choices();
    assert_eq!(choices(json!({"n": 2, "best_of": 2})), Ok(2));
    assert_eq!(choices(json!({"n": 1, "best_of": 2})).expect_err("refused").param, "best_of");
}

#[test]
fn a_document() {
    let answers = vec![("Hel".to_owned(), answer()), ("Hel".to_owned(), answer())];
    let document = Completion::new(head("1f", 7, "m", "sha256:ab"), answers, 2, true);
    let logprobs = json!({"tokens": ["lo"], "token_logprobs": [-1.0], "top_logprobs": [{}], "text_offset": [3]});
    let choice = |index: u32| json!({"text": "Hello", "index": index, "logprobs": logprobs, "finish_reason": "stop"});
    let expected = json!({
        "id": "cmpl-1f", "object": "text_completion", "created": 7, "model": "m", "system_fingerprint": "sha256:ab",
        "choices": [choice(0), choice(1)],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7,
                  "prompt_tokens_details": {"cached_tokens": 0}},
    });
    assert_eq!(serde_json::to_value(document).expect("JSON"), expected);
}

#[test]
fn a_stream_of_two_prompts() {
    let mut stream = CompletionStream::new(head("1f", 7, "m", "sha256:ab"), 2, 1, true, true);
    let mut frames = vec![stream.before(1, "Hel".to_owned())];
    frames.extend(stream.event(1, text("lo")));
    frames.extend(stream.event(1, done()));
    frames.extend(stream.event(0, done()));
    let documents: Vec<Value> =
        frames.iter().map(|frame| serde_json::from_str(&frame.data).unwrap_or(json!(frame.data))).collect();
    let choices: Vec<&Value> = documents.iter().map(|document| &document["choices"][0]).collect();
    assert_eq!(choices[0], &json!({"text": "Hel", "index": 1, "logprobs": null, "finish_reason": null}));
    assert_eq!(choices[1]["logprobs"]["text_offset"], json!([3]));
    assert_eq!(choices[2], &json!({"text": "", "index": 1, "logprobs": null, "finish_reason": "stop"}));
    assert_eq!(choices[3]["index"], 0);
    assert_eq!(documents[0]["usage"], Value::Null);
    assert_eq!(documents[4]["usage"]["prompt_tokens"], 10, "each prompt counts");
    assert_eq!((documents.len(), &documents[5]), (6, &json!("[DONE]")));
}
