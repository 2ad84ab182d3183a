//! Requests, documents and streams of messages.

use protocol::{Format, GenerateEvent, ToolChoice, Usage};
use serde_json::{Value, json};

use super::*;
use crate::ollama::Think;
use crate::{ChatInput, CollectedAnswer, Frame, GenerationOptions, Refusal};

fn read(request: Value) -> Result<(ChatInput, GenerationOptions), Refusal> {
    serde_json::from_value::<MessagesRequest>(request).expect("a request").translate()
}

fn text(text: &str) -> GenerateEvent {
    GenerateEvent::Text { text: text.to_owned(), logprobs: Vec::new() }
}

fn thinking(text: &str) -> GenerateEvent {
    GenerateEvent::Thinking { text: text.to_owned(), logprobs: Vec::new() }
}

fn call() -> GenerateEvent {
    let arguments = json!({"x": 1}).as_object().expect("an object").clone();
    GenerateEvent::ToolCall { name: "add".to_owned(), arguments, logprobs: Vec::new() }
}

fn limits(tokens: u64) -> Limits {
    Limits { tokens, stops: vec!["END".to_owned()] }
}

fn done(reason: FinishReason) -> GenerateEvent {
    let usage = Usage { prompt_tokens: 5, cached_tokens: 2, tokens: 3, ..Usage::default() };
    GenerateEvent::Done { reason, usage, tokens: Vec::new(), stop: None }
}

#[test]
fn a_request_in_the_words_of_the_runner() {
    let (dialogue, demand) = read(json!({
        "model": "m", "max_tokens": 9, "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Now."}],
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "wait"},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"x": 1}},
                {"type": "tool_use", "id": "t2", "name": "now", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "2"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "no clock", "is_error": true},
                {"type": "text", "text": "well?"},
            ]},
        ],
        "tools": [{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}, "cache_control": null}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "stop_sequences": ["x", ""],
        "temperature": 1, "top_k": 5, "top_p": 0.5, "metadata": {"user_id": "somebody"},
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    }))
    .expect("a demand");
    let called = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let messages = json!([
        {"role": "system", "content": "Be brief.\nNow."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "wait", "reasoning_content": "hm", "thinking": "hm",
         "tool_calls": [called("t1", "add", json!({"x": 1})), called("t2", "now", json!({}))]},
        {"role": "tool", "content": "2", "name": "add", "tool_call_id": "t1"},
        {"role": "tool", "content": "error: no clock", "name": "now", "tool_call_id": "t2"},
        {"role": "user", "content": "well?"},
    ]);
    assert_eq!(serde_json::to_value(&dialogue.messages).expect("JSON"), messages);
    let function = json!({"name": "add", "description": "Adds.", "parameters": {"type": "object"}});
    assert_eq!(dialogue.tools, [json!({"type": "function", "function": function})]);
    assert_eq!(dialogue.think, Some(Think::Flag(true)));
    assert_eq!((demand.tool_choice, demand.one_tool_call), (ToolChoice::Required, true));
    assert_eq!(demand.format, Some(Format::Schema { schema: json!({"type": "object"}) }));
    let options = demand.options;
    assert_eq!((options.temperature, options.top_p, options.top_k), (Some(1.0), Some(0.5), Some(5)));
    assert_eq!((options.stop, options.num_predict), (Some(vec!["x".to_owned()]), Some(9)));
}

#[test]
fn what_cannot_be_had_is_refused_by_name() {
    for (fields, param) in [
        (json!({"max_tokens": null}), "max_tokens"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "tool", "content": "a"}]}), "messages.0.role"),
        (json!({"messages": [{"role": "user"}]}), "messages.0.content"),
        (json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]}), "messages.0.content.0.source"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}]}),
            "messages.0.content.0.source",
        ),
        (json!({"messages": [{"role": "user", "content": [{"type": "sound"}]}]}), "messages.0.content.0.type"),
        (json!({"tools": [{"type": 1, "name": "bash"}]}), "tools.0.type"),
        (json!({"tools": [{"name": "f"}]}), "tools.0.input_schema"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice.type"),
        (json!({"tool_choice": {"type": "tool", "name": "f"}}), "tool_choice.name"),
        (json!({"thinking": {"type": "sometimes"}}), "thinking.type"),
        (json!({"temperature": 1.5}), "temperature"),
        (json!({"output_config": {"format": {"type": "xml"}}}), "output_config.format.type"),
    ] {
        let mut request = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        for (name, value) in fields.as_object().expect("fields") {
            request[name] = value.clone();
        }
        assert_eq!(read(request).expect_err("refused").param, param, "{fields}");
    }
    let error = ErrorResponse::from(Refusal::new("max_tokens", "Field required"));
    let document =
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: Field required"}});
    assert_eq!(serde_json::to_value(error).expect("JSON"), document);
}

#[test]
fn coding_agents_requests_are_read() {
    let request = json!({
        "model": "m", "max_tokens": 32000,
        "messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": "Agents: none."}],
        "tools": [{"type": "web_search_20250305", "name": "web_search"}, {"name": "f", "input_schema": {}}],
        "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
    });
    let (dialogue, _) = read(request.clone()).expect("a request of Claude Code");
    let roles: Vec<&str> = dialogue.messages.iter().map(|message| message.role.as_str()).collect();
    assert_eq!(roles, ["user", "system"]);
    assert_eq!((dialogue.tools.len(), dialogue.omitted_tools), (1, vec!["web_search_20250305".to_owned()]));
    assert!(dialogue.thinking_is_optional);
    serde_json::from_value::<MessagesRequest>(request).expect("a request").count().expect("it can be counted");
    for (thinking, optional) in [
        (json!({"type": "enabled"}), true),
        (json!({"type": "enabled", "budget_tokens": 1024}), false),
        (json!({"type": "disabled"}), true),
    ] {
        let request = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "thinking": thinking});
        assert_eq!(read(request).expect("a request").0.thinking_is_optional, optional, "{thinking}");
    }
}

#[test]
fn counting_needs_no_limit() {
    let request = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    let dialogue = serde_json::from_value::<MessagesRequest>(request).expect("a request").count().expect("a dialogue");
    assert_eq!(dialogue.messages.len(), 1);
}

#[test]
fn a_document() {
    let mut answer = CollectedAnswer::default();
    for event in [thinking("hm"), text("Hel"), text("lo"), call(), done(FinishReason::Stop)] {
        answer.push(event);
    }
    let expected = json!({
        "id": "msg_1f", "type": "message", "role": "assistant", "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "Hello"},
            {"type": "tool_use", "id": "toolu_1f_0", "name": "add", "input": {"x": 1}},
        ],
        "stop_reason": "tool_use", "stop_sequence": null,
        "usage": {"input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2, "output_tokens": 3},
    });
    assert_eq!(serde_json::to_value(Message::begun("1f", "m").whole(answer, &limits(9))).expect("JSON"), expected);
}

#[test]
fn why_an_answer_ended() {
    for (reason, calls, limit, expect) in [
        (FinishReason::Stop, false, 9, "end_turn"),
        (FinishReason::Stop, true, 9, "tool_use"),
        (FinishReason::Length, false, 3, "max_tokens"),
        (FinishReason::Length, true, 9, "model_context_window_exceeded"),
    ] {
        assert_eq!(limits(limit).stop_reason(reason, calls, 3, false), expect);
    }
}

/// Parses the documents of frames and checks that the event names match.
fn documents(frames: Vec<Frame>) -> Vec<Value> {
    let read = |frame: Frame| {
        let document: Value = serde_json::from_str(&frame.data).expect("JSON");
        assert_eq!(document["type"].as_str(), frame.event);
        document
    };
    frames.into_iter().map(read).collect()
}

#[test]
fn a_stream() {
    let mut stream = MessageStream::new(Message::begun("1f", "m"), limits(9));
    let mut frames = stream.begin();
    for event in [thinking("hm"), text("Hel"), text(""), text("lo"), call(), done(FinishReason::Stop)] {
        frames.extend(stream.event(event));
    }
    let block =
        |index: usize, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta = |index: usize, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let stop = |index: usize| json!({"type": "content_block_stop", "index": index});
    let nothing =
        json!({"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0});
    let expected = [
        json!({"type": "message_start", "message": {
            "id": "msg_1f", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": null,
            "stop_sequence": null, "usage": nothing,
        }}),
        json!({"type": "ping"}),
        block(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "hm"})),
        stop(0),
        block(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "Hel"})),
        delta(1, json!({"type": "text_delta", "text": "lo"})),
        stop(1),
        block(2, json!({"type": "tool_use", "id": "toolu_1f_0", "name": "add", "input": {}})),
        delta(2, json!({"type": "input_json_delta", "partial_json": "{\"x\":1}"})),
        stop(2),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": {
            "input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2, "output_tokens": 3,
        }}),
        json!({"type": "message_stop"}),
    ];
    assert_eq!(documents(frames), expected);
}

#[test]
fn a_stream_that_breaks_off_says_so() {
    let mut stream = MessageStream::new(Message::begun("1f", "m"), limits(9));
    let frames =
        stream.event(GenerateEvent::Error { error: "it died".to_owned(), kind: protocol::FailureKind::Internal });
    let error = json!({"type": "error", "error": {"type": "api_error", "message": "it died"}});
    assert_eq!(documents(frames), [error]);
}

#[test]
fn stop_strings_of_the_request_are_told() {
    let stopped = |stop: &str| GenerateEvent::Done {
        reason: FinishReason::Stop,
        usage: Usage::default(),
        tokens: Vec::new(),
        stop: Some(stop.to_owned()),
    };
    for (stop, reason, told) in [("END", "stop_sequence", json!("END")), ("<|model's own|>", "end_turn", json!(null))] {
        let mut answer = CollectedAnswer::default();
        answer.push(stopped(stop));
        let whole = serde_json::to_value(Message::begun("1f", "m").whole(answer, &limits(9))).expect("JSON");
        assert_eq!((&whole["stop_reason"], &whole["stop_sequence"]), (&json!(reason), &told));
        let frames = MessageStream::new(Message::begun("1f", "m"), limits(9)).event(stopped(stop));
        let text = &frames[0].data;
        let expect = json!({"stop_reason": reason, "stop_sequence": told}).to_string();
        assert!(text.contains(&expect), "{text}");
    }
}
