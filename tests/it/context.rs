//! The context length of requests that do not set one: the daemon derives it from the prompt.

use serde_json::{Value, json};

use crate::clients::scripted::{self, Line};
use crate::server::Server;
use crate::support::tiny_model;

/// Starts a daemon with a model that supports 131,072 tokens of context.
async fn daemon(environment: &[(&str, &str)]) -> Server {
    let (server, model) = (Server::start(environment).await, tempfile::tempdir().expect("a folder"));
    scripted::write(model.path(), &[Line { asked: "", tool: None, says: "Yes.".to_owned() }], "Done.");
    server.create("long", model.path()).await;
    server
}

/// Returns a request with a prompt of so many words; each word is several tokens.
fn prompt(words: usize) -> Value {
    json!({"model": "long", "stream": false, "messages": [{"role": "user", "content": "context ".repeat(words)}]})
}

async fn loaded_context(server: &Server) -> u64 {
    let loaded = server.http.get(server.url("/api/ps")).send().await.expect("an answer");
    let loaded: Value = loaded.json().await.expect("JSON");
    loaded["models"][0]["context_length"].as_u64().expect("a loaded model")
}

#[tokio::test]
async fn a_long_prompt_gets_the_context_that_it_needs() {
    let server = daemon(&[]).await;
    let short = server.ask("/api/chat", &prompt(10)).await;
    assert_eq!((loaded_context(&server).await, &short["done"]), (4096, &json!(true)));
    let long = server.ask("/api/chat", &prompt(3000)).await;
    let tokens = long["prompt_eval_count"].as_u64().expect("a count");
    assert!(tokens > 6000 && long.get("prompt_truncated_count").is_none(), "{long}");
    let grown = loaded_context(&server).await;
    assert!(grown >= tokens + 2048, "{grown} tokens of context for {tokens}");
    // A short request shares the larger loaded context.
    server.ask("/api/chat", &prompt(10)).await;
    assert_eq!(loaded_context(&server).await, grown);
    // The other APIs also reserve context for `max_tokens`.
    let mut other = prompt(3000);
    other["max_tokens"] = json!(8000);
    for path in ["/v1/chat/completions", "/v1/messages"] {
        server.ask(path, &other).await;
        assert!(loaded_context(&server).await >= tokens + 8000, "{path}");
    }
    let (_, counted) = server.call("/v1/messages/count_tokens", &prompt(3000)).await;
    assert_eq!(counted["input_tokens"], tokens);
}

#[tokio::test]
async fn a_context_that_is_named_stays() {
    let server = daemon(&[]).await;
    let mut asked = prompt(3000);
    asked["options"] = json!({"num_ctx": 1024});
    let cut = server.ask("/api/chat", &asked).await;
    assert!(cut["prompt_truncated_count"].as_u64().is_some_and(|count| count > 4000), "{cut}");
    assert_eq!(loaded_context(&server).await, 1024);
    // 0 means that the request sets no context length.
    asked["options"] = json!({"num_ctx": 0});
    assert!(server.ask("/api/chat", &asked).await.get("prompt_truncated_count").is_none());
    let fixed = daemon(&[("LODE_CONTEXT_LENGTH", "2048")]).await;
    let cut = fixed.ask("/api/chat", &prompt(3000)).await;
    assert!(cut["prompt_truncated_count"].as_u64().is_some_and(|count| count > 4000), "{cut}");
}

#[tokio::test]
async fn what_does_not_fit_is_told_with_both_numbers() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let asked =
        json!({"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "context ".repeat(400)}]});
    let (status, refused) = server.call("/v1/chat/completions", &asked).await;
    let error = &refused["error"];
    assert_eq!((status, &error["code"]), (400, &json!("context_length_exceeded")), "{refused}");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains("> 256 maximum") && message.contains("was made for no more"), "{message}");
    let (status, refused) = server.call("/v1/messages", &asked).await;
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(
        status == 400 && message.starts_with("prompt is too long: ") && message.contains("> 256 maximum"),
        "{refused}"
    );
    // If memory is the limit, the error names the setting.
    let small = daemon(&[("LODE_MEMORY_LIMIT", "16MiB")]).await;
    let mut long = prompt(10_000);
    long["max_tokens"] = json!(4);
    let (status, refused) = small.call("/v1/chat/completions", &long).await;
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 400 && message.contains("LODE_MEMORY_LIMIT") && message.contains("131072"), "{status} {refused}");
}
