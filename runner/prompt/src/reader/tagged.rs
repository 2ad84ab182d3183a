//! Text with thinking and calls between marks.

use super::MAX_CALL;
use super::calls::Body;
use super::dialect::{CallSyntax, Ends, Mark, Tags};
use super::marks::{JsonScan, cut, first, settled};
use super::parts::{Part, Parts};
use super::tools::Tools;

/// A call without marks: the JSON value at the beginning of the text.
const UNMARKED: Mark = Mark { open: "", ends: Ends::Balanced, body: Body::Unmarked, whole: false };
/// The first key of an object that may be a call.
const FIRST_KEYS: [&str; 7] = ["name", "function", "tool_name", "type", "arguments", "parameters", "id"];

/// Reads text with marks.
#[derive(Clone, Debug)]
pub(super) struct Tagged {
    tags: Option<Tags>,
    calls: Option<&'static CallSyntax>,
    tools: Tools,
    parts: Parts,
    /// What is not told yet; within a call, what follows its opening mark.
    buffer: String,
    state: State,
    /// Whether the answer has text already: then thinking is over, and no unmarked call follows.
    spoken: bool,
    /// Whether a call was read last: then separators may come before another.
    called: bool,
}

#[derive(Clone, Debug)]
enum State {
    Text,
    Thinking(&'static str),
    Call(Open),
}

/// A call that has begun.
#[derive(Clone, Copy, Debug)]
struct Open {
    mark: &'static Mark,
    scan: JsonScan,
    /// So many bytes hold no end.
    searched: usize,
}

/// What a step found.
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
                State::Thinking(tags.close)
            }
            None => State::Text,
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
            State::Text => self.text(end),
            State::Thinking(close) => self.thinking(close, end),
            State::Call(open) => self.call(open, end),
        }
    }

    /// The marks that may come now.
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
            // Behind text it is no mark any more.
            return Step::On;
        }
        self.take(mark.len());
        match self.tags.filter(|tags| tags.open == mark) {
            Some(tags) => {
                self.parts.begin_thinking();
                self.state = State::Thinking(tags.close);
            }
            None => self.open(mark),
        }
        Step::On
    }

    fn open(&mut self, mark: &str) {
        let known = self.calls.and_then(|calls| calls.marks.iter().find(|known| known.open == mark));
        if let Some(mark) = known {
            self.state = State::Call(Open { mark, scan: JsonScan::default(), searched: 0 });
        }
    }

    /// Whether the text begins with what may be a call; nothing as long as that is not known.
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
            self.state = State::Call(Open { mark: &UNMARKED, scan: JsonScan::default(), searched: 0 });
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
        self.state = State::Text;
        Step::On
    }

    fn call(&mut self, mut open: Open, end: bool) -> Step {
        let (found, close) = open.end(&self.buffer);
        self.state = State::Call(open);
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

    /// Tells a call that is complete, or its text where it cannot be read.
    fn read(&mut self, mark: &Mark, body: &str, close: &str) {
        let whole = if mark.whole { [mark.open, body, close].concat() } else { String::new() };
        match mark.body.read(if mark.whole { &whole } else { body }, &self.tools) {
            Some((calls, rest)) => {
                for call in calls {
                    self.parts.call(call);
                }
                (self.spoken, self.called) = (!rest.trim().is_empty(), true);
                self.parts.text(rest);
                self.state = State::Text;
            }
            None => self.refuse(&[mark.open, body, close]),
        }
    }

    /// What looked like a call is text.
    fn refuse(&mut self, texts: &[&str]) {
        for text in texts {
            self.parts.text(text);
        }
        (self.spoken, self.called) = (true, false);
        self.state = State::Text;
    }

    fn take(&mut self, length: usize) -> String {
        let rest = self.buffer.split_off(length);
        std::mem::replace(&mut self.buffer, rest)
    }
}

impl Open {
    /// Where the call ends in what follows its mark, if it does, and the mark there.
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

/// Whether a text begins as a call does that nothing marks: an object, or a list of them, whose first key is one of those
/// that calls have. Nothing as long as that is not known.
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
