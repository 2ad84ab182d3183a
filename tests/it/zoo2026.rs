//! The tiny models of 2026 in the daemon: all are stored, and all but the listed ones can be run.
//! The runner's own tests compare them with transformers.

use serde_json::json;

use crate::server::Server;
use crate::support::{entries, fixtures};

/// Models that cannot be run yet.
const NOT_YET: [&str; 7] = ["albert", "dbrx", "diffllama", "longcat_flash", "paligemma2", "recurrent_gemma", "zamba2"];

#[tokio::test]
async fn all_models_but_the_listed_ones_can_be_run() {
    let test = "zoo2026::all_models_but_the_listed_ones_can_be_run";
    let Some(zoo) = fixtures(test, "zoo2026") else { return };
    let server = Server::start(&[]).await;
    let models = entries(&zoo).into_iter().filter(|folder| folder.join("golden.json").is_file());
    let (mut count, mut wrong) = (0, Vec::new());
    for folder in models {
        let name = folder.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        server.create(&name, &folder.join("model")).await;
        let shown = server.ask("/api/show", &json!({"model": name})).await;
        if shown["cannot_run"].is_string() != NOT_YET.contains(&name.as_str()) {
            wrong.push(format!("{name}: {}", shown["cannot_run"]));
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count >= 117, "{count}");
}
