//! Server-sent events, as HTML's specification writes them.

use serde::Serialize;

/// One event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its name, where the API names its events.
    pub event: Option<&'static str>,
    /// A document in one line.
    pub data: String,
}

impl Frame {
    /// What clients of `OpenAI`'s older endpoints read as the end of a stream that went well.
    pub fn done() -> Self {
        Self { event: None, data: "[DONE]".to_owned() }
    }

    /// An event without a name.
    pub fn data(document: &impl Serialize) -> Self {
        Self { event: None, data: line(document) }
    }

    /// An event with a name.
    pub fn named(event: &'static str, document: &impl Serialize) -> Self {
        Self { event: Some(event), data: line(document) }
    }
}

/// JSON has no line breaks outside strings unless it is asked for, and none within.
fn line(document: &impl Serialize) -> String {
    // Documents of ours have only text keys and finite numbers or null.
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
