//! The document of a running daemon, and the comparison of responses with it.

use std::cell::RefCell;
use std::collections::BTreeSet;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::server::Server;
use crate::support::object;

/// A daemon with its document.
pub(super) struct Described {
    pub(super) server: Server,
    pub(super) document: Value,
    /// The components, with object schemas that allow no undescribed members.
    closed: Value,
    /// The responses that were compared with the document: method, path, status, media type.
    seen: RefCell<BTreeSet<(String, String, u16, String)>>,
}

/// A request.
pub(super) struct Asked<'a> {
    pub(super) method: Method,
    /// The path as in the document.
    pub(super) path: &'a str,
    /// The URL as requested.
    pub(super) url: &'a str,
}

impl<'a> Asked<'a> {
    pub(super) fn post(path: &'a str) -> Self {
        Self { method: Method::POST, path, url: path }
    }

    pub(super) fn get(path: &'a str) -> Self {
        Self { method: Method::GET, path, url: path }
    }
}

impl Described {
    pub(super) async fn start(environment: &[(&str, &str)]) -> Self {
        let server = Server::start(environment).await;
        let answer = server.http.get(server.url("/openapi.json")).send().await.expect("the daemon answers");
        assert_eq!(answer.headers()["content-type"], "application/json");
        let document: Value = answer.json().await.expect("JSON");
        let mut closed = document["components"].clone();
        close(&mut closed["schemas"], false);
        Self { server, document, closed, seen: RefCell::default() }
    }

    /// Returns the operations as methods with paths.
    pub(super) fn operations(&self) -> BTreeSet<(Method, String)> {
        let methods = |(path, item): (&String, &Value)| {
            let methods: Vec<String> = object(item).keys().map(|method| method.to_ascii_uppercase()).collect();
            let path = path.clone();
            methods.into_iter().map(move |method| (method.parse().expect("a method"), path.clone()))
        };
        object(&self.document["paths"]).iter().flat_map(methods).collect()
    }

    pub(super) fn request(&self, asked: &Asked<'_>) -> RequestBuilder {
        self.server.http.request(asked.method.clone(), self.server.url(asked.url))
    }

    /// Posts a document, and asserts the status. Returns the documents of the response: a single
    /// one, or those of a stream.
    pub(super) async fn ask(&self, path: &str, body: &Value, status: u16) -> Vec<Value> {
        let asked = Asked::post(path);
        let (actual, documents) = self.send(&asked, self.request(&asked).json(body)).await;
        assert_eq!(actual, status, "{path} {body}: {documents:?}");
        documents
    }

    /// Gets a document.
    pub(super) async fn get(&self, path: &str) -> Value {
        let asked = Asked::get(path);
        let (status, mut documents) = self.send(&asked, self.request(&asked)).await;
        assert_eq!(status, 200, "{path}: {documents:?}");
        documents.pop().unwrap_or_default()
    }

    /// Sends a request, and checks the response against the document.
    pub(super) async fn send(&self, asked: &Asked<'_>, request: RequestBuilder) -> (u16, Vec<Value>) {
        let response = request.send().await.expect("the daemon answers");
        let status = response.status().as_u16();
        let media = response.headers().get("content-type").map(|media| media.to_str().expect("text").to_owned());
        let media = media.unwrap_or_default().split(';').next().unwrap_or_default().to_owned();
        let bytes = response.bytes().await.expect("a whole answer");
        let text = String::from_utf8_lossy(&bytes);
        let documents: Vec<Value> = match media.as_str() {
            _ if asked.method == Method::HEAD => Vec::new(),
            "application/json" => vec![parsed(&text)],
            "application/x-ndjson" => text.lines().map(parsed).collect(),
            "text/event-stream" => {
                text.lines().filter_map(|l| l.strip_prefix("data: ")).filter(|l| *l != "[DONE]").map(parsed).collect()
            }
            _ => Vec::new(),
        };
        self.hold(asked, status, &media, &documents);
        let seen = (asked.method.to_string(), asked.path.to_owned(), status, media);
        self.seen.borrow_mut().insert(seen);
        (status, documents)
    }

    fn hold(&self, asked: &Asked<'_>, status: u16, media: &str, documents: &[Value]) {
        let Asked { method, path, .. } = asked;
        let operation = &self.document["paths"][*path][method.as_str().to_ascii_lowercase()];
        let mut response = &operation["responses"][status.to_string()];
        assert!(!response.is_null(), "{method} {path}: the status {status} is not in the document; {documents:?}");
        if let Some(reference) = response["$ref"].as_str() {
            response = self.document.pointer(reference.trim_start_matches('#')).expect("the reference leads somewhere");
        }
        if media.is_empty() || *method == Method::HEAD {
            return;
        }
        let content = &response["content"][media];
        assert!(
            !content.is_null(),
            "{method} {path}: the answer with {status} is `{media}`, the document does not say so"
        );
        if documents.is_empty() {
            assert!(content["schema"].is_null(), "{method} {path}: there is a schema and nothing to hold against it");
            return;
        }
        let mut schema = content["schema"].clone();
        close(&mut schema, false);
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "components": self.closed,
            "allOf": [schema],
        });
        let validator = jsonschema::validator_for(&schema).expect("a schema");
        for document in documents {
            let errors: Vec<String> =
                validator.iter_errors(document).map(|e| format!("{e} at {}", e.instance_path())).collect();
            assert!(errors.is_empty(), "{method} {path} {status}: {errors:#?} in {document}");
        }
    }

    /// Returns the successful responses with a schema that no request has caused yet.
    pub(super) fn unseen(&self) -> BTreeSet<String> {
        let seen = self.seen.borrow();
        let mut unseen = BTreeSet::new();
        for (method, path) in self.operations() {
            let operation = &self.document["paths"][&path][method.as_str().to_ascii_lowercase()];
            for (status, response) in object(&operation["responses"]) {
                let status: u16 = status.parse().expect("a status");
                let Some(content) = response["content"].as_object().filter(|_| status < 400) else { continue };
                for media in content.keys() {
                    if !seen.contains(&(method.to_string(), path.clone(), status, media.clone())) {
                        unseen.insert(format!("{method} {path} {status} {media}"));
                    }
                }
            }
        }
        unseen
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("not JSON, {e}: {text}"))
}

/// Makes object schemas refuse members that they do not describe, so that a response cannot have
/// undocumented members. `part` is true for a schema that describes only a part of an object.
fn close(value: &mut Value, part: bool) {
    match value {
        Value::Object(schema) => {
            let several = ["anyOf", "oneOf", "allOf"].into_iter().any(|key| schema.contains_key(key));
            let is_whole = schema.get("properties").is_some_and(Value::is_object);
            for (key, value) in schema.iter_mut() {
                let parts = is_whole && ["anyOf", "oneOf", "allOf"].contains(&key.as_str());
                // Defaults and constants are data, not schemas.
                if key != "default" && key != "const" && key != "enum" {
                    close(value, parts);
                }
            }
            if is_whole && !part && !schema.contains_key("additionalProperties") {
                let key = if several { "unevaluatedProperties" } else { "additionalProperties" };
                schema.insert(key.to_owned(), false.into());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| close(item, part)),
        _ => {}
    }
}

#[test]
fn closed_schemas_refuse_what_they_do_not_describe() {
    let open = json!({
        "type": "object",
        "properties": { "a": { "type": "object", "properties": { "b": {} } } },
        "anyOf": [{ "properties": { "c": {} }, "required": ["c"] }, { "properties": { "d": {} }, "required": ["d"] }],
    });
    let mut closed = open.clone();
    close(&mut closed, false);
    for (document, whether_open, whether_closed) in [
        (json!({ "a": { "b": 1 }, "c": 2 }), true, true),
        (json!({ "a": { "b": 1, "x": 1 }, "c": 2 }), true, false),
        (json!({ "d": 1, "x": 2 }), true, false),
        (json!({ "a": {} }), false, false),
    ] {
        assert_eq!(jsonschema::is_valid(&open, &document), whether_open, "{document}");
        assert_eq!(jsonschema::is_valid(&closed, &document), whether_closed, "{document} closed");
    }
}
