//! A session with a model that causes every response that the document describes.

use std::path::Path;

use serde_json::{Value, json};

use super::document::{Asked, Described};
use crate::support::{tiny_model, variant};

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "add", "description": "Adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}])
}

/// A template that prints its input and supports thinking.
const OPEN: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}\
    {% if tools %}{{ tools[0].function.name }}{% endif %}{% if enable_thinking %}<think>{% endif %}";

async fn described(tier: &Path, root: &Path) -> Described {
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let described = Described::start(&[("LODE_TIER", &text(tier)), ("LODE_ROOTS", &text(root))]).await;
    described.server.create("tiny", &tiny_model()).await;
    described.server.create("other", variant(1).path()).await;
    let ranks = variant(2);
    let module =
        json!([{"path": "1_LogitScore", "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"}]);
    std::fs::create_dir(ranks.path().join("1_LogitScore")).expect("a folder");
    for (name, content) in [("modules.json", module), ("1_LogitScore/config.json", json!({"true_token_id": 1}))] {
        std::fs::write(ranks.path().join(name), content.to_string()).expect("a file");
    }
    described.server.create("ranks", ranks.path()).await;
    let fills = variant(3);
    let path = fills.path().join("tokenizer.json");
    let mut tokenizer = std::fs::read_to_string(&path).expect("a tokenizer");
    for (own, other) in [("start_header_id", "fim_prefix"), ("end_header_id", "fim_suffix"), ("eom_id", "fim_middle")] {
        tokenizer = tokenizer.replace(&format!("<|{own}|>"), &format!("<|{other}|>"));
    }
    std::fs::write(&path, tokenizer).expect("it is written");
    described.server.create("fills", fills.path()).await;
    described
}

#[tokio::test]
async fn answers_are_what_the_document_says() {
    let (tier, root) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let described = described(tier.path(), root.path()).await;
    creates(&described).await;
    models(&described).await;
    ollama(&described).await;
    openai(&described).await;
    anthropic(&described).await;
    others(&described).await;
    lode(&described, root.path()).await;
    files(&described).await;
    transfers(&described).await;
    jobs(&described).await;
    service(&described).await;
    // `/readyz` only returns 503 if the disk is full.
    let unseen: Vec<String> = described.unseen().into_iter().filter(|answer| !answer.contains("/readyz 503")).collect();
    assert!(unseen.is_empty(), "no answer was held against what the document says of {unseen:#?}");
}

async fn creates(described: &Described) {
    let path = "/api/create";
    let messages = json!([{"role": "user", "content": "before"}]);
    let open = json!({"model": "open", "from": "tiny", "template": OPEN, "system": "Rhyme.", "messages": messages,
        "license": "None", "parameters": {"temperature": 0.5, "stop": ["x"]}});
    described.ask(path, &open, 200).await;
    described.ask(path, &json!({"model": "copy", "from": "tiny", "stream": false}), 200).await;
    let plan = json!({"model": "small", "from": "tiny", "quantize": "q8_0", "dry_run": true});
    described.ask(path, &plan, 200).await;
    described.ask(path, &json!({"model": "x", "from": "127.0.0.1:1/x/missing"}), 200).await;
    described.ask(path, &json!({"model": "x", "from": "127.0.0.1:1/x/missing", "stream": false}), 404).await;
    described.ask("/api/copy", &json!({"source": "copy", "destination": "again"}), 200).await;
    let asked = Asked { method: reqwest::Method::DELETE, path: "/api/delete", url: "/api/delete" };
    let (status, _) = described.send(&asked, described.request(&asked).json(&json!({"model": "again"}))).await;
    assert_eq!(status, 200);
    let digest = format!("sha256:{}", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    let url = format!("/api/blobs/{digest}");
    for (method, expect) in [("HEAD", 404), ("POST", 201), ("POST", 200), ("HEAD", 200)] {
        let asked = Asked { method: method.parse().expect("a method"), path: "/api/blobs/{digest}", url: &url };
        let (status, documents) = described.send(&asked, described.request(&asked)).await;
        assert_eq!(status, expect, "{method} {documents:?}");
    }
}

/// Jobs: the first one is a create that has ended, the last one a pull that waits for its server.
async fn jobs(described: &Described) {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let name = format!("{}/x/silent", silent.local_addr().expect("an address"));
    let asked = Asked { method: reqwest::Method::POST, path: "/api/pull", url: "/api/pull" };
    let pull = described.request(&asked).json(&json!({"model": name})).send().await.expect("an answer");
    let id: u64 = pull.headers()["lode-job"].to_str().expect("text").parse().expect("a number");
    described.get("/api/lode/jobs").await;
    for (action, id, status) in [
        ("change", id, 200),
        ("pause", id, 200),
        ("resume", id, 200),
        ("pause", 9999, 404),
        ("cancel", id, 200),
        ("cancel", id, 409),
        ("watch", 1, 200),
        ("watch", 9999, 404),
    ] {
        described.ask(&format!("/api/lode/jobs/{action}"), &json!({"id": id}), status).await;
    }
    described.ask("/api/lode/bandwidth", &json!({"limit": 1_000_000_000}), 200).await;
}

async fn models(described: &Described) {
    for path in ["/api/version", "/api/status", "/api/tags", "/api/ps", "/v1/models"] {
        described.get(path).await;
    }
    for model in ["tiny", "open"] {
        described.ask("/api/show", &json!({"model": model, "verbose": true}), 200).await;
        let url = format!("/v1/models/{model}");
        for asked in [Asked { url: &url, ..Asked::get("/v1/models/{model}") }, Asked::get("/v1/models")] {
            let request = described.request(&asked);
            assert_eq!(described.send(&asked, request.header("anthropic-version", "2023-06-01")).await.0, 200);
            assert_eq!(described.send(&asked, described.request(&asked)).await.0, 200);
        }
    }
}

async fn ollama(described: &Described) {
    let options = json!({"num_predict": 3, "num_ctx": 64});
    let long = "word ".repeat(200);
    let say = |text: &str| json!([{"role": "user", "content": text}]);
    for stream in [false, true] {
        for (path, body) in [
            ("/api/generate", json!({"prompt": "Hi", "logprobs": true, "top_logprobs": 2, "keep_alive": "1m"})),
            ("/api/generate", json!({"prompt": long})),
            ("/api/generate", json!({"prompt": "Hi", "_debug_render_only": true})),
            ("/api/generate", json!({})),
            ("/api/chat", json!({"messages": say("Hi"), "logprobs": true, "tools": tools()})),
            ("/api/chat", json!({"messages": say("Hi"), "format": {"type": "integer"}})),
            ("/api/chat", json!({"messages": say("Hi"), "_debug_render_only": true})),
        ] {
            let mut body = body;
            body["model"] = "tiny".into();
            body["stream"] = stream.into();
            body["options"] = options.clone();
            described.ask(path, &body, 200).await;
        }
        let thinking =
            json!({"model": "open", "messages": say("Hi"), "think": "low", "options": options, "stream": stream});
        described.ask("/api/chat", &thinking, 200).await;
    }
    described.get("/api/ps").await;
    for (path, body, status) in [
        ("/api/embed", json!({"model": "tiny", "input": ["Hi", "there"], "dimensions": 4}), 200),
        ("/api/embed", json!({"model": "tiny", "input": ""}), 200),
        ("/api/embeddings", json!({"model": "tiny", "prompt": "Hi"}), 200),
        ("/api/tokenize", json!({"model": "tiny", "content": "Hi"}), 200),
        ("/api/detokenize", json!({"model": "tiny", "tokens": [1, 2]}), 200),
        ("/api/generate", json!({"model": "missing"}), 404),
        ("/api/chat", json!({"model": "tiny", "messages": [{"role": "nobody", "content": ""}]}), 400),
        ("/api/show", json!({"model": "missing"}), 404),
        ("/api/show", json!([]), 400),
    ] {
        described.ask(path, &body, status).await;
    }
}

async fn openai(described: &Described) {
    let say = json!([{"role": "user", "content": "Hi"}]);
    for stream in [false, true] {
        let with_usage = if stream { json!({"include_usage": true}) } else { Value::Null };
        for (path, body) in [
            ("/v1/chat/completions", json!({"messages": say, "n": 2, "logprobs": true, "top_logprobs": 2})),
            ("/v1/chat/completions", json!({"messages": say, "tools": tools(), "tool_choice": "required"})),
            ("/v1/completions", json!({"prompt": ["Hi", "there"], "echo": true})),
            ("/v1/completions", json!({"prompt": [1, 2], "logprobs": 2})),
        ] {
            let mut body = body;
            body["model"] = "tiny".into();
            body["max_tokens"] = 24.into();
            body["stream"] = stream.into();
            body["stream_options"] = with_usage.clone();
            // The tools do not fit into the tiny model's context. With an explicit `num_ctx`, the
            // prompt is truncated instead of refused.
            body["options"] = json!({"num_ctx": 256});
            described.ask(path, &body, 200).await;
        }
        let thinking = json!({"model": "open", "input": "Hi", "reasoning": {"effort": "low"}, "max_output_tokens": 8,
            "stream": stream});
        described.ask("/v1/responses", &thinking, 200).await;
        for body in [
            json!({"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2}),
            json!({"input": "Hi", "tools": tools(), "tool_choice": "required", "instructions": "Rhyme.", "truncation": "auto"}),
            json!({"input": "Hi", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "integer"}}},
                "reasoning": {"effort": "none"}, "metadata": {"a": "b"}}),
        ] {
            let mut body = body;
            body["model"] = "tiny".into();
            body["max_output_tokens"] = 24.into();
            body["stream"] = stream.into();
            described.ask("/v1/responses", &body, 200).await;
        }
    }
    for encoding in ["float", "base64"] {
        let body = json!({"model": "tiny", "input": ["Hi"], "encoding_format": encoding});
        described.ask("/v1/embeddings", &body, 200).await;
    }
    for (path, status) in [("/v1/chat/completions", 404), ("/v1/rerank", 404), ("/v1/embeddings", 404)] {
        let texts = json!([{"text": "x"}]);
        let body = json!({"model": "missing", "messages": say, "input": "x", "query": "x", "documents": texts});
        described.ask(path, &body, status).await;
    }
    for path in ["/v1/rerank", "/api/rerank"] {
        let ask = |model: &str| json!({"model": model, "query": "Hi", "documents": ["x", {"text": "y"}], "return_documents": true});
        for (body, status) in
            [(json!({"model": "tiny"}), 400), (ask("tiny"), 400), (ask("missing"), 404), (ask("ranks"), 200)]
        {
            described.ask(path, &body, status).await;
        }
    }
    described.ask("/v1/chat/completions", &json!({"model": "tiny", "messages": say, "n": 0}), 400).await;
}

async fn anthropic(described: &Described) {
    let say = json!([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]);
    let tools = json!([{"name": "add", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]);
    for stream in [false, true] {
        for body in [
            json!({"model": "tiny", "messages": say, "max_tokens": 4, "stream": stream}),
            json!({"model": "tiny", "messages": say, "max_tokens": 64, "stream": stream, "tools": tools,
                "tool_choice": {"type": "any"}, "options": {"num_ctx": 256}}),
        ] {
            described.ask("/v1/messages", &body, 200).await;
        }
    }
    described.ask("/v1/messages/count_tokens", &json!({"model": "tiny", "messages": say}), 200).await;
    described.ask("/v1/messages", &json!({"model": "tiny", "messages": say}), 400).await;
    described.ask("/v1/messages", &json!({"model": "missing", "messages": say, "max_tokens": 1}), 404).await;
}

async fn lode(described: &Described, root: &Path) {
    described.server.create("tiny", variant(3).path()).await;
    let model = json!({"model": "tiny"});
    let long = "Once upon a time there was a model. ".repeat(8);
    for (path, body, status) in [
        ("/api/lode/history", model.clone(), 200),
        ("/api/lode/rollback", model.clone(), 200),
        ("/api/lode/pin", model.clone(), 200),
        ("/api/lode/unpin", model.clone(), 200),
        ("/api/lode/diff", json!({"a": "tiny", "b": "other", "values": true}), 200),
        ("/api/lode/diff", json!({"a": "tiny", "b": "open"}), 200),
        ("/api/lode/plan", json!({"model": "tiny", "gpus": [1_000_000_000]}), 200),
        ("/api/lode/sharing", model.clone(), 200),
        ("/api/lode/lineage", model.clone(), 200),
        ("/api/lode/values", json!({"model": "tiny", "tensor": "model.norm.weight"}), 200),
        ("/api/lode/values", json!({"model": "tiny", "tensor": "none"}), 404),
        ("/api/lode/markdown", json!({"text": "# a"}), 200),
        ("/api/lode/search", json!({}), 200),
        ("/api/lode/perplexity", json!({"model": "tiny", "text": long, "window": 16}), 200),
        ("/api/lode/gc", json!({"dry_run": true}), 200),
        ("/api/lode/gc", json!({}), 200),
        ("/api/lode/prune", json!({"dry_run": true, "older_than": 0}), 200),
        ("/api/lode/prune", json!({}), 200),
        ("/api/lode/retention", json!({"dry_run": true}), 200),
        ("/api/lode/fsck", json!({"sample": {"count": 2}}), 200),
        ("/api/lode/fsck", json!({"rebuild": true}), 200),
        ("/api/lode/fsck", json!({"model": "tiny"}), 200),
        ("/api/lode/fsck", json!({"model": "tiny", "since": 5}), 400),
        ("/api/lode/repair", json!({}), 200),
        ("/api/lode/own", json!({"model": "tiny"}), 200),
        ("/api/lode/move", json!({"to": root, "unused": 1_000_000_000, "create": true}), 200),
        ("/api/lode/move", json!({"to": root}), 400),
        ("/api/lode/tier/move", json!({"after": 1_000_000_000, "dry_run": true}), 200),
        ("/api/lode/tier/move", json!({}), 400),
        ("/api/lode/tier/recall", json!({"models": ["tiny"]}), 200),
        ("/api/lode/tier/recall", json!({}), 400),
        ("/api/lode/history", json!({"model": "missing"}), 404),
        ("/api/lode/plan", json!({"model": "tiny", "num_parallel": 0}), 400),
    ] {
        described.ask(path, &body, status).await;
    }
    described.get("/api/lode/du").await;
    described.get("/api/lode/tier").await;
    described.get("/api/lode/linked").await;
    described.get("/api/lode/running").await;
    described.get("/api/lode/registry").await;
    let asked = Asked::post("/api/lode/upload");
    assert_eq!(described.send(&asked, described.request(&asked).body("bytes")).await.0, 200);
    described.get("/api/lode/socket").await;
}

async fn files(described: &Described) {
    let asked = Asked::post("/api/save");
    let saved = described.server.post(asked.url, &json!({"models": ["tiny"]})).await.bytes().await.expect("an archive");
    assert_eq!(described.send(&asked, described.request(&asked).json(&json!({"models": ["tiny"]}))).await.0, 200);
    let asked = Asked { url: "/api/load?name=loaded", ..Asked::post("/api/load") };
    let (status, documents) = described.send(&asked, described.request(&asked).body(saved)).await;
    assert_eq!(status, 200, "{documents:?}");
    for check in [true, false] {
        described.ask("/api/export", &json!({"model": "tiny", "check": check}), 200).await;
    }
}

/// The daemon serves as the remote registry too.
async fn transfers(described: &Described) {
    let there = format!("{}/library/tiny:there", described.server.address);
    for stream in [false, true] {
        for dry_run in [true, false] {
            let push =
                json!({"model": "tiny", "destination": there, "dry_run": dry_run, "insecure": true, "stream": stream});
            described.ask("/api/push", &push, 200).await;
        }
        described.ask("/api/pull", &json!({"model": there, "insecure": true, "stream": stream}), 200).await;
    }
}

async fn others(described: &Described) {
    for path in ["/health", "/slots", "/api/v0/models"] {
        described.get(path).await;
    }
    for asked in [
        Asked { url: "/props?model=tiny", ..Asked::get("/props") },
        Asked { url: "/api/v0/models/tiny", ..Asked::get("/api/v0/models/{model}") },
    ] {
        let (status, documents) = described.send(&asked, described.request(&asked)).await;
        assert_eq!(status, 200, "{documents:?}");
    }
    let say = json!([{"role": "user", "content": "Hi"}]);
    for stream in [false, true] {
        for (path, body) in [
            ("/completion", json!({"prompt": "Hi", "n_predict": 4, "temperature": 0})),
            ("/infill", json!({"model": "fills", "input_prefix": "a", "input_suffix": "b", "n_predict": 4})),
            ("/api/v0/chat/completions", json!({"messages": say, "max_tokens": 4})),
            ("/api/v0/completions", json!({"prompt": "Hi", "max_tokens": 4})),
        ] {
            let mut body = body;
            body["stream"] = stream.into();
            if body.get("model").is_none() {
                body["model"] = "tiny".into();
            }
            described.ask(path, &body, 200).await;
        }
    }
    for (path, body, status) in [
        ("/tokenize", json!({"model": "tiny", "content": "Hi", "add_special": true}), 200),
        ("/detokenize", json!({"model": "tiny", "tokens": [65]}), 200),
        ("/api/v0/embeddings", json!({"model": "tiny", "input": "Hi"}), 200),
        ("/completion", json!({"model": "tiny", "prompt": "Hi", "grammar": "root ::= x"}), 400),
        ("/completion", json!({"model": "missing", "prompt": "Hi"}), 404),
        ("/infill", json!({"model": "tiny", "input_prefix": "a"}), 400),
    ] {
        described.ask(path, &body, status).await;
    }
}

async fn service(described: &Described) {
    for path in ["/", "/healthz", "/readyz", "/metrics", "/openapi.json"] {
        described.get(path).await;
    }
    let asked = Asked::get("/");
    assert_eq!(described.send(&asked, described.request(&asked).header("accept", "text/html")).await.0, 200);
}
