//! `GET /openapi.json`: a description of the daemon's API as an `OpenAPI` 3.1 document.
//!
//! ```text
//! table of routes ──▶ paths
//!      └── types that handlers read and write ──▶ components/schemas
//! ```
//!
//! `tests/it/openapi.rs` validates real responses against the document.

mod operation;
mod schemas;

use serde_json::{Map, Value, json};

pub(crate) use operation::{Api, Operation};
use schemas::Schemas;

/// The description in the document's `info`.
const ABOUT: &str = "A model registry and content-addressed tensor store that runs models. It speaks the APIs of Ollama, \
    OpenAI and Anthropic, and has some calls of its own.\n\n\
    Requests are read as JSON regardless of their content type; unknown fields are ignored. Every GET answers \
    HEAD too. With `application/x-ndjson` each line of an answer is a document of the schema given, with \
    `text/event-stream` the data of each event is one (the older endpoints of OpenAI end with the data `[DONE]`). A \
    failure after a stream has begun is its last document.\n\n\
    `x-lode-scope` is what an API key must allow, where the daemon asks for keys.\n\n\
    The registry at `/v2/` is not described here: it is the one of the OCI distribution specification.";

/// Builds the document of these operations.
pub(crate) fn document<'a>(operations: impl IntoIterator<Item = &'a Operation>) -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    for operation in operations {
        let described = operation.describe(&mut schemas);
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method.as_str().to_ascii_lowercase()] = described;
    }
    let responses: Map<String, Value> =
        Api::ALL.iter().map(|api| (api.failure().to_owned(), api.describe_failure(&mut schemas))).collect();
    schemas.complete(json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Lode",
            "version": env!("CARGO_PKG_VERSION"),
            "description": ABOUT,
            "license": { "name": "MIT OR Apache-2.0", "identifier": env!("CARGO_PKG_LICENSE") },
        },
        "servers": [{ "url": "/" }],
        "tags": Api::ALL.map(|api| json!({ "name": api.name(), "description": api.about() })),
        "paths": paths,
        "components": {
            "responses": responses,
            "headers": operation::headers(),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
            },
        },
    }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Calls `visit` with every object in a document.
    fn objects(value: &Value, visit: &mut dyn FnMut(&Map<String, Value>)) {
        match value {
            Value::Object(object) => {
                visit(object);
                object.values().for_each(|value| objects(value, visit));
            }
            Value::Array(items) => items.iter().for_each(|value| objects(value, visit)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_has_its_end_and_every_schema_a_use() {
        let document = crate::routes::document();
        let mut used = BTreeSet::new();
        objects(&document, &mut |object| {
            if let Some(reference) = object.get("$ref") {
                let reference = reference.as_str().expect("a reference is text");
                let pointer = reference.strip_prefix('#').expect("within the document");
                assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
                used.insert(pointer.to_owned());
            }
        });
        for kind in ["schemas", "responses", "headers"] {
            for name in document["components"][kind].as_object().expect("components").keys() {
                assert!(used.contains(&format!("/components/{kind}/{name}")), "nothing uses the {kind} `{name}`");
            }
        }
    }

    #[test]
    fn names_are_those_of_one_thing() {
        let document = crate::routes::document();
        for name in document["components"]["schemas"].as_object().expect("schemas").keys() {
            // The schema generator appends a number if two types have the same name.
            assert!(name.chars().all(|c| c.is_ascii_alphabetic()), "`{name}`");
        }
        let mut ids = BTreeSet::new();
        objects(&document["paths"], &mut |object| {
            if let Some(id) = object.get("operationId") {
                assert!(ids.insert(id.to_string()), "{id} twice");
            }
        });
        assert!(ids.len() > 40, "{ids:?}");
    }
}
