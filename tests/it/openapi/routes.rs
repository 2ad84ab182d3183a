//! Every operation is served as the document says. Undocumented routes are impossible, because one
//! table generates both the routes and the document.

use std::fs;

use serde_json::json;

use super::document::{Asked, Described};

#[tokio::test]
async fn every_operation_is_answered_as_the_document_says() {
    let described = Described::start(&[]).await;
    for (method, path) in described.operations() {
        let url = path.replace("{digest}", "none").replace("{model}", "none");
        let asked = Asked { method: method.clone(), path: &path, url: &url };
        let (status, documents) = described.send(&asked, described.request(&asked).json(&json!({}))).await;
        assert!(status != 405 && status < 500, "{method} {path}: {status} {documents:?}");
        let said = format!("{documents:?}");
        assert!(!said.contains("no such path"), "{method} {path}: {said}");
    }
}

#[tokio::test]
async fn without_a_key_only_the_document_and_signs_of_life_are_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("keys");
    fs::write(&keys, "").expect("written");
    let described = Described::start(&[("LODE_API_KEYS", keys.to_str().expect("text"))]).await;
    for (method, path) in described.operations() {
        let url = path.replace("{digest}", "none").replace("{model}", "none");
        let asked = Asked { method: method.clone(), path: &path, url: &url };
        let (status, _) = described.send(&asked, described.request(&asked).json(&json!({}))).await;
        let operation = &described.document["paths"][&path][method.as_str().to_ascii_lowercase()];
        let is_for_all = operation["security"].as_array().is_some_and(Vec::is_empty);
        assert_eq!(is_for_all, status != 401, "{method} {path}: {status}");
        assert_eq!(is_for_all, operation["x-lode-scope"].is_null(), "{method} {path}");
    }
}
