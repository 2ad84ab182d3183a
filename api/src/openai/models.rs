//! `/v1/models`.

use schemars::JsonSchema;
use serde::Serialize;

/// A model in `OpenAI`'s format, with Anthropic's fields added for Anthropic's clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are OpenAI's")]
#[schemars(rename = "OpenAiModel")]
pub struct Model {
    pub id: String,
    pub object: &'static str,
    /// Time when the name was given to this model, in seconds since 1970.
    pub created: u64,
    /// Namespace of the model's name.
    pub owned_by: String,
    /// The fields of Anthropic's format.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub anthropic: Option<AnthropicModel>,
}

/// The fields that Anthropic's clients expect in a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct AnthropicModel {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub display_name: String,
    /// Creation time (RFC 3339).
    pub created_at: String,
}

impl Model {
    /// Creates a model in `OpenAI`'s format.
    pub fn new(id: String, created: u64, owned_by: String) -> Self {
        Self { id, object: "model", created, owned_by, anthropic: None }
    }

    /// Adds the fields of Anthropic's format. `created_at` is in RFC 3339 format.
    pub fn for_anthropic(mut self, created_at: String) -> Self {
        self.anthropic = Some(AnthropicModel { kind: "model", display_name: self.id.clone(), created_at });
        self
    }
}

/// Response of `GET /v1/models`. The list is a single page; the fields after `data` are for
/// Anthropic's clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are OpenAI's and Anthropic's")]
#[schemars(rename = "OpenAiModelList")]
pub struct ModelList {
    pub object: &'static str,
    pub data: Vec<Model>,
    pub has_more: bool,
    pub first_id: Option<String>,
    pub last_id: Option<String>,
}

impl ModelList {
    /// Creates the list of all models.
    pub fn new(data: Vec<Model>) -> Self {
        let id = |model: Option<&Model>| model.map(|model| model.id.clone());
        Self { object: "list", has_more: false, first_id: id(data.first()), last_id: id(data.last()), data }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_model_has_the_words_of_who_asks() {
        let model = Model::new("tiny:latest".to_owned(), 7, "library".to_owned());
        let mut document = json!({"id": "tiny:latest", "object": "model", "created": 7, "owned_by": "library"});
        assert_eq!(serde_json::to_value(&model).expect("JSON"), document);
        document["type"] = "model".into();
        document["display_name"] = "tiny:latest".into();
        document["created_at"] = "1970-01-01T00:00:07Z".into();
        let model = model.for_anthropic("1970-01-01T00:00:07Z".to_owned());
        assert_eq!(serde_json::to_value(&model).expect("JSON"), document);
        let list = ModelList::new(vec![model]);
        assert_eq!((list.first_id.as_deref(), list.last_id.as_deref()), (Some("tiny:latest"), Some("tiny:latest")));
    }
}
