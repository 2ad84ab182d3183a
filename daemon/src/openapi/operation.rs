//! An operation: a method on a path, its request and its responses.

use axum::http::Method;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::schemas::{SchemaOf, Schemas};
use crate::guard::{Permission, Scope};

/// The API that an operation belongs to. It decides the format of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Ollama,
    OpenAi,
    Anthropic,
    Lode,
    Operation,
}

impl Api {
    pub(crate) const ALL: [Self; 5] = [Self::Ollama, Self::OpenAi, Self::Anthropic, Self::Lode, Self::Operation];

    /// Returns the name of the tag.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ollama => "Ollama",
            Self::OpenAi => "OpenAI",
            Self::Anthropic => "Anthropic",
            Self::Lode => "Lode",
            Self::Operation => "Operation",
        }
    }

    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Ollama => "Models by name: list, run, create, pull and push. `null` equals an absent field.",
            Self::OpenAi => "Chat, completions, embeddings, stateless responses.",
            Self::Anthropic => "Messages.",
            Self::Lode => "Maintenance of the store, and transfer of models as files.",
            Self::Operation => "Health and metrics of the daemon.",
        }
    }

    /// Returns the name of the component that describes a failure.
    pub(crate) fn failure(self) -> &'static str {
        match self {
            Self::OpenAi => "OpenAiFailure",
            Self::Anthropic => "AnthropicFailure",
            Self::Ollama | Self::Lode | Self::Operation => "Failure",
        }
    }

    pub(crate) fn describe_failure(self, schemas: &mut Schemas) -> Value {
        let schema = schemas.written(self.error());
        json!({ "description": "The request failed.", "content": { "application/json": { "schema": schema } } })
    }

    fn error(self) -> SchemaOf {
        match self {
            Self::OpenAi => SchemaGenerator::subschema_for::<api::openai::ErrorResponse>,
            Self::Anthropic => SchemaGenerator::subschema_for::<api::anthropic::ErrorResponse>,
            Self::Ollama | Self::Lode | Self::Operation => SchemaGenerator::subschema_for::<api::ollama::ErrorResponse>,
        }
    }
}

/// A response: its status, media type and schema.
struct DocumentedResponse {
    status: u16,
    media: &'static str,
    /// `None` means arbitrary bytes.
    schema: Option<SchemaOf>,
    /// Whether it is a stream, whose last document may be a failure.
    streams: bool,
}

/// A parameter outside of the body.
struct Parameter {
    name: &'static str,
    place: &'static str,
    about: &'static str,
}

/// A method on a path.
pub(crate) struct Operation {
    api: Api,
    pub(crate) method: Method,
    /// The path as the document writes it.
    pub(crate) path: &'static str,
    summary: &'static str,
    parameters: Vec<Parameter>,
    takes: Option<(&'static str, Option<SchemaOf>)>,
    /// Success statuses without a body.
    empty: Vec<u16>,
    gives: Vec<DocumentedResponse>,
    /// Statuses of failures in addition to the common ones.
    fails: Vec<u16>,
    /// Whether a response header names the model.
    attested: bool,
    pub(crate) permission: Permission,
}

impl Operation {
    /// Creates an operation that every client may call, until [`needs`](Self::needs) sets a scope.
    pub(crate) fn new(api: Api, method: Method, path: &'static str, summary: &'static str) -> Self {
        Self {
            api,
            method,
            path,
            summary,
            parameters: Vec::new(),
            takes: None,
            empty: Vec::new(),
            gives: Vec::new(),
            fails: Vec::new(),
            attested: false,
            permission: Permission::Everybody,
        }
    }

    /// Sets the type of the JSON request body.
    pub(crate) fn takes<T: JsonSchema>(mut self) -> Self {
        self.takes = Some(("application/json", Some(SchemaGenerator::subschema_for::<T>)));
        self
    }

    /// Sets a request body of bytes.
    pub(crate) fn takes_bytes(mut self, media: &'static str) -> Self {
        self.takes = Some((media, None));
        self
    }

    /// Adds a parameter in the `path`, the `query` or a `header`.
    pub(crate) fn parameter(mut self, place: &'static str, name: &'static str, about: &'static str) -> Self {
        self.parameters.push(Parameter { name, place, about });
        self
    }

    /// Adds a JSON response with status 200. If several are added, the response is one of them.
    pub(crate) fn gives<T: JsonSchema>(self) -> Self {
        self.content(200, "application/json", Some(SchemaGenerator::subschema_for::<T>), false)
    }

    /// Adds a JSON response with another status.
    pub(crate) fn gives_with<T: JsonSchema>(self, status: u16) -> Self {
        self.content(status, "application/json", Some(SchemaGenerator::subschema_for::<T>), false)
    }

    /// Adds a response of newline-delimited JSON documents.
    pub(crate) fn lines<T: JsonSchema>(self) -> Self {
        self.content(200, "application/x-ndjson", Some(SchemaGenerator::subschema_for::<T>), true)
    }

    /// Adds a response of server-sent events.
    pub(crate) fn events<T: JsonSchema>(self) -> Self {
        self.content(200, "text/event-stream", Some(SchemaGenerator::subschema_for::<T>), true)
    }

    /// Adds a response of bytes or text.
    pub(crate) fn gives_bytes(self, media: &'static str) -> Self {
        self.content(200, media, None, false)
    }

    /// Adds a response without a body.
    pub(crate) fn gives_nothing(mut self, status: u16) -> Self {
        self.empty.push(status);
        self
    }

    /// Adds statuses of failures that are specific to this operation.
    pub(crate) fn fails(mut self, statuses: &[u16]) -> Self {
        self.fails.extend(statuses);
        self
    }

    /// Declares that a response header names the model.
    pub(crate) fn attested(mut self) -> Self {
        self.attested = true;
        self
    }

    /// Sets the scope that an API key needs, if there are keys.
    pub(crate) fn needs(mut self, scope: Scope) -> Self {
        self.permission = Permission::Scope(scope);
        self
    }

    fn content(mut self, status: u16, media: &'static str, schema: Option<SchemaOf>, streams: bool) -> Self {
        self.gives.push(DocumentedResponse { status, media, schema, streams });
        self
    }

    /// Describes the operation in `OpenAPI` format.
    pub(crate) fn describe(&self, schemas: &mut Schemas) -> Value {
        let mut described = json!({ "tags": [self.api.name()], "summary": self.summary, "operationId": self.id() });
        if !self.parameters.is_empty() {
            described["parameters"] = self.parameters.iter().map(Parameter::describe).collect();
        }
        if let Some((media, schema)) = self.takes {
            let schema = schema.map(|schema| schemas.read(schema));
            described["requestBody"] = json!({ "required": true, "content": { media: media_type(schema) } });
        }
        described["responses"] = self.responses(schemas).into();
        match self.permission {
            Permission::Scope(scope) => {
                described["security"] = json!([{}, { "bearer": [] }, { "key": [] }]);
                described["x-lode-scope"] = scope.name().into();
            }
            Permission::Everybody => described["security"] = json!([]),
        }
        described
    }

    fn id(&self) -> String {
        let words = self.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let words: Vec<&str> = std::iter::once(self.method.as_str()).chain(words).collect();
        words.join("_").to_ascii_lowercase()
    }

    fn responses(&self, schemas: &mut Schemas) -> Map<String, Value> {
        let mut responses = Map::new();
        for status in &self.empty {
            responses.insert(status.to_string(), json!({ "description": "Done." }));
        }
        for content in &self.gives {
            let response =
                responses.entry(content.status.to_string()).or_insert_with(|| json!({ "description": "The answer." }));
            let slot = &mut response["content"][content.media];
            let before = Some(slot["schema"].take()).filter(|schema| !schema.is_null());
            let schema = content.schema.map(|schema| schemas.written(schema));
            let error = (content.streams && before.is_none()).then(|| schemas.written(self.api.error()));
            *slot = media_type(before.into_iter().chain(schema).chain(error).reduce(either));
            if self.attested && content.status == 200 {
                response["headers"] = headers_of_answers();
            }
        }
        for status in self.failures() {
            let failure = json!({ "$ref": format!("#/components/responses/{}", self.api.failure()) });
            responses.entry(status.to_string()).or_insert(failure);
        }
        responses
    }

    /// Lists the statuses of failures: from the checks of host and origin, of keys, and of the
    /// body's length and contents.
    fn failures(&self) -> Vec<u16> {
        let mut failures = vec![403, 500];
        if self.takes.is_some() {
            failures.extend([400, 413]);
        }
        if self.permission != Permission::Everybody {
            failures.push(401);
        }
        failures.extend(&self.fails);
        failures.sort_unstable();
        failures.dedup();
        failures
    }
}

impl Parameter {
    fn describe(&self) -> Value {
        json!({
            "name": self.name,
            "in": self.place,
            "description": self.about,
            "required": self.place == "path",
            "schema": { "type": "string" },
        })
    }
}

fn media_type(schema: Option<Value>) -> Value {
    schema.map_or_else(|| json!({}), |schema| json!({ "schema": schema }))
}

/// Returns a schema that accepts either one. The first one may already be such a union.
fn either(schema: Value, other: Value) -> Value {
    match schema {
        Value::Object(mut either) if either.len() == 1 && either.contains_key("anyOf") => {
            if let Some(Value::Array(options)) = either.get_mut("anyOf") {
                options.push(other);
            }
            either.into()
        }
        schema => json!({ "anyOf": [schema, other] }),
    }
}

/// Describes the headers of responses from models.
pub(crate) fn headers() -> Value {
    json!({
        "ModelDigest": {
            "description": "The digest of the manifest of the model that answered.",
            "schema": { "type": "string" },
        },
        "TruncatedTokens": {
            "description": "Tokens of the prompt that were dropped because they did not fit; absent where there are none.",
            "schema": { "type": "integer", "minimum": 1 },
        },
        "Ignored": {
            "description": "Features that the request asks for and that were ignored, separated by commas: `option NAME`, `thinking`, `tool TYPE`; absent \
                where there are none.",
            "schema": { "type": "string" },
        },
    })
}

fn headers_of_answers() -> Value {
    json!({
        "X-Lode-Model-Digest": { "$ref": "#/components/headers/ModelDigest" },
        "X-Lode-Truncated-Tokens": { "$ref": "#/components/headers/TruncatedTokens" },
        "X-Lode-Ignored": { "$ref": "#/components/headers/Ignored" },
    })
}
