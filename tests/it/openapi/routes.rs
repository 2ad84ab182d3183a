//! Routes and operations are the same, but for those that have a reason.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use reqwest::Method;
use serde_json::json;

use super::document::{Asked, Described};
use crate::support::{entries, root};

/// Routes that the document leaves out. The registry's are in a crate of its own, and described by OCI's specification.
const LEFT_OUT: [(&str, &str); 6] = [
    ("/api/me", "a service of ollama.com; every method is answered by 501"),
    ("/api/signout", "the same"),
    ("/api/user/keys/{key}", "the same"),
    ("/api/web_search", "the same"),
    ("/api/web_fetch", "the same"),
    ("/api/experimental/{rest}", "the same"),
];

/// The source files of the daemon.
fn sources() -> Vec<PathBuf> {
    let mut files = vec![root().join("src/daemon.rs")];
    let mut folders = vec![root().join("src/daemon")];
    while let Some(folder) = folders.pop() {
        for path in entries(&folder) {
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

/// What routes of a file are made of: each path with the rest of its statement.
fn routes(file: &Path) -> Vec<(String, String)> {
    let source = fs::read_to_string(file).unwrap_or_else(|e| panic!("cannot read `{}`: {e}", file.display()));
    let route = |rest: &str| {
        let rest = rest.trim_start().strip_prefix('"').expect("a path written out");
        let (path, rest) = rest.split_once('"').expect("the end of the path");
        // To the parenthesis that ends the call.
        let mut depth = 1;
        let end = rest.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        });
        (path.replace("{*", "{"), rest[..end.expect("the end of the call")].to_owned())
    };
    source.split(".route(").skip(1).map(route).collect()
}

#[test]
fn every_route_is_found_in_a_source() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("some.rs");
    fs::write(&file, "r.route(\"/a/{*b}\", get(x::y).post(z))\n.route(\n \"/c\", any(f(1)))").expect("written");
    let expected = [("/a/{b}", ", get(x::y).post(z)"), ("/c", ", any(f(1))")];
    assert_eq!(routes(&file), expected.map(|(path, rest)| (path.to_owned(), rest.to_owned())));
}

#[tokio::test]
async fn the_document_has_all_routes_and_no_others() {
    let described = Described::start(&[]).await;
    let mut served = BTreeSet::new();
    let mut left_out = BTreeSet::new();
    for (path, call) in sources().iter().flat_map(|file| routes(file)) {
        if LEFT_OUT.iter().any(|(known, _)| *known == path) {
            left_out.insert(path);
            continue;
        }
        let words = call.replace(['(', ')', '.', ',', ' '], "\n");
        let methods: Vec<Method> = words
            .lines()
            .filter(|word| ["get", "head", "post", "put", "patch", "delete", "any"].contains(word))
            .map(|word| word.to_ascii_uppercase().parse().expect("a method"))
            .collect();
        assert!(!methods.is_empty(), "`{path}` has no methods: {call}");
        served.extend(methods.into_iter().map(|method| (method, path.clone())));
    }
    assert!(served.len() > 40, "only {} routes were found", served.len());
    let described = described.operations();
    let missing: Vec<_> = served.difference(&described).collect();
    assert!(missing.is_empty(), "the document lacks {missing:?}");
    let surplus: Vec<_> = described.difference(&served).collect();
    assert!(surplus.is_empty(), "nothing serves {surplus:?}");
    let known: BTreeSet<String> = LEFT_OUT.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(left_out, known, "a reason without a route");
}

#[tokio::test]
async fn every_operation_is_answered_as_the_document_says() {
    let described = Described::start(&[]).await;
    for (method, path) in described.operations() {
        let url = path.replace("{digest}", "none").replace("{model}", "none");
        let asked = Asked { method: method.clone(), path: &path, url: &url };
        let (status, documents) = described.send(&asked, described.request(&asked).json(&json!({}))).await;
        assert!(status != 405 && status < 500, "{method} {path}: {status} {documents:?}");
        let said = format!("{documents:?}");
        assert!(!said.contains("is not served here"), "{method} {path}: {said}");
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
