//! The shapes of fields whose types say less than what is read from them: for the description of the APIs only.

use schemars::{Schema, SchemaGenerator, json_schema};

/// A text or several.
pub(crate) fn texts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }, { "type": "null" }],
    })
}

/// What a text must be, in Ollama's words.
pub(crate) fn format(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [{ "type": "string", "enum": ["json", ""] }, { "type": "object" }, { "type": "null" }] })
}

/// Messages as templates know them: what is not listed here is for the template to look at.
pub(crate) fn messages(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "role": { "type": "string", "description": "`system`, `user`, `assistant` or `tool`." },
                "content": { "type": ["string", "null"], "description": "What was said." },
                "thinking": { "type": "string", "description": "What the model thought before." },
                "images": { "type": "array", "items": { "type": "string" }, "description": "No model here sees." },
                "tool_calls": { "type": "array", "items": { "type": "object" }, "description": "By the assistant." },
                "tool_name": { "type": "string", "description": "Whose result it is, by the tool." },
            },
            "required": ["role"],
            "additionalProperties": true,
        },
    })
}
