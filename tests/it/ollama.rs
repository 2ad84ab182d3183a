//! Details of the Ollama API: capabilities, rendered prompts, headers, tokens, missing features.

use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{list, tiny_model};

/// A template that prints all of its input.
const OPEN: &str = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}\
    {% if tools %}[tools:{{ tools[0].function.name }}]{% endif %}\
    {% if enable_thinking %}<think>{% endif %}{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}";
/// A template without tools and thinking.
const PLAIN: &str = "{% for m in messages %}{{ m.content }} {% endfor %}";

/// Starts a daemon with `tiny`, and with `open` and `plain`, which are created from it.
async fn models() -> Server {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    for (name, template) in [("open", OPEN), ("plain", PLAIN)] {
        let messages = json!([{"role": "user", "content": "before"}]);
        let request = json!({"model": name, "from": "tiny", "template": template, "system": "Rhyme.",
            "messages": messages, "stream": false});
        assert_eq!(server.ask("/api/create", &request).await, json!({"status": "success"}));
    }
    server
}

fn tool() -> Value {
    json!({"type": "function", "function": {"name": "add", "description": "Adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}})
}

#[tokio::test]
async fn what_a_model_can_do_is_told_and_held_to() {
    let server = models().await;
    let tags: Value =
        server.http.get(server.url("/api/tags")).send().await.expect("an answer").json().await.expect("JSON");
    for (model, expect) in [
        ("tiny", json!(["completion", "tools"])),
        ("open", json!(["completion", "tools", "thinking"])),
        ("plain", json!(["completion"])),
    ] {
        let shown = server.ask("/api/show", &json!({"model": model})).await;
        assert_eq!(shown["capabilities"], expect, "{model}");
        let listed = list(&tags["models"]).iter().find(|entry| entry["name"] == format!("{model}:latest"));
        assert_eq!(listed.expect("listed")["capabilities"], expect, "{model}");
    }
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for (request, says) in [
        (json!({"model": "plain", "messages": messages, "tools": [tool()]}), "\"plain\" does not support tools"),
        (json!({"model": "plain", "messages": messages, "think": true}), "\"plain\" does not support thinking"),
        (json!({"model": "plain:latest", "messages": messages, "think": "low"}), "\"plain:latest\" does not"),
    ] {
        let (status, answer) = server.call("/api/chat", &request).await;
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(status == 400 && error.contains(says), "{request}: {status} {answer}");
    }
    let quiet = json!({"model": "plain", "messages": messages, "think": false, "stream": false,
        "options": {"num_predict": 1}});
    server.ask("/api/chat", &quiet).await;
}

#[tokio::test]
async fn prompts_are_rendered_with_everything_that_was_said() {
    let server = models().await;
    let rendered = async |path: &str, mut request: Value| {
        request["_debug_render_only"] = true.into();
        request["stream"] = false.into();
        let answer = server.ask(path, &request).await;
        assert_eq!((answer["done"].as_bool(), answer.get("done_reason")), (Some(false), None), "{answer}");
        answer["_debug_info"]["rendered_template"].as_str().expect("a prompt").to_owned()
    };
    let user = json!({"role": "USER", "content": "Hi"});
    let own = json!({"role": "system", "content": "Mine."});
    for (request, expect) in [
        (json!({"messages": [user]}), "[system:Rhyme.][user:before][user:Hi]<think>"),
        (json!({"messages": [user], "think": false}), "[system:Rhyme.][user:before][user:Hi]"),
        (json!({"messages": [user], "think": "low"}), "[system:Rhyme.][user:before][user:Hi]<think>[low]"),
        (json!({"messages": [own, user], "think": false}), "[user:before][system:Mine.][user:Hi]"),
        (
            json!({"messages": [user], "think": false, "tools": [tool()]}),
            "[system:Rhyme.][user:before][user:Hi][tools:add]",
        ),
    ] {
        let mut request = request;
        request["model"] = "open".into();
        assert_eq!(rendered("/api/chat", request.clone()).await, expect, "{request}");
    }
    for (request, expect) in [
        (json!({"prompt": "Hi", "think": false}), "[system:Rhyme.][user:before][user:Hi]"),
        (json!({"prompt": "Hi", "system": ""}), "[system:Rhyme.][user:before][user:Hi]<think>"),
        (json!({"prompt": "Hi", "system": "Mine.", "think": true}), "[system:Mine.][user:before][user:Hi]<think>"),
        (json!({"prompt": "Hi", "context": [1, 2], "think": false}), "[user:Hi]"),
        (json!({"prompt": "Hi", "raw": true}), "Hi"),
    ] {
        let mut request = request;
        request["model"] = "open".into();
        assert_eq!(rendered("/api/generate", request.clone()).await, expect, "{request}");
    }
}

#[tokio::test]
async fn a_shown_template_is_the_one_that_is_used() {
    let server = models().await;
    let shown = server.ask("/api/show", &json!({"model": "open"})).await;
    assert_eq!(shown["template"], OPEN);
    let modelfile = shown["modelfile"].as_str().expect("a Modelfile");
    assert!(modelfile.contains("MESSAGE user \"\"\"before\"\"\""), "{modelfile}");
    let tiny = server.ask("/api/show", &json!({"model": "tiny", "system": "Other."})).await;
    let template = tiny["template"].as_str().expect("the template beside the weights");
    assert!(template.contains("<|start_header_id|>"), "{template}");
    assert_eq!(tiny["system"], "Other.");
    assert_eq!(tiny["details"]["context_length"], 256);
}

#[tokio::test]
async fn answers_name_the_model_and_what_was_dropped() {
    let server = models().await;
    let tags: Value =
        server.http.get(server.url("/api/tags")).send().await.expect("an answer").json().await.expect("JSON");
    let digest = list(&tags["models"]).iter().find(|entry| entry["name"] == "plain:latest").expect("listed")["digest"]
        .as_str()
        .expect("a digest")
        .to_owned();
    let options = json!({"num_predict": 1, "num_ctx": 32});
    let long = "many words of a prompt ".repeat(20);
    for (path, request, dropped) in [
        ("/api/show", json!({"model": "plain"}), false),
        ("/api/generate", json!({"model": "plain"}), false),
        ("/api/generate", json!({"model": "plain", "prompt": "x", "options": options}), false),
        ("/api/generate", json!({"model": "plain", "prompt": "x", "stream": false, "options": options}), false),
        ("/api/generate", json!({"model": "plain", "prompt": long, "stream": false, "options": options}), true),
        (
            "/api/chat",
            json!({"model": "plain", "messages": [{"role": "user", "content": long}], "stream": false,
            "options": options}),
            true,
        ),
        ("/api/tokenize", json!({"model": "plain", "content": "x"}), false),
    ] {
        let response = server.post(path, &request).await;
        let header = |name: &str| response.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
        assert_eq!(header("x-lode-model-digest"), Some(format!("sha256:{digest}")), "{path} {request}");
        let told = header("x-lode-truncated-tokens");
        assert_eq!(told.is_some(), dropped, "{path} {request}");
        let answer = response.text().await.expect("a whole answer");
        if let Some(told) = told {
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            assert_eq!(answer["prompt_truncated_count"].to_string(), told);
        }
    }
}

#[tokio::test]
async fn tokens_come_and_go() {
    let server = models().await;
    let tokenized = async |request: Value| {
        let answer = server.ask("/api/tokenize", &request).await;
        assert!(answer["total_duration"].as_u64() >= answer["load_duration"].as_u64(), "{answer}");
        list(&answer["tokens"]).to_vec()
    };
    let tokens = tokenized(json!({"model": "tiny", "content": "Hello there"})).await;
    assert_eq!(tokenized(json!({"model": "tiny", "text": "Hello there"})).await, tokens);
    let back = server.ask("/api/detokenize", &json!({"model": "tiny", "tokens": tokens})).await;
    assert_eq!(back["content"], "Hello there");
    let special = "<|begin_of_text|>";
    assert_eq!(tokenized(json!({"model": "tiny", "content": special})).await.len(), 1);
    assert!(tokenized(json!({"model": "tiny", "content": special, "parse_special": false})).await.len() > 1);
    let with = tokenized(json!({"model": "tiny", "content": "Hello there", "add_special": true})).await;
    assert_eq!(with[with.len() - tokens.len()..], tokens[..]);
    let (status, answer) = server.call("/api/detokenize", &json!({"model": "tiny", "tokens": [999_999]})).await;
    assert_eq!(status, 400, "{answer}");
}

#[tokio::test]
async fn null_is_nothing_and_the_cloud_is_elsewhere() {
    let server = models().await;
    let request = json!({"model": "plain", "prompt": "x", "suffix": null, "system": null, "template": null,
        "context": null, "raw": null, "format": null, "images": null, "options": {"num_predict": 1, "seed": null},
        "think": null, "keep_alive": null, "truncate": null, "shift": null, "logprobs": null, "stream": false});
    server.ask("/api/generate", &request).await;
    let status = server.http.get(server.url("/api/status")).send().await.expect("the daemon answers");
    assert_eq!(status.json::<Value>().await.expect("JSON")["cloud"]["disabled"], true);
    for path in ["/api/me", "/api/signout", "/api/experimental/web_search"] {
        let (status, answer) = server.call(path, &json!({})).await;
        assert!(status == 501 && answer["error"].as_str().is_some_and(|error| error.contains(path)), "{answer}");
    }
}
