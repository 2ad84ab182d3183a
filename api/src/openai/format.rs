//! `response_format`, and `text.format` of the responses API: constraints on the generated text.

use protocol::Format;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Refusal, grammar};

/// The required format of the generated text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
pub struct TextFormat {
    /// `text`, `json_object`, `json_schema` or `grammar`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The schema, in requests of the chat API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub json_schema: Option<JsonSchema>,
    /// The schema, in requests of the responses API.
    #[serde(flatten)]
    pub here: JsonSchema,
    /// Syntax of a grammar: `regex` or `lark`. Not part of `OpenAI`'s API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syntax: Option<String>,
    /// Text of the grammar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
}

/// A JSON schema and its name. It is always enforced, whether `strict` is set or not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default)]
#[schemars(rename = "NamedSchema")]
pub struct JsonSchema {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

impl TextFormat {
    /// Returns the format for any text.
    pub(super) fn text() -> Self {
        Self { kind: "text".to_owned(), ..Self::default() }
    }

    /// Converts the format for the runner; `None` allows any text. `param` is the path of the
    /// field, for errors.
    pub(super) fn format(&self, param: &str) -> Result<Option<Format>, Refusal> {
        match self.kind.as_str() {
            "text" => Ok(None),
            "json_object" if self.json_schema.is_none() && self.here.schema.is_none() => Ok(Some(Format::Json)),
            // llama.cpp's server and other servers also accept a schema with `json_object`.
            "json_object" | "json_schema" => {
                let (schema, path) = match &self.json_schema {
                    Some(nested) => (&nested.schema, "json_schema.schema"),
                    None => (&self.here.schema, "schema"),
                };
                let param = format!("{param}.{path}");
                match schema {
                    Some(schema @ (Value::Object(_) | Value::Bool(_))) => {
                        Ok(Some(Format::Schema { schema: schema.clone() }))
                    }
                    Some(_) => Err(Refusal::new(param, "a JSON schema is an object")),
                    None => Err(Refusal::new(param, "the format json_schema needs a schema")),
                }
            }
            "grammar" => grammar::of(&json!(self.syntax), &json!(self.definition))
                .map(Some)
                .map_err(|error| Refusal::new(format!("{param}.definition"), error)),
            other => Err(Refusal::new(
                format!("{param}.type"),
                format!("`{other}` is no format; expected text, json_object, json_schema or grammar"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> Result<Option<Format>, Refusal> {
        serde_json::from_value::<TextFormat>(value).expect("a format").format("response_format")
    }

    #[test]
    fn both_places_of_a_schema_are_read() {
        let schema = json!({"type": "object"});
        let wanted = Ok(Some(Format::Schema { schema: schema.clone() }));
        assert_eq!(read(json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})), wanted);
        assert_eq!(read(json!({"type": "json_schema", "name": "a", "strict": true, "schema": schema})), wanted);
        assert_eq!(read(json!({"type": "json_object"})), Ok(Some(Format::Json)));
        assert_eq!(read(json!({"type": "text"})), Ok(None));
        let pattern = json!({"type": "grammar", "syntax": "regex", "definition": "a+"});
        assert_eq!(read(pattern), Ok(Some(Format::Regex { pattern: "a+".to_owned() })));
        for (bad, param) in [
            (json!({"type": "yaml"}), "response_format.type"),
            (json!({"type": "json_schema"}), "response_format.schema"),
            (json!({"type": "grammar", "syntax": "x"}), "response_format.definition"),
            (json!({"type": "json_schema", "json_schema": {"schema": 1}}), "response_format.json_schema.schema"),
        ] {
            assert_eq!(read(bad.clone()).expect_err("no format").param, param, "{bad}");
        }
    }
}
