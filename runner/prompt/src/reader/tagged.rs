//! Reader of text with thinking and calls between marks.

use super::MAX_CALL;
use super::calls::Body;
use super::dialect::{CallSyntax, Ends, Mark, Tags};
use super::marks::{JsonScan, cut, first, settled};
use super::parts::{Part, Parts};
use super::tools::Tools;

/// A call without marks: the JSON value at the beginning of the text.
const UNMARKED: Mark = Mark { open: "", ends: Ends::Balanced, body: Body::Unmarked, whole: false };
/// Possible first keys of an object that is a call.
const FIRST_KEYS: [&str; 7] = ["name", "function", "tool_name", "type", "arguments", "parameters", "id"];

/// Reader of text with marks.
#[derive(Clone, Debug)]
pub(super) struct Tagged {
    tags: Option<Tags>,
    calls: Option<&'static CallSyntax>,
    tools: Tools,
    parts: Parts,
    /// Text that has not been emitted; within a call, the text after its opening mark.
    buffer: String,
    state: TaggedState,
    /// Whether the answer has text already. Then no thinking and no unmarked call can follow.
    spoken: bool,
    /// Whether the last part was a call. Then separators can precede another one.
    called: bool,
}

#[derive(Clone, Debug)]
enum TaggedState {
    Text,
    Thinking(&'static str),
    Call(Open),
}

/// A call that has begun.
#[derive(Clone, Copy, Debug)]
struct Open {
    mark: &'static Mark,
    scan: JsonScan,
    /// Number of bytes that contain no end.
    searched: usize,
}

/// Result of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    On,
    Wait,
}

impl Tagged {
    pub(super) fn new(tags: Option<Tags>, calls: Option<&'static CallSyntax>, prompt: &str, tools: Tools) -> Self {
        let mut parts = Parts::default();
        let begun = tags.filter(|tags| prompt.trim_end().ends_with(tags.open));
        let state = match begun {
            Some(tags) => {
                parts.begin_thinking();
                TaggedState::Thinking(tags.close)
            }
            None => TaggedState::Text,
        };
        Self { tags, calls, tools, parts, buffer: String::new(), state, spoken: false, called: false }
    }

    pub(super) fn is_thinking(&self) -> bool {
        self.parts.is_thinking()
    }

    pub(super) fn push(&mut self, text: &str) -> Vec<Part> {
        self.buffer.push_str(text);
        while self.step(false) == Step::On {}
        self.parts.take()
    }

    pub(super) fn finish(&mut self) -> Vec<Part> {
        while self.step(true) == Step::On {}
        self.parts.finish();
        self.parts.take()
    }

    fn step(&mut self, end: bool) -> Step {
        match self.state {
            TaggedState::Text => self.text(end),
            TaggedState::Thinking(close) => self.thinking(close, end),
            TaggedState::Call(open) => self.call(open, end),
        }
    }

    /// Returns the marks that can occur next.
    fn marks(&self) -> impl Iterator<Item = &'static str> + use<> {
        let thinking = self.tags.filter(|_| !self.spoken).map(|tags| tags.open);
        let spoken = self.spoken;
        let calls = self.calls.map_or(&[][..], |calls| calls.marks);
        let calls = calls.iter().filter(move |mark| !(spoken && mark.body == Body::Unmarked)).map(|mark| mark.open);
        thinking.into_iter().chain(calls)
    }

    fn text(&mut self, end: bool) -> Step {
        if !self.spoken && self.calls.is_some_and(|calls| calls.unmarked) {
            match self.unmarked(end) {
                Some(true) => return Step::On,
                Some(false) => {}
                None => return Step::Wait,
            }
        }
        let found = first(&self.buffer, self.marks());
        let length = match found {
            Some((at, _)) => at,
            None if end => self.buffer.len(),
            None => settled(&self.buffer, self.marks()),
        };
        let before = self.take(length);
        let speaks = !before.trim().is_empty();
        self.parts.text(&before);
        if speaks {
            (self.spoken, self.called) = (true, false);
        }
        let Some((_, mark)) = found else { return Step::Wait };
        if speaks && !self.marks().any(|other| other == mark) {
            // After text, this is no longer a mark.
            return Step::On;
        }
        self.take(mark.len());
        match self.tags.filter(|tags| tags.open == mark) {
            Some(tags) => {
                self.parts.begin_thinking();
                self.state = TaggedState::Thinking(tags.close);
            }
            None => self.open(mark),
        }
        Step::On
    }

    fn open(&mut self, mark: &str) {
        let known = self.calls.and_then(|calls| calls.marks.iter().find(|known| known.open == mark));
        if let Some(mark) = known {
            self.state = TaggedState::Call(Open { mark, scan: JsonScan::default(), searched: 0 });
        }
    }

    /// Whether the text begins with a possible call; `None` until this is decided.
    fn unmarked(&mut self, end: bool) -> Option<bool> {
        let separates = |c: char| c.is_whitespace() || (self.called && matches!(c, ';' | ','));
        let begin = self.buffer.len() - self.buffer.trim_start_matches(separates).len();
        let may_be = match may_be_call(&self.buffer[begin..]) {
            None if end => false,
            known => known?,
        };
        if may_be {
            let before = self.take(begin);
            if !self.called {
                self.parts.text(&before);
            }
            self.state = TaggedState::Call(Open { mark: &UNMARKED, scan: JsonScan::default(), searched: 0 });
        }
        Some(may_be)
    }

    fn thinking(&mut self, close: &'static str, end: bool) -> Step {
        let found = self.buffer.find(close);
        let length = match found {
            Some(at) => at,
            None if end => self.buffer.len(),
            None => settled(&self.buffer, [close].into_iter()),
        };
        let thought = self.take(length);
        self.parts.text(&thought);
        if found.is_none() {
            return Step::Wait;
        }
        self.take(close.len());
        self.parts.end_thinking();
        self.state = TaggedState::Text;
        Step::On
    }

    fn call(&mut self, mut open: Open, end: bool) -> Step {
        let (found, close) = open.end(&self.buffer);
        self.state = TaggedState::Call(open);
        match found {
            Some(at) if at <= MAX_CALL => {
                let body = self.take(at);
                self.take(close.len());
                self.read(open.mark, &body, close);
                Step::On
            }
            None if self.buffer.len() <= MAX_CALL && end => {
                let body = self.take(self.buffer.len());
                self.read(open.mark, &body, "");
                Step::On
            }
            None if self.buffer.len() < MAX_CALL + close.len().max(1) && !end => Step::Wait,
            _ => {
                let begin = self.take(cut(&self.buffer, MAX_CALL));
                self.refuse(&[open.mark.open, &begin]);
                Step::On
            }
        }
    }

    /// Emits a complete call, or its text if it is malformed.
    fn read(&mut self, mark: &Mark, body: &str, close: &str) {
        let whole = if mark.whole { [mark.open, body, close].concat() } else { String::new() };
        match mark.body.read(if mark.whole { &whole } else { body }, &self.tools) {
            Some((calls, rest)) => {
                for call in calls {
                    self.parts.call(call);
                }
                (self.spoken, self.called) = (!rest.trim().is_empty(), true);
                self.parts.text(rest);
                self.state = TaggedState::Text;
            }
            None => self.refuse(&[mark.open, body, close]),
        }
    }

    /// Emits a malformed call as text.
    fn refuse(&mut self, texts: &[&str]) {
        for text in texts {
            self.parts.text(text);
        }
        (self.spoken, self.called) = (true, false);
        self.state = TaggedState::Text;
    }

    fn take(&mut self, length: usize) -> String {
        let rest = self.buffer.split_off(length);
        std::mem::replace(&mut self.buffer, rest)
    }
}

impl Open {
    /// Returns where the call ends in the text after its mark, if it does, and the closing mark.
    fn end(&mut self, text: &str) -> (Option<usize>, &'static str) {
        let close = match self.mark.ends {
            Ends::At(close) => close,
            Ends::Balanced => return (self.scan.advance(text, text.len()), ""),
            Ends::Last => return (None, ""),
        };
        while let Some(at) = text[self.searched..].find(close).map(|at| self.searched + at) {
            if self.mark.body.is_json() {
                while self.scan.advance(text, at).is_some() {}
            }
            if !self.scan.in_string() {
                return (Some(at), close);
            }
            self.searched = at + close.len();
        }
        self.searched = self.searched.max(cut(text, text.len().saturating_sub(close.len() - 1)));
        (None, close)
    }
}

/// Whether a text begins like an unmarked call: an object, or a list of objects, whose first key is
/// typical of calls. `None` until this is decided.
fn may_be_call(text: &str) -> Option<bool> {
    let text = text.trim_start();
    if let Some(items) = text.strip_prefix('[') {
        let items = items.trim_start();
        return if items.is_empty() || items.starts_with('{') { may_be_call(items) } else { Some(false) };
    }
    let Some(object) = text.strip_prefix('{') else {
        return if text.is_empty() { None } else { Some(false) };
    };
    let object = object.trim_start();
    let Some(key) = object.strip_prefix('"') else {
        return if object.is_empty() { None } else { Some(false) };
    };
    match key.split_once('"') {
        Some((key, _)) => Some(FIRST_KEYS.contains(&key)),
        None if FIRST_KEYS.iter().any(|known| known.starts_with(key)) => None,
        None => Some(false),
    }
}
