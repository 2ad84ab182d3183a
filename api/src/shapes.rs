//! JSON schemas of fields whose Rust types are too general. They serve the API description only.

use schemars::{Schema, SchemaGenerator, json_schema};

/// A text or several.
pub(crate) fn texts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }, { "type": "null" }],
    })
}

/// Schema of Ollama's `format`.
pub(crate) fn format(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [{ "type": "string", "enum": ["json", ""] }, { "type": "object" }, { "type": "null" }] })
}

/// Schema of messages. Fields that are not listed go to the chat template unchanged.
pub(crate) fn messages(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "role": { "type": "string", "description": "`system`, `user`, `assistant` or `tool`." },
                "content": { "type": ["string", "null"], "description": "Text of the message." },
                "thinking": { "type": "string", "description": "Reasoning of the model." },
                "images": { "type": "array", "items": { "type": "string" }, "description": "Images of the message: PNG, JPEG, WebP or GIF files, as base64." },
                "tool_calls": { "type": "array", "items": { "type": "object" }, "description": "Tool calls of the assistant." },
                "tool_name": { "type": "string", "description": "Name of the tool, in its result." },
            },
            "required": ["role"],
            "additionalProperties": true,
        },
    })
}
