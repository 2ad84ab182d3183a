//! `/v1/rerank`.

use schemars::JsonSchema;
use serde::Deserialize;

/// What the endpoint answers: there is no architecture here with a head that gives scores.
pub const NO_RERANKING: &str = "this model cannot rerank: it generates text and has no head that scores documents; \
     use /v1/embeddings and compare the vectors";

/// Body of `POST /v1/rerank`. Only the model is looked at, because an unknown one is a different error.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields are those of other servers")]
pub struct RerankRequest {
    pub model: String,
}
