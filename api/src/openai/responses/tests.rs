//! Requests, documents and streams of responses.

use protocol::{FinishReason, Format, GenerateEvent, ToolChoice, Usage};
use serde_json::{Value, json};

use super::*;
use crate::{ChatInput, Frame, GenerationOptions, Refusal};

fn read(request: Value) -> Result<(ChatInput, GenerationOptions, Echo), Refusal> {
    serde_json::from_value::<ResponsesRequest>(request).expect("a request").translate()
}

fn done(reason: FinishReason) -> GenerateEvent {
    let usage = Usage { prompt_tokens: 5, cached_tokens: 2, tokens: 3, ..Usage::default() };
    GenerateEvent::Done { reason, usage, tokens: Vec::new(), stop: None }
}

fn text(text: &str) -> GenerateEvent {
    GenerateEvent::Text { text: text.to_owned(), logprobs: Vec::new() }
}

#[test]
fn items_become_messages() {
    let (dialogue, demand, echo) = read(json!({
        "model": "m", "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{\"x\":1}"},
            {"type": "function_call", "call_id": "c2", "name": "now", "arguments": ""},
            {"type": "function_call_output", "call_id": "c1", "output": "2"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
        ],
        "tools": [{"type": "function", "name": "add", "parameters": {}, "strict": true}],
        "tool_choice": {"type": "function", "name": "add"},
        "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}},
        "max_output_tokens": 9, "temperature": 0, "truncation": "auto", "metadata": {"a": "b"}, "store": true,
    }))
    .expect("a demand");
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "thinking": "hm", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"x": 1}}},
            {"id": "c2", "type": "function", "function": {"name": "now", "arguments": {}}},
        ]},
        {"role": "tool", "content": "2", "name": "add", "tool_call_id": "c1"},
        {"role": "assistant", "content": "two"},
    ]);
    assert_eq!(serde_json::to_value(&dialogue.messages).expect("JSON"), messages);
    assert_eq!(demand.tool_choice, ToolChoice::Named { name: "add".to_owned() });
    assert_eq!(demand.format, Some(Format::Schema { schema: json!({"type": "object"}) }));
    assert_eq!((demand.options.num_predict, demand.options.temperature), (Some(9), Some(0.0)));
    assert!(!demand.refuse_long_prompts);
    let echo = serde_json::to_value(echo).expect("JSON");
    assert_eq!((&echo["metadata"], &echo["tools"][0]["name"]), (&json!({"a": "b"}), &json!("add")));
    assert_eq!(echo["text"]["format"]["type"], "json_schema");
}

#[test]
fn what_is_not_said_has_its_documented_value() {
    let (dialogue, demand, echo) = read(json!({"model": "m", "input": "hi"})).expect("a demand");
    assert_eq!(serde_json::to_value(&dialogue.messages).expect("JSON"), json!([{"role": "user", "content": "hi"}]));
    assert!(demand.refuse_long_prompts, "truncation is disabled");
    let expected = json!({
        "instructions": null, "max_output_tokens": null, "metadata": {}, "parallel_tool_calls": true,
        "reasoning": {"effort": null, "summary": null}, "temperature": null, "text": {"format": {"type": "text"}},
        "tool_choice": "auto", "tools": [], "top_logprobs": null, "top_p": null, "truncation": "disabled", "user": null,
    });
    assert_eq!(serde_json::to_value(echo).expect("JSON"), expected);
}

#[test]
fn what_cannot_be_had_is_refused_by_name() {
    for (fields, param) in [
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"conversation": "c"}), "conversation"),
        (json!({"background": true}), "background"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"input": []}), "input"),
        (json!({"input": [{"type": "item_reference", "id": "x"}]}), "input[0]"),
        (json!({"input": [{"type": "computer_call"}]}), "input[0].type"),
        (json!({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}), "input[0].content[0].image_url"),
        (json!({"tools": [{"type": "functoin"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "namespace", "tools": []}]}), "tools[0].name"),
        (json!({"truncation": "some"}), "truncation"),
        (json!({"text": {"format": {"type": "xml"}}}), "text.format.type"),
    ] {
        let mut request = json!({"model": "m", "input": "hi"});
        for (name, value) in fields.as_object().expect("fields") {
            request[name] = value.clone();
        }
        assert_eq!(read(request).expect_err("refused").param, param, "{fields}");
    }
    assert_eq!(read(json!({"model": "m"})).expect_err("refused").param, "input");
}

#[test]
fn tools_of_coding_agents_are_expanded_or_listed() {
    let function = json!({"type": "function", "name": "close", "parameters": {}});
    let (dialogue, _, echo) = read(json!({
        "model": "m",
        "input": [
            {"role": "user", "content": "hi"},
            {"type": "web_search_call", "id": "ws_1"},
            {"type": "function_call", "call_id": "c1", "namespace": "agents", "name": "close", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
        ],
        "tools": [{"type": "namespace", "name": "agents", "tools": [function]}, {"type": "web_search"}],
        "reasoning": {"effort": "high"},
    }))
    .expect("a request of Codex");
    assert_eq!(dialogue.tools[0]["function"]["name"], "agents__close");
    assert!(dialogue.thinking_is_optional);
    let messages = serde_json::to_value(&dialogue.messages).expect("JSON");
    assert_eq!(messages[1]["tool_calls"][0]["function"]["name"], "agents__close");
    assert_eq!((&messages[2]["content"], &messages[2]["name"]), (&json!("done"), &json!("agents__close")));
    assert_eq!(messages[3]["tool_calls"][0]["function"]["arguments"], json!({"input": "x"}));
    assert_eq!(messages[4]["content"], "ok");
    assert_eq!(serde_json::to_value(&echo).expect("JSON")["metadata"], json!({"lode_omitted_tools": "web_search"}));
    let mut stream = ResponseStream::new(Response::new("1f", 7, "m".to_owned(), echo));
    let arguments = serde_json::Map::new();
    stream.event(GenerateEvent::ToolCall { name: "agents__close".to_owned(), arguments, logprobs: Vec::new() });
    let item = serde_json::to_value(&stream.response().output[0]).expect("JSON");
    assert_eq!((&item["namespace"], &item["name"]), (&json!("agents"), &json!("close")));
}

fn stream() -> ResponseStream {
    let (_, _, echo) = read(json!({"model": "m", "input": "hi"})).expect("a demand");
    ResponseStream::new(Response::new("1f", 7, "m".to_owned(), echo))
}

/// Parses the documents of frames and checks their names and sequence numbers.
fn documents(frames: Vec<Frame>) -> Vec<Value> {
    let read = |(at, frame): (usize, Frame)| {
        let document: Value = serde_json::from_str(&frame.data).expect("JSON");
        assert_eq!(document["type"].as_str(), frame.event);
        assert_eq!(document["sequence_number"], at);
        document
    };
    frames.into_iter().enumerate().map(read).collect()
}

#[test]
fn a_stream() {
    let mut stream = stream();
    let mut frames = stream.begin();
    let arguments = json!({"x": 1}).as_object().expect("an object").clone();
    let call = GenerateEvent::ToolCall { name: "add".to_owned(), arguments, logprobs: Vec::new() };
    let thinking = GenerateEvent::Thinking { text: "hm".to_owned(), logprobs: Vec::new() };
    for event in [thinking, text("Hel"), text("lo"), call, done(FinishReason::Stop)] {
        frames.extend(stream.event(event));
    }
    let documents = documents(frames);
    let names: Vec<&str> = documents.iter().filter_map(|document| document["type"].as_str()).collect();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(names, expected);
    assert_eq!(
        documents[11],
        json!({
            "type": "response.output_text.delta", "sequence_number": 11, "item_id": "msg_1f_1", "output_index": 1,
            "content_index": 0, "delta": "lo", "logprobs": [],
        })
    );
    let response = &documents[19]["response"];
    let output = json!([
        {"type": "reasoning", "id": "rs_1f_0", "summary": [], "status": "completed",
         "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "id": "msg_1f_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1f_2", "call_id": "call_1f_2", "name": "add", "arguments": "{\"x\":1}",
         "status": "completed"},
    ]);
    assert_eq!(response["output"], output);
    assert_eq!((&response["status"], &response["store"]), (&json!("completed"), &json!(false)));
    let usage = json!({
        "input_tokens": 5, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 8,
    });
    assert_eq!(response["usage"], usage);
    assert_eq!(serde_json::to_value(stream.response()).expect("JSON"), *response, "both ways give the same document");
}

#[test]
fn an_answer_at_its_limit_is_incomplete() {
    let mut stream = stream();
    stream.event(text("Hel"));
    let frames = stream.event(done(FinishReason::Length));
    assert_eq!(frames.last().and_then(|frame| frame.event), Some("response.incomplete"));
    let document = serde_json::to_value(stream.response()).expect("JSON");
    assert_eq!(document["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!((&document["status"], &document["output"][0]["status"]), (&json!("incomplete"), &json!("incomplete")));
}

#[test]
fn a_stream_that_breaks_off_says_so() {
    let mut stream = stream();
    let documents = documents(
        stream.event(GenerateEvent::Error { error: "it died".to_owned(), kind: protocol::FailureKind::Internal }),
    );
    let error =
        json!({"type": "error", "sequence_number": 0, "code": "server_error", "message": "it died", "param": null});
    assert_eq!(documents[0], error);
    assert_eq!(documents[1]["type"], "response.failed");
    assert_eq!(documents[1]["response"]["error"], json!({"code": "server_error", "message": "it died"}));
}
