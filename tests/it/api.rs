//! The Ollama API over HTTP: documents, streams, statuses and errors.

use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{list, tiny_model};

/// A daemon with a tiny model called `tiny`.
async fn tiny() -> Server {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    server
}

async fn get(server: &Server, path: &str) -> Value {
    let answer = server.http.get(server.url(path)).send().await.expect("the daemon answers");
    assert_eq!(answer.status().as_u16(), 200, "{path}");
    answer.json().await.expect("JSON")
}

#[tokio::test]
async fn an_empty_daemon_answers() {
    let server = Server::start(&[]).await;
    let root = server.http.get(server.url("/")).send().await.expect("the daemon answers");
    assert_eq!(root.text().await.expect("text"), "Ollama is running");
    let version = get(&server, "/api/version").await;
    assert_eq!((&version["version"], &version["lode_version"]), (&"0.34.0".into(), &env!("CARGO_PKG_VERSION").into()));
    assert_eq!(get(&server, "/api/tags").await, json!({"models": []}));
    assert_eq!(get(&server, "/api/ps").await, json!({"models": []}));
    for path in ["/", "/api/version", "/api/tags"] {
        let head = server.http.head(server.url(path)).send().await.expect("the daemon answers");
        assert_eq!(head.status().as_u16(), 200, "{path}");
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one case after the other")]
async fn errors_have_their_status_and_name_the_thing() {
    let server = tiny().await;
    for (path, body, status, says) in [
        ("/api/generate", json!({"model": "nope", "prompt": "x"}), 404, "model 'nope' not found"),
        ("/api/chat", json!({"model": "nope", "messages": []}), 404, "not found"),
        ("/api/show", json!({"model": "nope"}), 404, "not found"),
        ("/api/show", json!({}), 400, "model is required"),
        ("/api/show", json!({"model": "../etc"}), 400, "is not a model name"),
        ("/api/copy", json!({"source": "nope", "destination": "b"}), 404, "model \"nope\" not found"),
        (
            "/api/generate",
            json!({"model": "tiny", "prompt": "x", "options": {"temperature": "hot"}}),
            400,
            "temperature",
        ),
        ("/api/generate", json!({"model": "tiny", "prompt": "x", "keep_alive": "soon"}), 400, "duration"),
        ("/api/generate", json!({"model": "tiny", "prompt": "x", "images": ["aGk="]}), 400, "images"),
        ("/api/generate", json!({"model": "tiny", "prompt": "x", "suffix": "y"}), 400, "does not support insert"),
        ("/api/generate", json!({"model": "tiny", "prompt": "x", "think": true}), 400, "does not support thinking"),
        ("/api/generate", json!({"model": "tiny", "prompt": "x", "format": "yaml"}), 400, "invalid format"),
        ("/api/generate", json!({"model": "tiny", "prompt": "x", "think": "much"}), 400, "invalid think value"),
        ("/api/generate", json!({"model": "tiny", "prompt": "x", "top_logprobs": 21}), 400, "between 0 and 20"),
        ("/api/generate", json!({"model": "tiny", "prompt": "x", "context": [-1]}), 400, "'context' has -1"),
        (
            "/api/generate",
            json!({"model": "tiny", "prompt": "x", "raw": true, "system": "y"}),
            400,
            "raw mode does not support template, system, or context",
        ),
        ("/api/generate", json!({"model": "tiny", "prompt": "x", "options": {"num_gpu": "all"}}), 400, "num_gpu"),
        (
            "/api/chat",
            json!({"model": "tiny", "messages": [], "tools": [{"type": "function"}]}),
            400,
            "has no function",
        ),
        ("/api/embed", json!({"model": "tiny", "input": [1]}), 400, "invalid input type"),
        ("/api/embed", json!({"model": "nope", "input": "x"}), 404, "model 'nope' not found"),
        ("/api/tokenize", json!({"model": "tiny"}), 400, "content is required"),
        ("/api/chat", json!({"model": "tiny", "messages": [{"role": "robot", "content": "x"}]}), 400, "invalid role"),
        ("/api/create", json!({"model": "x", "stream": false}), 400, "neither 'from' or 'files'"),
        (
            "/api/create",
            json!({"model": "x", "from": "tiny", "adapters": {"a": "b"}}),
            400,
            "file `a`: `b` is not a digest",
        ),
        (
            "/api/create",
            json!({"model": "x", "from": "nope", "stream": false}),
            404,
            "model `nope` is not in the store",
        ),
        ("/api/create", json!({"model": "x", "path": "relative", "stream": false}), 400, "absolute"),
        ("/api/create", json!({"model": "x", "path": "/no/such/file", "stream": false}), 400, "/no/such/file"),
        ("/api/create", json!({"model": "x", "from": "tiny", "quantize": "q4_9", "stream": false}), 400, "q4_9"),
        ("/api/nothing", json!({}), 404, "/api/nothing"),
    ] {
        let (got, answer) = server.call(path, &body).await;
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(got == status && error.contains(says), "{path} {body}: {got} {answer}, expected {status} {says}");
    }
    let empty = server.http.post(server.url("/api/show")).send().await.expect("the daemon answers");
    assert_eq!(empty.status().as_u16(), 400);
    assert_eq!(empty.json::<Value>().await.expect("JSON"), json!({"error": "missing request body"}));
    let broken = server.http.post(server.url("/api/show")).body("{").send().await.expect("the daemon answers");
    assert_eq!(broken.status().as_u16(), 400);
}

#[tokio::test]
async fn generates_streamed_and_whole_the_same() {
    let server = tiny().await;
    let options = json!({"temperature": 0, "num_predict": 12});
    let request =
        |stream: bool| json!({"model": "tiny", "prompt": "Hello", "raw": true, "stream": stream, "options": options});
    let lines = server.lines("/api/generate", &request(true)).await;
    let (last, pieces) = lines.split_last().expect("lines");
    let text: String = pieces.iter().map(|line| line["response"].as_str().expect("text")).collect();
    assert!(pieces.iter().all(|line| line["done"] == false && line["model"] == "tiny"));
    assert_eq!((last["done"].as_bool(), last["done_reason"].as_str()), (Some(true), Some("length")));
    assert_eq!(last["eval_count"], 12);
    for key in ["total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_duration"] {
        assert!(last[key].as_u64().is_some_and(|n| n > 0), "{key} in {last}");
    }
    let whole = server.ask("/api/generate", &request(false)).await;
    assert_eq!(whole["response"], text);
    assert!(!text.is_empty());
    let sampled = |seed: u64| {
        json!({"model": "tiny", "prompt": "Hello", "raw": true, "stream": false,
        "options": {"seed": seed, "temperature": 1.5, "num_predict": 16}})
    };
    let (one, same, other) = (
        server.ask("/api/generate", &sampled(1)).await,
        server.ask("/api/generate", &sampled(1)).await,
        server.ask("/api/generate", &sampled(2)).await,
    );
    assert_eq!(one["response"], same["response"], "a seed repeats");
    assert_ne!(one["response"], other["response"], "another seed does not");
}

#[tokio::test]
async fn chats_and_tells_log_probabilities() {
    let server = tiny().await;
    let request = json!({"model": "tiny", "stream": false, "logprobs": true, "top_logprobs": 3,
        "messages": [{"role": "user", "content": "Hi"}], "options": {"temperature": 0, "num_predict": 5}});
    let answer = server.ask("/api/chat", &request).await;
    assert_eq!(answer["message"]["role"], "assistant");
    let logprobs = list(&answer["logprobs"]);
    assert_eq!(logprobs.len() as u64, answer["eval_count"].as_u64().expect("a count"));
    for token in logprobs {
        let top = list(&token["top_logprobs"]);
        assert_eq!(top.len(), 3);
        assert_eq!(top[0]["logprob"], token["logprob"], "greedy takes the likeliest");
        assert!(token["logprob"].as_f64().is_some_and(|p| p <= 0.0));
    }
}

#[tokio::test]
async fn the_context_limits_and_says_so() {
    let server = tiny().await;
    let long = "many words of a prompt ".repeat(40);
    let request = json!({"model": "tiny", "prompt": long, "raw": true, "stream": false,
        "options": {"num_ctx": 32, "temperature": 0}});
    let answer = server.ask("/api/generate", &request).await;
    assert_eq!(answer["done_reason"], "length");
    assert!(answer["prompt_truncated_count"].as_u64().is_some_and(|n| n > 0), "{answer}");
    assert!(answer["prompt_eval_count"].as_u64().is_some_and(|n| n < 32), "{answer}");
    assert_eq!(get(&server, "/api/ps").await["models"][0]["context_length"], 32);
}

#[tokio::test]
async fn stop_strings_end_the_text_before_them() {
    let server = tiny().await;
    let ask = async |stop: &[&str]| {
        let options = json!({"temperature": 0, "num_predict": 24, "stop": stop});
        server
            .ask(
                "/api/generate",
                &json!({"model": "tiny", "prompt": "Hello", "raw": true, "stream": false, "options": options}),
            )
            .await
    };
    let full = ask(&[]).await;
    let text = full["response"].as_str().expect("text");
    let stop: String = text.chars().skip(3).take(2).collect();
    let cut = ask(&[&stop]).await;
    let expected = &text[..text.find(&stop).expect("it is in there")];
    assert_eq!((cut["response"].as_str(), cut["done_reason"].as_str()), (Some(expected), Some("stop")));
}

#[tokio::test]
async fn models_are_described_copied_and_deleted() {
    let server = tiny().await;
    let lines = server
        .lines(
            "/api/create",
            &json!({"model": "me/poet:v1", "from": "tiny", "system": "Rhyme.", "license": "MIT",
            "parameters": {"temperature": 0.5, "stop": ["a", "b"]}, "messages": [{"role": "user", "content": "Go"}]}),
        )
        .await;
    assert_eq!(lines.last().expect("lines")["status"], "success");
    let shown = server.ask("/api/show", &json!({"model": "me/poet:v1", "verbose": true})).await;
    assert_eq!((shown["system"].as_str(), shown["license"].as_str()), (Some("Rhyme."), Some("MIT")));
    assert_eq!(shown["messages"][0]["content"], "Go");
    assert_eq!(shown["details"]["family"], "llama");
    assert_eq!(shown["model_info"]["llama.context_length"], 256);
    assert!(shown["parameters"].as_str().is_some_and(|p| p.lines().count() == 3), "{}", shown["parameters"]);
    let count = shown["model_info"]["general.tensor_count"].as_u64().expect("a count");
    assert_eq!(list(&shown["tensors"]).len() as u64, count);

    let (status, _) = server.call("/api/copy", &json!({"source": "me/poet:v1", "destination": "copy"})).await;
    assert_eq!(status, 200);
    let tags = get(&server, "/api/tags").await;
    let find = |name: &str| list(&tags["models"]).iter().find(|m| m["name"] == name).cloned().expect("listed");
    assert_eq!(find("copy:latest")["digest"], find("me/poet:v1")["digest"]);
    assert_ne!(find("tiny:latest")["digest"], find("copy:latest")["digest"]);
    assert_eq!(server.call("/api/show", &json!({"model": "TINY"})).await.0, 200, "names do not depend on case");

    for name in ["tiny", "me/poet:v1", "copy"] {
        let blobs = || walk(&server.home().join("blobs"));
        assert!(blobs() > 0, "blobs stay as long as a model needs them");
        let request = server.http.delete(server.url("/api/delete")).json(&json!({"model": name}));
        assert_eq!(request.send().await.expect("the daemon answers").status().as_u16(), 200, "{name}");
    }
    assert_eq!(walk(&server.home().join("blobs")), 0, "the last model takes its blobs with it");
    let request = server.http.delete(server.url("/api/delete")).json(&json!({"model": "tiny"}));
    assert_eq!(request.send().await.expect("the daemon answers").status().as_u16(), 404);
}

/// Returns the number of files below a folder.
fn walk(folder: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(folder).map(|entries| entries.flatten().collect::<Vec<_>>()).unwrap_or_default();
    entries.iter().map(|entry| if entry.path().is_dir() { walk(&entry.path()) } else { 1 }).sum()
}

#[tokio::test]
async fn uploads_become_models() {
    let folder = tiny_model();
    let server = Server::start(&[]).await;
    let mut files = serde_json::Map::new();
    for entry in std::fs::read_dir(&folder).expect("a model") {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("a file");
        let digest = content::Digest::of(&bytes).to_string();
        let url = server.url(&format!("/api/blobs/{digest}"));
        let missing = server.http.head(&url).send().await.expect("the daemon answers");
        assert_eq!(missing.status().as_u16(), 404);
        let wrong = server.http.post(&url).body("other bytes").send().await.expect("the daemon answers");
        assert_eq!(wrong.status().as_u16(), 400);
        assert!(wrong.text().await.expect("text").contains("digest mismatch"));
        for expected in [201, 200] {
            let sent = server.http.post(&url).body(bytes.clone()).send().await.expect("the daemon answers");
            assert_eq!(sent.status().as_u16(), expected);
        }
        files.insert(path.file_name().expect("a name").to_string_lossy().into_owned(), digest.into());
    }
    let bad = server.http.head(server.url("/api/blobs/sha256:zz")).send().await.expect("the daemon answers");
    assert_eq!(bad.status().as_u16(), 400);
    let answer = server.ask("/api/create", &json!({"model": "up", "files": files, "stream": false})).await;
    assert_eq!(answer, json!({"status": "success"}));
    server.create("direct", &folder).await;
    let tags = get(&server, "/api/tags").await;
    assert_eq!(tags["models"][0]["digest"], tags["models"][1]["digest"], "by upload or by path, it is the same model");
}

/// An import copies tensors into separate blobs, so the uploaded files are no longer needed after a
/// create. Their leases shrink from an hour to a few minutes, and a collection reports them.
#[tokio::test]
async fn uploads_are_let_go_after_the_create() {
    let server = Server::start(&[]).await;
    let leased = async || {
        let done = server.ask("/api/lode/gc", &json!({"dry_run": true})).await;
        let until = done["leased"]["until"].as_str().map(|text| {
            text.parse::<jiff::Timestamp>().expect("a time").as_second() - jiff::Timestamp::now().as_second()
        });
        (done["leased"]["bytes"].as_u64().unwrap_or_default(), until.unwrap_or_default() / 60)
    };
    assert_eq!(leased().await, (0, 0));
    let (mut files, mut sent) = (serde_json::Map::new(), 0);
    for entry in std::fs::read_dir(tiny_model()).expect("a model") {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("a file");
        let digest = content::Digest::of(&bytes).to_string();
        sent += bytes.len() as u64;
        let url = server.url(&format!("/api/blobs/{digest}"));
        assert_eq!(server.http.post(&url).body(bytes).send().await.expect("the daemon answers").status(), 201);
        files.insert(path.file_name().expect("a name").to_string_lossy().into_owned(), digest.into());
    }
    let (bytes, minutes) = leased().await;
    assert_eq!(bytes, sent);
    assert!((50..=60).contains(&minutes), "{minutes}");
    for name in ["first", "second"] {
        server.ask("/api/create", &json!({"model": name, "files": files, "stream": false})).await;
        let (bytes, minutes) = leased().await;
        assert!((1..=sent).contains(&bytes) && minutes <= 5, "{name}: {bytes} for {minutes} minutes");
    }
    let told = server.lode(&["gc"]);
    let told = String::from_utf8_lossy(&told.stderr);
    assert!(told.contains("that no model refers to are kept until"), "{told}");
}

#[tokio::test]
async fn unknown_fields_of_its_own_calls_are_refused() {
    let server = Server::start(&[]).await;
    for (call, request, unknown) in [
        ("gc", json!({"dry_rum": true}), "unknown field `dry_rum`, expected `dry_run`"),
        ("prune", json!({"dry_run": true, "older": 1}), "unknown field `older`"),
        ("rollback", json!({"model": "m", "too": "sha256:"}), "unknown field `too`"),
    ] {
        let (status, answer) = server.call(&format!("/api/lode/{call}"), &request).await;
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(status == 400 && error.contains(unknown), "{call}: {status} {answer}");
    }
}

#[tokio::test]
async fn models_are_loaded_kept_and_unloaded() {
    let server = tiny().await;
    let loaded = async || list(&get(&server, "/api/ps").await["models"]).len();
    let ask = async |keep_alive: Value| {
        server.ask("/api/generate", &json!({"model": "tiny", "keep_alive": keep_alive, "stream": false})).await
    };
    assert_eq!(ask(json!(-1)).await["done_reason"], "load");
    assert_eq!(loaded().await, 1);
    assert_eq!(ask(json!(0)).await["done_reason"], "unload");
    assert_eq!(loaded().await, 0);
    let once = json!({"model": "tiny", "prompt": "x", "raw": true, "stream": false, "keep_alive": 0, "options": {"num_predict": 1}});
    server.ask("/api/generate", &once).await;
    assert_eq!(loaded().await, 0, "kept for no time");
}

#[tokio::test]
async fn a_client_that_goes_away_cancels() {
    let server = tiny().await;
    let endless =
        json!({"model": "tiny", "prompt": "x", "raw": true, "options": {"num_ctx": 256, "seed": 1, "temperature": 2}});
    for _ in 0..8 {
        let mut response = server.post("/api/generate", &endless).await;
        response.chunk().await.expect("a first piece");
        drop(response);
    }
    // If the cancelled requests still ran, this one would wait for them.
    let one = json!({"model": "tiny", "prompt": "x", "raw": true, "stream": false, "options": {"num_ctx": 256, "num_predict": 1}});
    server.ask("/api/generate", &one).await;
}

#[tokio::test]
async fn a_runner_that_dies_is_reported_and_replaced() {
    let server = tiny().await;
    let request = json!({"model": "tiny", "prompt": "x", "raw": true, "stream": false, "options": {"num_predict": 4, "temperature": 0}});
    let before = server.ask("/api/generate", &request).await;
    for _ in 0..5 {
        let pid = server.runner_pid().await;
        let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill runs");
        assert!(killed.success());
        let (status, answer) = server.call("/api/generate", &request).await;
        let fine = status == 200 && answer["response"] == before["response"];
        let told = status == 500 && answer["error"].as_str().is_some_and(|e| e.contains("ended unexpectedly"));
        assert!(fine || told, "{status} {answer}");
        let after = server.ask("/api/generate", &request).await;
        assert_eq!(after["response"], before["response"], "the next request starts a new runner");
    }
}

#[tokio::test]
async fn pages_from_elsewhere_are_refused() {
    let server = Server::start(&[]).await;
    for (header, value, expected) in [
        ("host", "evil.example:11434", 403),
        ("origin", "https://evil.example", 403),
        ("origin", "http://localhost:3000", 200),
        ("host", "localhost:11434", 200),
    ] {
        let answer = server.http.get(server.url("/api/tags")).header(header, value).send().await.expect("an answer");
        assert_eq!(answer.status().as_u16(), expected, "{header}: {value}");
    }
}

#[tokio::test]
async fn a_pinned_name_deletes_only_what_it_names() {
    let server = tiny().await;
    let other = content::Digest::of(b"another manifest");
    let request = server.http.delete(server.url("/api/delete")).json(&json!({"model": format!("tiny:latest@{other}")}));
    assert_eq!(request.send().await.expect("the daemon answers").status().as_u16(), 404);
    assert_eq!(server.call("/api/show", &json!({"model": "tiny"})).await.0, 200);
}

#[tokio::test]
async fn keep_alive_holds_until_another_is_asked_for() {
    let server = tiny().await;
    server.ask("/api/generate", &json!({"model": "tiny", "keep_alive": -1, "stream": false})).await;
    let forever = get(&server, "/api/ps").await["models"][0]["expires_at"].clone();
    let year = |time: &Value| time.as_str().and_then(|t| t[..4].parse::<u32>().ok()).expect("a year");
    server
        .ask("/api/generate", &json!({"model": "tiny", "prompt": "x", "stream": false, "options": {"num_predict": 1}}))
        .await;
    let after = get(&server, "/api/ps").await["models"][0]["expires_at"].clone();
    assert_eq!(year(&forever), year(&after));
    server.ask("/api/generate", &json!({"model": "tiny", "keep_alive": "1m", "stream": false})).await;
    let soon = get(&server, "/api/ps").await["models"][0]["expires_at"].clone();
    assert!(year(&soon) < year(&forever), "{soon} {forever}");
}
