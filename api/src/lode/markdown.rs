//! Markdown, as a page may show it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /api/lode/markdown`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MarkdownRequest {
    /// A text as models write them: `CommonMark` with tables, and formulas of LaTeX between dollars, `\(` and `\)`, `\[` and `\]`. One of more than 1 MiB, or nested without end, is one
    /// block as it is.
    pub text: String,
}

/// Answer of `POST /api/lode/markdown`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MarkdownResponse {
    /// The blocks of the text in their order, each as HTML without scripts, styles and addresses that are fetched. Code has classes for
    /// its colours, formulas are `MathML`.
    pub blocks: Vec<String>,
}
