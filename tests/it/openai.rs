//! `OpenAI`'s and Anthropic's APIs, beyond the clients' sessions: headers, raw streams, and
//! interrupted responses.

use serde_json::{Value, json};

use crate::server::Server;
use crate::support::tiny_model;

async fn tiny() -> Server {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    server
}

fn chat(fields: &Value) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8});
    for (name, value) in fields.as_object().expect("fields") {
        body[name] = value.clone();
    }
    body
}

#[tokio::test]
async fn streams_are_server_sent_events() {
    let server = tiny().await;
    let response = server.post("/v1/chat/completions", &chat(&json!({"stream": true}))).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert!(response.headers()["x-lode-model-digest"].to_str().expect("text").starts_with("sha256:"));
    let body = response.text().await.expect("a whole stream");
    assert!(body.starts_with("data: {") && body.ends_with("data: [DONE]\n\n"), "{body}");
    let body = chat(&json!({"stream": true}));
    let body = server.post("/v1/messages", &body).await.text().await.expect("a whole stream");
    assert!(body.starts_with("event: message_start\ndata: {\"type\":\"message_start\""), "{body}");
    assert!(body.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"), "{body}");
}

#[tokio::test]
async fn first_requests_of_coding_agents_are_answered() {
    let server = tiny().await;
    let say = json!([{"role": "user", "content": "Hello"}, {"role": "system", "content": "Agents: none."}]);
    let claude = json!({
        "messages": say, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
    });
    let codex = json!({
        "model": "tiny", "input": "Hello", "max_output_tokens": 8, "tools": [{"type": "web_search"}, {"type": "custom", "name": "c"}],
    });
    for (path, body, ignored) in [
        ("/v1/messages", chat(&claude), Some("thinking, tool web_search_20250305")),
        ("/v1/responses", codex, Some("tool web_search, tool custom")),
        ("/v1/chat/completions", chat(&json!({"reasoning_effort": "low"})), Some("thinking")),
        ("/v1/chat/completions", chat(&json!({})), None),
    ] {
        for stream in [false, true] {
            let mut body = body.clone();
            body["stream"] = stream.into();
            let response = server.post(path, &body).await;
            let header = response.headers().get("x-lode-ignored").map(|value| value.to_str().expect("text").to_owned());
            let (status, text) = (response.status().as_u16(), response.text().await.expect("an answer"));
            assert_eq!((status, header.as_deref()), (200, ignored), "{path} {body}: {text}");
        }
    }
    let counted = server.call("/v1/messages/count_tokens", &chat(&json!({"messages": say}))).await;
    assert!(counted.0 == 200 && counted.1["input_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{counted:?}");
    let budget = chat(&json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}));
    let (status, document) = server.call("/v1/messages", &budget).await;
    assert!(status == 400 && document.to_string().contains("does not support thinking"), "{document}");
}

#[tokio::test]
async fn a_prompt_that_is_cut_is_told() {
    let server = tiny().await;
    let long = vec!["word"; 200].join(" ");
    let fields = json!({"messages": [{"role": "user", "content": long}], "options": {"num_ctx": 64}});
    let response = server.post("/v1/chat/completions", &chat(&fields)).await;
    assert_eq!(response.status().as_u16(), 200);
    let header = response.headers()["x-lode-truncated-tokens"].to_str().expect("text").to_owned();
    let document: Value = response.json().await.expect("JSON");
    let told = document["usage"]["prompt_tokens_details"]["truncated_tokens"].as_u64().expect("a count");
    assert!(told > 0);
    assert_eq!(header, told.to_string());
    let refused = json!({"model": "tiny", "input": long, "options": {"num_ctx": 64}});
    let response = server.post("/v1/responses", &refused).await;
    assert_eq!(response.status().as_u16(), 400, "truncation is disabled unless it is asked for");
}

#[tokio::test]
async fn a_runner_that_dies_ends_a_stream_with_an_error() {
    let server = tiny().await;
    let fields = json!({"stream": true, "n": 128, "max_tokens": 10_000, "ignore_eos": true});
    let mut response = server.post("/v1/chat/completions", &chat(&fields)).await;
    assert_eq!(response.status().as_u16(), 200);
    let mut body = response.chunk().await.expect("a piece").expect("a piece").to_vec();
    let pid = server.runner_pid().await;
    let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill runs");
    assert!(killed.success());
    while let Some(piece) = response.chunk().await.expect("the stream ends in order") {
        body.extend_from_slice(&piece);
    }
    let body = String::from_utf8(body).expect("text");
    let last = body.trim_end().rsplit("\n\n").next().expect("an event");
    let error: Value = serde_json::from_str(last.strip_prefix("data: ").expect("data")).expect("JSON");
    assert_eq!(error["error"]["type"], "api_error", "{last}");
    assert!(error["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{last}");
    assert!(!body.contains("[DONE]"), "a stream that broke off is not done");
}

#[tokio::test]
async fn errors_have_the_shape_of_the_api_that_was_asked() {
    let server = tiny().await;
    for (path, body, status, kind) in [
        (
            "/v1/chat/completions",
            json!({"model": "missing", "messages": [{"role": "user", "content": "x"}]}),
            404,
            "not_found_error",
        ),
        ("/v1/chat/completions", json!({"model": "tiny", "messages": "x"}), 400, "invalid_request_error"),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "x"}]}), 400, "invalid_request_error"),
        ("/v1/completions", json!({"model": "tiny"}), 400, "invalid_request_error"),
        ("/v1/embeddings", json!({"model": "tiny"}), 400, "invalid_request_error"),
        ("/v1/responses", json!({"model": "tiny", "input": []}), 400, "invalid_request_error"),
        ("/v1/rerank", json!({"model": "tiny", "query": "x", "documents": ["y"]}), 400, "invalid_request_error"),
        ("/v1/rerank", json!({"model": "missing", "query": "x", "documents": ["y"]}), 404, "not_found_error"),
        (
            "/v1/messages",
            json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}]}),
            400,
            "invalid_request_error",
        ),
        (
            "/v1/messages/count_tokens",
            json!({"model": "missing", "messages": [{"role": "user", "content": "x"}]}),
            404,
            "not_found_error",
        ),
    ] {
        let response = server.post(path, &body).await;
        assert_eq!(response.status().as_u16(), status, "{path} {body}");
        let document: Value = response.json().await.expect("JSON");
        assert_eq!(document["error"]["type"], kind, "{path} {body}: {document}");
        assert!(document["error"]["message"].is_string(), "{path} {body}: {document}");
        assert_eq!(document["type"] == "error", path.starts_with("/v1/messages"), "{path}: {document}");
    }
}
