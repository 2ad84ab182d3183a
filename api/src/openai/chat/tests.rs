//! Requests, documents and streams of chats.

use protocol::{Format, GenerateEvent, Logprob, ToolChoice, Usage};
use serde_json::{Map, Value, json};

use super::*;
use crate::ollama::Think;
use crate::{CollectedAnswer, Frame, Refusal};

fn read(request: Value) -> ChatRequest {
    serde_json::from_value(request).expect("a request")
}

fn refused(fields: &Value) -> Refusal {
    let mut request = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in fields.as_object().expect("fields") {
        request[name] = value.clone();
    }
    read(request).translate().expect_err("refused")
}

fn head() -> Head {
    super::head("1f", 7, "m", "sha256:ab")
}

fn text(text: &str) -> GenerateEvent {
    GenerateEvent::Text { text: text.to_owned(), logprobs: Vec::new() }
}

fn thinking(text: &str) -> GenerateEvent {
    GenerateEvent::Thinking { text: text.to_owned(), logprobs: Vec::new() }
}

fn call(name: &str, arguments: Value) -> GenerateEvent {
    let Value::Object(arguments) = arguments else { panic!("an object") };
    GenerateEvent::ToolCall { name: name.to_owned(), arguments, logprobs: Vec::new() }
}

fn done(reason: FinishReason) -> GenerateEvent {
    let usage = Usage { prompt_tokens: 5, cached_tokens: 2, tokens: 3, ..Usage::default() };
    GenerateEvent::Done { reason, usage, tokens: Vec::new(), stop: None }
}

fn answer<const N: usize>(events: [GenerateEvent; N]) -> CollectedAnswer {
    let mut answer = CollectedAnswer::default();
    for event in events {
        answer.push(event);
    }
    answer
}

#[test]
fn a_request_in_the_words_of_the_runner() {
    let (dialogue, demand) = read(json!({
        "model": "m",
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Eve"},
            {"role": "assistant", "content": null, "reasoning": "hm", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"x\": 1}"}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ],
        "tools": [{"type": "function", "function": {"name": "add"}}],
        "tool_choice": "required", "parallel_tool_calls": false, "reasoning_effort": "high",
        "response_format": {"type": "json_object"}, "max_tokens": 4, "max_completion_tokens": 8,
        "logprobs": true, "top_logprobs": 2, "user": "somebody", "n": 2, "stream_options": {"include_usage": true},
    }))
    .translate()
    .expect("a demand");
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb", "name": "Eve"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "thinking": "hm", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"x": 1}}},
        ]},
        {"role": "tool", "content": "2", "name": "add", "tool_call_id": "c1"},
    ]);
    assert_eq!(serde_json::to_value(&dialogue.messages).expect("JSON"), messages);
    assert_eq!(dialogue.tools.len(), 1);
    assert_eq!(dialogue.think, Some(Think::Level("high".to_owned())));
    assert_eq!((demand.options.num_predict, demand.top_logprobs), (Some(8), Some(2)));
    assert_eq!(
        (demand.format, demand.tool_choice, demand.one_tool_call),
        (Some(Format::Json), ToolChoice::Required, true)
    );
    assert!(demand.refuse_long_prompts, "no context is named");
}

#[test]
fn what_cannot_be_had_is_refused_by_name() {
    for (fields, param) in [
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "narrator", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0].image_url",
        ),
        (json!({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}), "messages[0].content[0]"),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]}),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"functions": [{"name": "f"}]}), "functions"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"reasoning": {"effort": "much"}}), "reasoning.effort"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
    ] {
        assert_eq!(refused(&fields).param, param, "{fields}");
    }
}

#[test]
fn a_document() {
    let first = answer([thinking("hm"), text("Hel"), text("lo"), done(FinishReason::Length)]);
    let second = answer([call("add", json!({"x": 1})), done(FinishReason::Stop)]);
    let document = json!({
        "id": "chatcmpl-1f", "object": "chat.completion", "created": 7, "model": "m", "system_fingerprint": "sha256:ab",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hello", "refusal": null, "reasoning": "hm"},
             "logprobs": null, "finish_reason": "length"},
            {"index": 1, "message": {"role": "assistant", "content": null, "refusal": null, "tool_calls": [
                {"id": "call_1f_1_0", "type": "function", "function": {"name": "add", "arguments": "{\"x\":1}"}},
             ]}, "logprobs": null, "finish_reason": "tool_calls"},
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11,
                  "prompt_tokens_details": {"cached_tokens": 2}},
    });
    assert_eq!(serde_json::to_value(ChatCompletion::new(head(), vec![first, second], false)).expect("JSON"), document);
}

/// Parses the documents of frames; `[DONE]` becomes a string.
fn documents(frames: Vec<Frame>) -> Vec<Value> {
    let read = |frame: Frame| {
        assert_eq!(frame.event, None);
        serde_json::from_str(&frame.data).unwrap_or(Value::String(frame.data))
    };
    frames.into_iter().map(read).collect()
}

fn chunk(choices: &Value, usage: Option<Value>) -> Value {
    let mut chunk = json!({
        "id": "chatcmpl-1f", "object": "chat.completion.chunk", "created": 7, "model": "m",
        "system_fingerprint": "sha256:ab", "choices": choices,
    });
    if let Some(usage) = usage {
        chunk["usage"] = usage;
    }
    chunk
}

#[test]
fn a_stream() {
    let mut stream = ChatStream::new(head(), 1, false, true);
    let mut frames = stream.begin();
    let token = Logprob { id: 3, text: "Hi".to_owned(), logprob: -0.5, top: Vec::new() };
    frames.extend(stream.event(0, thinking("hm")));
    frames.extend(stream.event(0, GenerateEvent::Text { text: "Hi".to_owned(), logprobs: vec![token] }));
    frames.extend(stream.event(0, call("add", json!({}))));
    frames.extend(stream.event(0, call("now", json!({}))));
    frames.extend(stream.event(0, done(FinishReason::Stop)));
    let piece = |delta: Value, logprobs: Value, reason: Value| {
        chunk(&json!([{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}]), None)
    };
    let called = |index: usize, name: &str| {
        let function = json!({"name": name, "arguments": "{}"});
        let id = format!("call_1f_0_{index}");
        json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
    };
    let told = json!({"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []});
    let expected = [
        piece(json!({"role": "assistant", "content": ""}), Value::Null, Value::Null),
        piece(json!({"reasoning": "hm"}), Value::Null, Value::Null),
        piece(json!({"content": "Hi"}), json!({"content": [told], "refusal": null}), Value::Null),
        piece(called(0, "add"), Value::Null, Value::Null),
        piece(called(1, "now"), Value::Null, Value::Null),
        piece(Value::Object(Map::new()), Value::Null, json!("tool_calls")),
        json!("[DONE]"),
    ];
    assert_eq!(documents(frames), expected);
}

#[test]
fn usage_comes_after_the_last_choice() {
    let mut stream = ChatStream::new(head(), 2, true, false);
    assert_eq!(stream.begin().len(), 2);
    let ended = |index: u32| {
        chunk(&json!([{"index": index, "delta": {}, "logprobs": null, "finish_reason": "stop"}]), Some(Value::Null))
    };
    assert_eq!(documents(stream.event(1, done(FinishReason::Stop))), [ended(1)]);
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11,
                       "prompt_tokens_details": {"cached_tokens": 2}});
    let last = [ended(0), chunk(&json!([]), Some(usage)), json!("[DONE]")];
    assert_eq!(documents(stream.event(0, done(FinishReason::Stop))), last);
}

#[test]
fn a_stream_that_breaks_off_says_so_and_is_not_done() {
    let mut stream = ChatStream::new(head(), 1, true, false);
    let error = GenerateEvent::Error { error: "the runner died".to_owned(), kind: protocol::FailureKind::Internal };
    let told = json!({"error": {"message": "the runner died", "type": "api_error", "param": null, "code": null}});
    assert_eq!(documents(stream.event(0, error)), [told]);
}
