//! The web page's files and API calls, tested without a browser.

use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETAG, IF_NONE_MATCH, ORIGIN};
use serde_json::{Value, json};

use crate::server::{Server, http};
use crate::support::{list, tiny_model, variant};

const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

#[tokio::test]
async fn browsers_get_the_page_and_clients_what_they_look_for() {
    let server = Server::start(&[]).await;
    for accept in ["*/*", "application/json", "text/plain"] {
        let answer = server.http.get(server.url("/")).header(ACCEPT, accept).send().await.expect("an answer");
        assert_eq!(answer.headers()["vary"], "accept", "{accept}");
        assert_eq!(answer.text().await.expect("text"), "Ollama is running", "{accept}");
    }
    for path in ["/", "/ui", "/ui/", "/ui/models", "/ui/model?name=a/b"] {
        let answer = server.http.get(server.url(path)).header(ACCEPT, BROWSER).send().await.expect("an answer");
        let headers = answer.headers().clone();
        assert_eq!((answer.status().as_u16(), &headers[CACHE_CONTROL]), (200, &"no-cache".parse().expect("a header")));
        assert!(headers[CONTENT_SECURITY_POLICY].to_str().expect("text").contains("default-src 'none'"), "{path}");
        let page = answer.text().await.expect("text");
        assert!(page.contains("<script type=\"module\"") && !page.contains("onclick"), "{path}: {page}");
        let again = server.http.get(server.url(path)).header(ACCEPT, BROWSER).header(IF_NONE_MATCH, &headers[ETAG]);
        assert_eq!(again.send().await.expect("an answer").status().as_u16(), 304, "{path}");
    }
}

#[tokio::test]
async fn files_of_the_page_are_kept_for_good() {
    let server = Server::start(&[]).await;
    let page = server.http.get(server.url("/ui")).send().await.expect("an answer").text().await.expect("text");
    let scripts: Vec<&str> = page.split('"').filter(|part| part.starts_with("/ui/files/")).collect();
    assert!(scripts.len() > 3, "{page}");
    for path in &scripts {
        // Files are compressed for clients that accept it.
        let plain =
            server.http.get(server.url(path)).header(ACCEPT_ENCODING, "identity").send().await.expect("an answer");
        assert!(plain.headers()[CACHE_CONTROL].to_str().expect("text").contains("immutable"), "{path}");
        assert!(!plain.headers().contains_key("content-encoding"), "{path}");
        let plain = plain.bytes().await.expect("bytes");
        let packed = server.http.get(server.url(path)).header(ACCEPT_ENCODING, "gzip").send().await.expect("an answer");
        assert_eq!(packed.headers()["content-encoding"], "gzip", "{path}");
        assert!(!plain.is_empty() && packed.bytes().await.expect("bytes").len() < plain.len(), "{path}");
    }
    let other = "/ui/files/0000000000000000/app.js";
    let missing = server.http.get(server.url(other)).send().await.expect("an answer");
    assert_eq!(missing.status().as_u16(), 404);
}

/// The page calls the API from the host that served it. The daemon accepts that origin if it
/// accepts the host, and no other origin.
#[tokio::test]
async fn the_page_may_call_from_every_name_of_the_daemon() {
    let server = Server::start(&[("LODE_ALLOWED_HOSTS", "models.example,*.wide.example")]).await;
    let client = http().build().expect("a client");
    let call = async |host: &str, origin: &str| {
        let request = client.post(server.url("/api/lode/markdown")).header("host", host).header(ORIGIN, origin);
        request.json(&json!({"text": "a"})).send().await.expect("an answer").status().as_u16()
    };
    assert_eq!(call("models.example", "http://models.example").await, 200);
    assert_eq!(call("models.example:11434", "http://models.example:11434").await, 200);
    assert_eq!(call("models.example", "http://evil.example").await, 403);
    assert_eq!(call("models.example", "http://models.example:1").await, 403, "another port");
    assert_eq!(call("models.example", "evil://models.example").await, 403, "another scheme");
    assert_eq!(call("127.0.0.1", "null").await, 403);
    assert_eq!(call("evil.example", "http://evil.example").await, 403, "a name that was made to lead here");
    assert_eq!(call("evil.wide.example", "http://evil.wide.example").await, 403, "a name that anybody may claim");
    // A browser may send a foreign page's body without a preflight request, so the daemon refuses
    // it before storing any of it.
    let sent = client.post(server.url("/api/lode/upload")).header(ORIGIN, "http://evil.example").body("a");
    assert_eq!(sent.send().await.expect("an answer").status().as_u16(), 403);
    assert_eq!(get(&server, "/api/lode/du").await["blobs"], 0);
}

async fn get(server: &Server, path: &str) -> Value {
    server.http.get(server.url(path)).send().await.expect("an answer").json().await.expect("JSON")
}

#[tokio::test]
async fn what_models_share_and_where_they_are_from() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    server.create("other", variant(1).path()).await;
    let made = json!({"model": "pirate", "from": "tiny", "system": "Arr.", "stream": false});
    assert_eq!(server.ask("/api/create", &made).await["status"], "success");
    let quantized = json!({"model": "small", "from": "tiny", "quantize": "q8_0", "stream": false});
    assert_eq!(server.ask("/api/create", &quantized).await["status"], "success");
    let sharing = server.ask("/api/lode/sharing", &json!({"model": "tiny"})).await;
    let names: Vec<&str> = list(&sharing["models"]).iter().filter_map(|model| model["name"].as_str()).collect();
    assert_eq!(names[0], "pirate:latest", "it has the same weights: {sharing}");
    assert!(names.contains(&"small:latest"), "what is not quantized: {sharing}");
    let shown = server.ask("/api/show", &json!({"model": "tiny", "verbose": true})).await;
    let blob = list(&sharing["blobs"]).iter().find(|blob| blob["digest"] == shown["tensors"][0]["digest"]);
    assert!(blob.is_some_and(|blob| blob["models"].as_u64() >= Some(1) && blob["some"][0] == 0), "{sharing}");
    let lineage = server.ask("/api/lode/lineage", &json!({"model": "tiny"})).await;
    let derived: Vec<&str> = list(&lineage["derived"]).iter().filter_map(|model| model["name"].as_str()).collect();
    assert!(derived.contains(&"pirate:latest") && derived.contains(&"small:latest"), "{lineage}");
    let lineage = server.ask("/api/lode/lineage", &json!({"model": "small"})).await;
    assert_eq!(lineage["bases"][0]["name"], "tiny:latest", "{lineage}");
    let usage = get(&server, "/api/lode/du").await;
    let families = list(&usage["families"]);
    let bytes: u64 = families.iter().filter_map(|family| family["bytes"].as_u64()).sum();
    let rest = ["version_bytes", "linked_bytes", "unreferenced_bytes"].map(|kind| usage[kind].as_u64().expect("bytes"));
    assert_eq!(bytes + rest.iter().sum::<u64>(), usage["bytes"].as_u64().expect("bytes"), "each blob once: {usage}");
}

#[tokio::test]
async fn numbers_of_tensors() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let quantized = json!({"model": "small", "from": "tiny", "quantize": "q8_0", "stream": false});
    assert_eq!(server.ask("/api/create", &quantized).await["status"], "success");
    let tensor = "model.layers.0.mlp.down_proj.weight";
    let values = async |model: &str| {
        server.ask("/api/lode/values", &json!({"model": model, "tensor": tensor, "bins": 10})).await
    };
    let (plain, small) = (values("tiny").await, values("small").await);
    for found in [&plain, &small] {
        let bins: u64 = list(&found["bins"]).iter().filter_map(Value::as_u64).sum();
        assert_eq!((list(&found["bins"]).len(), Some(bins)), (10, found["sampled"].as_u64()), "{found}");
        assert_eq!(found["numbers"], found["sampled"], "a small one is looked at whole: {found}");
    }
    let number = |found: &Value, name: &str| found[name].as_f64().expect("a number");
    for name in ["mean", "deviation", "min", "max"] {
        let (a, b) = (number(&plain, name), number(&small, name));
        assert!((a - b).abs() < number(&plain, "deviation") / 10.0, "{name}: {a} and {b}");
    }
    assert_eq!(small["dtype"], "Q8_0");
    for (body, status) in [
        (json!({"model": "tiny", "tensor": "none"}), 404),
        (json!({"model": "none", "tensor": tensor}), 404),
        (json!({"model": "tiny", "tensor": tensor, "bins": 0}), 400),
        (json!({"model": "tiny", "tensor": tensor, "bins": 5000}), 400),
    ] {
        assert_eq!(server.call("/api/lode/values", &body).await.0, status, "{body}");
    }
}

#[tokio::test]
async fn what_runs_and_how_fast() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    assert_eq!(get(&server, "/api/lode/running").await["models"], json!([]));
    let asked =
        json!({"model": "tiny", "prompt": "a", "stream": false, "options": {"num_predict": 8, "temperature": 0}});
    let answer = server.ask("/api/generate", &asked).await;
    let running = get(&server, "/api/lode/running").await;
    assert_eq!((&running["models"][0]["name"], &running["models"][0]["active"]), (&json!("tiny:latest"), &json!(0)));
    assert!(running["models"][0]["weights"].as_u64() > Some(0) && running["loads"] == 1, "{running}");
    let sum = |kind: &str| -> u64 { list(&running["rates"]).iter().filter_map(|rate| rate[kind].as_u64()).sum() };
    assert_eq!(Some(sum("generated")), answer["eval_count"].as_u64(), "{running}");
    assert_eq!(Some(sum("prompt")), answer["prompt_eval_count"].as_u64(), "{running}");
}

#[tokio::test]
async fn the_registry_says_who_may_do_what() {
    let open = Server::start(&[]).await;
    let said = get(&open, "/api/lode/registry").await;
    assert_eq!(
        (&said["mode"], &said["pull"], &said["push"]),
        (&json!("open"), &json!("anyone"), &json!("this machine"))
    );
    let settings = "[registry.\"registry.example\"]\nmirrors = [\"http://user:secret@mirror.example\"]\n";
    let prepared = Server::prepared(&[("LODE_REGISTRY_MODE", "read-only")], |home| {
        std::fs::write(home.join("registries.toml"), settings).expect("a file");
    });
    let said = get(&prepared.await, "/api/lode/registry").await;
    assert_eq!((&said["mode"], &said["push"], &said["chosen"]), (&json!("read-only"), &json!("nobody"), &json!(true)));
    assert_eq!(said["hosts"][0]["mirrors"][0], "http://mirror.example", "without its login: {said}");
}

/// The library for formulas slices this text inside a character, and its panic message contains the
/// text.
#[tokio::test]
async fn a_text_that_cannot_be_read_is_not_in_the_log() {
    let server = Server::start(&[]).await;
    let text = "$\\textcolor{#aéaaa}{secret words}$ and **so on**";
    let read = server.ask("/api/lode/markdown", &json!({"text": text})).await;
    let block = read["blocks"][0].as_str().expect("a block");
    assert!(block.contains("secret words") && block.contains("<strong>so on</strong>"), "{read}");
    let log = server.log();
    assert!(!log.contains("aéaaa") && !log.contains("secret words") && !log.contains("panicked"), "{log}");
}

#[tokio::test]
async fn a_file_is_sent_by_who_cannot_hash_it() {
    let server = Server::start(&[]).await;
    let folder = tiny_model();
    let mut files = serde_json::Map::new();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        let Ok(bytes) = std::fs::read(folder.join(name)) else { continue };
        let size = bytes.len();
        // The request without pieces announces its length.
        let pieces = bytes.chunks(1000).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect::<Vec<_>>();
        let chunked = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
        let mut digests = Vec::new();
        for body in [chunked, bytes.into()] {
            let sent = server.http.post(server.url("/api/lode/upload")).body(body).send().await.expect("an answer");
            let sent: Value = sent.json().await.expect("JSON");
            assert_eq!(sent["size"], size, "{name}");
            digests.push(sent["digest"].clone());
        }
        assert_eq!(digests[0], digests[1], "{name}");
        files.insert(name.to_owned(), digests.remove(0));
    }
    let made = server.ask("/api/create", &json!({"model": "sent", "files": files, "stream": false})).await;
    assert_eq!(made["status"], "success", "{made}");
    server.create("here", &folder).await;
    let tensors =
        async |model: &str| server.ask("/api/show", &json!({"model": model, "verbose": true})).await["tensors"].clone();
    assert_eq!(tensors("sent").await, tensors("here").await);
}

#[test]
fn the_command_prints_where_the_page_is() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let server = runtime.block_on(Server::start(&[]));
    let output = server.lode(&["ui", "--print"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), server.url("/ui/chat"));
    assert!(output.status.success());
}
