//! Server-sent events, as the HTML specification defines them.

use serde::Serialize;

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Name of the event, in APIs that name their events.
    pub event: Option<&'static str>,
    /// A JSON document on one line.
    pub data: String,
}

impl Frame {
    /// The `[DONE]` marker, which ends a successful stream of `OpenAI`'s older endpoints.
    pub fn done() -> Self {
        Self { event: None, data: "[DONE]".to_owned() }
    }

    /// Creates an event without a name.
    pub fn data(document: &impl Serialize) -> Self {
        Self { event: None, data: line(document) }
    }

    /// Creates an event with a name.
    pub fn named(event: &'static str, document: &impl Serialize) -> Self {
        Self { event: Some(event), data: line(document) }
    }
}

/// Serializes a document on one line: compact JSON has no line breaks, and strings escape them.
fn line(document: &impl Serialize) -> String {
    // Serialization cannot fail: the documents have only string keys and finite numbers or null.
    serde_json::to_string(document).unwrap_or_else(|e| format!(r#"{{"error":{{"message":"{e}"}}}}"#))
}

impl std::fmt::Display for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(event) = self.event {
            writeln!(f, "event: {event}")?;
        }
        write!(f, "data: {}\n\n", self.data)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn frames_are_lines_and_an_empty_one() {
        assert_eq!(Frame::done().to_string(), "data: [DONE]\n\n");
        let document = json!({"text": "two\nlines"});
        assert_eq!(Frame::named("ping", &document).to_string(), "event: ping\ndata: {\"text\":\"two\\nlines\"}\n\n");
    }
}
