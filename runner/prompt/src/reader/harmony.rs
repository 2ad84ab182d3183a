//! Harmony: the messages with headers that gpt-oss writes.
//!
//! A message is `<|start|>ROLE to=RECIPIENT<|channel|>CHANNEL <|constrain|>TYPE<|message|>TEXT`,
//! followed by `<|end|>`, `<|call|>` or `<|return|>`. The channel `analysis` is thinking; a message
//! to `functions.NAME` is a call; everything else is the answer.

use super::MAX_CALL;
use super::dialect::{HARMONY_MESSAGE, HARMONY_START};
use super::marks::{first, settled};
use super::parts::{Call, Part, Parts};
use super::tools::object;

/// Marks that end a message's text.
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", HARMONY_START, "<|channel|>"];
/// Possible beginnings of a header.
const HEADERS: [&str; 6] = [HARMONY_START, "<|channel|>", "<|constrain|>", HARMONY_MESSAGE, "to=", "assistant"];
/// Maximum length of a header in bytes; a longer one is treated as text.
const MAX_HEADER: usize = 512;

/// Reader of messages with headers.
#[derive(Clone, Debug)]
pub(super) struct Harmony {
    parts: Parts,
    buffer: String,
    state: HarmonyState,
    /// Part of the header that the prompt contains.
    begun: String,
}

#[derive(Clone, Debug, PartialEq)]
enum HarmonyState {
    Header,
    Thinking,
    Answer,
    /// The original header, and the name of the function.
    Call(String, String),
}

impl Harmony {
    /// Creates a reader that continues a prompt, which may contain the beginning of the header.
    pub(super) fn new(prompt: &str) -> Self {
        let mut harmony =
            Self { parts: Parts::default(), buffer: String::new(), state: HarmonyState::Header, begun: String::new() };
        if let Some((_, last)) = prompt.rsplit_once(HARMONY_START) {
            match last.split_once(HARMONY_MESSAGE) {
                Some((_, text)) if ENDS.iter().any(|end| text.contains(end)) => {}
                Some((header, _)) => harmony.enter(header, header),
                None => last.clone_into(&mut harmony.begun),
            }
        }
        harmony
    }

    pub(super) fn is_thinking(&self) -> bool {
        self.state == HarmonyState::Thinking
    }

    pub(super) fn is_answering(&self) -> bool {
        self.state == HarmonyState::Answer
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Part> {
        self.buffer.push_str(text);
        while self.step() {}
        self.parts.take()
    }

    pub(super) fn finish(&mut self) -> Vec<Part> {
        while self.step() {}
        let rest = std::mem::take(&mut self.buffer);
        match std::mem::replace(&mut self.state, HarmonyState::Header) {
            HarmonyState::Call(header, name) => self.call(&header, name, &rest),
            _ => self.parts.text(&rest),
        }
        self.parts.finish();
        self.parts.take()
    }

    /// Advances by one message or header, if enough text is known; returns whether it did.
    fn step(&mut self) -> bool {
        match &self.state {
            HarmonyState::Header => self.header(),
            HarmonyState::Thinking | HarmonyState::Answer => self.text(),
            HarmonyState::Call(..) => self.arguments(),
        }
    }

    fn header(&mut self) -> bool {
        let found = self.buffer.find(HARMONY_MESSAGE).filter(|at| *at <= MAX_HEADER);
        // Leading blanks are not part of a header, whichever piece contains them.
        let head = self.buffer[..found.unwrap_or(self.buffer.len())].trim_start();
        let blank = head.is_empty();
        // A terminated header must match in full; a partial beginning does not count.
        let fits = |start: &str| head.starts_with(start) || (found.is_none() && start.starts_with(head));
        let is_header =
            blank || !self.begun.trim_start_matches("assistant").is_empty() || HEADERS.iter().any(|start| fits(start));
        match found {
            Some(at) if is_header => {
                let written = self.take(at + HARMONY_MESSAGE.len());
                let header = std::mem::take(&mut self.begun) + &written[..at];
                self.enter(&header, &written);
                true
            }
            None if is_header && self.buffer.len() < MAX_HEADER + HARMONY_MESSAGE.len() => false,
            // Not a header: the model deviates from the format, and its text is treated as the
            // answer.
            _ => {
                self.begun.clear();
                self.state = HarmonyState::Answer;
                true
            }
        }
    }

    /// Begins the message after a header.
    fn enter(&mut self, header: &str, written: &str) {
        let word = |after: &str| {
            let (_, rest) = header.split_once(after)?;
            Some(&rest[..rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len())])
        };
        let function = word("to=").filter(|name| !name.is_empty());
        self.state = match (function, word("<|channel|>")) {
            (Some(name), _) => {
                HarmonyState::Call(written.to_owned(), name.strip_prefix("functions.").unwrap_or(name).to_owned())
            }
            (None, Some("analysis")) => HarmonyState::Thinking,
            _ => HarmonyState::Answer,
        };
        if self.state == HarmonyState::Thinking {
            self.parts.begin_thinking();
        } else {
            self.parts.end_thinking();
        }
    }

    /// Handles the mark that ends a message: the next header begins.
    fn leave(&mut self, end: &str) {
        self.parts.end_thinking();
        self.state = HarmonyState::Header;
        self.begun.clear();
        if end != "<|channel|>" {
            self.take(end.len());
        }
    }

    fn text(&mut self) -> bool {
        let found = first(&self.buffer, ENDS.into_iter());
        let length = found.map_or_else(|| settled(&self.buffer, ENDS.into_iter()), |(at, _)| at);
        let text = self.take(length);
        self.parts.text(&text);
        if let Some((_, end)) = found {
            self.leave(end);
        }
        found.is_some()
    }

    fn arguments(&mut self) -> bool {
        let found = first(&self.buffer, ENDS.into_iter());
        let HarmonyState::Call(header, name) = &self.state else { return false };
        let (header, name) = (header.clone(), name.clone());
        match found {
            Some((at, end)) if at <= MAX_CALL => {
                let arguments = self.take(at);
                self.call(&header, name, &arguments);
                self.leave(end);
                true
            }
            None if self.buffer.len() < MAX_CALL + HARMONY_MESSAGE.len() => false,
            _ => {
                self.parts.text(&header);
                self.state = HarmonyState::Answer;
                true
            }
        }
    }

    /// Emits a call, or its text if it is malformed.
    fn call(&mut self, header: &str, name: String, arguments: &str) {
        let read = match arguments.trim() {
            "" => object(serde_json::Value::Null),
            json => serde_json::from_str(json).ok().and_then(object),
        };
        if let Some(arguments) = read {
            self.parts.call(Call { name, arguments });
        } else {
            self.parts.text(header);
            self.parts.text(arguments);
        }
    }

    fn take(&mut self, length: usize) -> String {
        let rest = self.buffer.split_off(length);
        std::mem::replace(&mut self.buffer, rest)
    }
}
