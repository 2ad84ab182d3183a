//! Rendering of Markdown to safe HTML.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/markdown`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MarkdownRequest {
    /// Markdown text: `CommonMark` with tables and LaTeX formulas between dollars, `\(` and `\)`,
    /// or `\[` and `\]`. A text above 1 MiB, or nested too deeply, becomes one block of plain text.
    pub text: String,
}

/// Response of `POST /api/lode/markdown`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MarkdownResponse {
    /// The blocks of the text in order, each as HTML without scripts, styles and URLs that a
    /// browser fetches. Code has CSS classes for syntax highlighting, formulas are `MathML`.
    pub blocks: Vec<String>,
}
