//! The parts that a reader returns: text, thinking and calls, without the blanks between them.

use serde_json::{Map, Value};

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// More of the answer's text.
    Text(String),
    /// More of the model's thinking before the answer.
    Thinking(String),
    /// A complete tool call.
    ToolCall {
        /// Name of the function.
        name: String,
        /// Arguments by name.
        arguments: Map<String, Value>,
    },
}

/// A call as the model wrote it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: Map<String, Value>,
}

/// Collects parts. Blanks at the end of text or thinking are held back. Before a call or at the end
/// of thinking, they are dropped together with the blanks that follow.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    told: Vec<Part>,
    blank: String,
    thinking: bool,
    /// Whether leading blanks are dropped.
    fresh: bool,
}

impl Parts {
    pub(super) fn take(&mut self) -> Vec<Part> {
        std::mem::take(&mut self.told)
    }

    /// Adds text unchanged.
    pub(super) fn verbatim(&mut self, text: &str) {
        match self.told.last_mut() {
            _ if text.is_empty() => {}
            Some(Part::Text(last)) if !self.thinking => last.push_str(text),
            Some(Part::Thinking(last)) if self.thinking => last.push_str(text),
            _ if self.thinking => self.told.push(Part::Thinking(text.to_owned())),
            _ => self.told.push(Part::Text(text.to_owned())),
        }
    }

    /// Adds text, or thinking if it has begun.
    pub(super) fn text(&mut self, text: &str) {
        let text = if self.fresh { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        self.fresh = false;
        let solid = text.trim_end();
        if !solid.is_empty() {
            let blank = std::mem::take(&mut self.blank);
            self.verbatim(&blank);
            self.verbatim(solid);
        }
        self.blank.push_str(&text[solid.len()..]);
    }

    /// Begins thinking.
    pub(super) fn begin_thinking(&mut self) {
        self.blank.clear();
        (self.thinking, self.fresh) = (true, true);
    }

    /// Begins text; has no effect outside of thinking.
    pub(super) fn end_thinking(&mut self) {
        if self.thinking {
            self.blank.clear();
            (self.thinking, self.fresh) = (false, true);
        }
    }

    pub(super) fn is_thinking(&self) -> bool {
        self.thinking
    }

    pub(super) fn call(&mut self, call: Call) {
        self.blank.clear();
        (self.thinking, self.fresh) = (false, true);
        self.told.push(Part::ToolCall { name: call.name, arguments: call.arguments });
    }

    /// Ends the answer: emits the blanks that were held back.
    pub(super) fn finish(&mut self) {
        let blank = std::mem::take(&mut self.blank);
        self.verbatim(&blank);
    }
}
