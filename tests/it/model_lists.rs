//! The list of models in pages, and searches in it.

use serde_json::{Value, json};

use crate::server::Server;
use crate::support::tiny_model;

async fn list(server: &Server, query: &[(&str, &str)]) -> (u16, Value) {
    let url = reqwest::Url::parse_with_params(&server.url("/api/tags"), query).expect("a URL");
    let answer = server.http.get(url).send().await.expect("an answer");
    (answer.status().as_u16(), answer.json().await.expect("JSON"))
}

fn names(listed: &Value) -> Vec<&str> {
    let models = listed["models"].as_array().expect("models");
    models.iter().map(|model| model["name"].as_str().expect("a name")).collect()
}

#[tokio::test]
async fn models_are_listed_in_pages() {
    let server = Server::start(&[]).await;
    server.create("b", &tiny_model()).await;
    for name in ["team/x:2", "a", "team/x:1", "other.example/m/B-large", "c"] {
        let copied = server.call("/api/copy", &json!({"source": "b", "destination": name})).await;
        assert_eq!(copied.0, 200, "{copied:?}");
    }
    let all = ["other.example/m/B-large:latest", "a:latest", "b:latest", "c:latest", "team/x:1", "team/x:2"];
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let query = [("limit", "4"), ("after", &after)];
        let (status, page) = list(&server, if after.is_empty() { &query[..1] } else { &query }).await;
        assert_eq!(status, 200, "{page}");
        assert!(page["models"][0]["details"]["family"].is_string(), "{page}");
        found.extend(names(&page).into_iter().map(str::to_owned));
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(found, all);
    for (query, expect) in [
        (&[("q", "x:")][..], &["team/x:1", "team/x:2"][..]),
        (&[("q", "b")], &["other.example/m/B-large:latest", "b:latest"]),
        (&[("q", "B"), ("limit", "1")], &["other.example/m/B-large:latest"]),
        (&[("q", "library")], &[]),
        (&[("q", "none")], &[]),
        (&[("after", "c")], &["team/x:1", "team/x:2"]),
        (&[("after", "team/x:2")], &[]),
    ] {
        let (status, page) = list(&server, query).await;
        assert_eq!((status, names(&page)), (200, expect.to_vec()), "{query:?}");
    }
    for limit in ["0", "-1", "x", "1001"] {
        let (status, answer) = list(&server, &[("limit", limit)]).await;
        assert!(status == 400 && answer["error"].as_str().is_some_and(|text| text.contains("limit")), "{answer}");
    }
}

/// The list follows changes, also of files that another program removes or damages.
#[tokio::test]
async fn pages_follow_changes() {
    let server = Server::start(&[]).await;
    for name in ["a", "b", "c", "d"] {
        server.create(name, &tiny_model()).await;
    }
    let page = async || {
        let (_, page) = list(&server, &[("limit", "2")]).await;
        (names(&page).into_iter().map(str::to_owned).collect::<Vec<_>>(), page["next"].is_string())
    };
    let is = |names: &[&str], has_more: bool| (names.iter().map(|name| format!("{name}:latest")).collect(), has_more);
    assert_eq!(page().await, is(&["a", "b"], true));
    assert!(server.lode(&["rm", "a"]).status.success());
    assert_eq!(page().await, is(&["b", "c"], true));
    let tag = |name: &str| server.home().join(format!("tags/registry.ollama.ai/library/{name}/:latest"));
    std::fs::remove_file(tag("b")).expect("removed");
    std::fs::write(tag("c"), "damaged").expect("damaged");
    assert_eq!(page().await, is(&["d"], false), "a page is filled up with models that can be read");
    server.create("c", &tiny_model()).await;
    assert_eq!(page().await, is(&["c", "d"], false));
}
