//! Dialects: how a model marks thinking and tool calls. They are data; a model's dialect is
//! detected from its chat template.
//!
//! Sources: the chat templates that the models are published with.

mod syntaxes;

use super::calls::Body;

/// The marks of thinking, in the order of detection.
const THINKING: &[Tags] = &[
    Tags { open: "<think>", close: "</think>" },
    Tags { open: "[THINK]", close: "[/THINK]" },
    Tags { open: "<|channel>thought", close: "<channel|>" },
    Tags { open: "<|START_THINKING|>", close: "<|END_THINKING|>" },
    Tags { open: "<seed:think>", close: "</seed:think>" },
    Tags { open: "<thinking>", close: "</thinking>" },
];

/// The marks of a model for thinking and tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    pub(super) form: Form,
    pub(super) calls: Option<&'static CallSyntax>,
}

/// Overall form of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    /// Text without marks for thinking.
    #[default]
    Text,
    Tagged(Tags),
    /// Messages with headers, as gpt-oss writes them.
    Harmony,
}

/// The tags around thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tags {
    /// Opening tag.
    pub open: &'static str,
    /// Closing tag.
    pub close: &'static str,
}

/// A syntax of calls.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CallSyntax {
    /// Name for display.
    pub(super) name: &'static str,
    /// A template that contains any of these texts uses this syntax.
    evidence: &'static [&'static str],
    /// Marks that begin a call. None is the beginning of another.
    pub(super) marks: &'static [Mark],
    /// Whether a call can also be at the beginning of the text, unmarked.
    pub(super) unmarked: bool,
    /// Spelling of a forced call.
    pub(super) spelling: Spelling,
    /// Marks within a call that can be special tokens.
    within: &'static [&'static str],
}

/// A mark that begins a call, and where the call ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) open: &'static str,
    pub(super) ends: Ends,
    pub(super) body: Body,
    /// Whether `open` is part of the body.
    pub(super) whole: bool,
}

/// End of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// At a closing mark.
    At(&'static str),
    /// At the end of the JSON value that forms the call.
    Balanced,
    /// At the end of the answer.
    Last,
}

/// Spelling of a call: `before`, the name, `between`, the arguments as JSON, `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spelling {
    pub(crate) before: &'static str,
    pub(crate) between: &'static str,
    pub(crate) after: &'static str,
}

impl Dialect {
    /// Detects the dialect of a model from the text of its chat templates (all of them,
    /// concatenated) and its vocabulary; `has_token` returns whether a token is in it.
    pub fn detect(template: &str, has_token: &dyn Fn(&str) -> bool) -> Self {
        let has = |mark: &str| template.contains(mark);
        if has("<|channel|>") && has("<|message|>") {
            return Self { form: Form::Harmony, calls: None };
        }
        let thinks = |tags: &&Tags| {
            let named = has(tags.open) || has(tags.close);
            named || (!template.is_empty() && has_token(tags.open.trim_end()) && has_token(tags.close))
        };
        let form = THINKING.iter().find(thinks).map_or(Form::Text, |tags| Form::Tagged(*tags));
        let speaks = |syntax: &&CallSyntax| syntax.evidence.iter().any(|mark| has(mark));
        let by_template = syntaxes::ALL.iter().find(speaks);
        let by_token = || {
            let known = |syntax: &&CallSyntax| syntax.evidence.iter().any(|mark| has_token(mark));
            syntaxes::ALL.iter().find(known).unwrap_or(&syntaxes::GENERIC)
        };
        let calls = by_template.or_else(|| has("tools").then(by_token));
        Self { form, calls }
    }

    /// Returns the tags around thinking, if there are any. Harmony has channels instead.
    pub fn thinking(&self) -> Option<Tags> {
        match self.form {
            Form::Tagged(tags) => Some(tags),
            Form::Text | Form::Harmony => None,
        }
    }

    /// Whether thinking can be separated.
    pub fn thinks(&self) -> bool {
        self.form != Form::Text
    }

    /// Whether the model's templates offer tools.
    pub fn calls_tools(&self) -> bool {
        self.calls.is_some() || self.form == Form::Harmony
    }

    /// Returns every mark that can be a special token. The text of these tokens must reach the
    /// reader.
    pub fn markers(&self) -> Vec<&'static str> {
        let mut markers = match self.form {
            Form::Text => Vec::new(),
            Form::Tagged(tags) => vec![tags.open, tags.close],
            Form::Harmony => HARMONY_MARKERS.to_vec(),
        };
        if self.form == (Form::Tagged(THINKING[2])) {
            // The word after the token is normal text.
            markers.push("<|channel>");
        }
        if let Some(calls) = self.calls {
            for mark in calls.marks {
                markers.push(mark.open);
                if let Ends::At(close) = mark.ends {
                    markers.push(close);
                }
            }
            markers.extend_from_slice(calls.within);
        }
        markers
    }

    /// Returns the spelling of a forced call.
    pub(crate) fn spelling(&self) -> Spelling {
        match (self.form, self.calls) {
            (Form::Harmony, _) => HARMONY_SPELLING,
            (_, Some(calls)) => calls.spelling,
            (_, None) => syntaxes::GENERIC.spelling,
        }
    }

    /// Returns the name of the call syntax, for display.
    pub fn call_syntax(&self) -> &'static str {
        match (self.form, self.calls) {
            (Form::Harmony, _) => "harmony",
            (_, Some(calls)) => calls.name,
            (_, None) => "none",
        }
    }
}

pub(super) const HARMONY_MARKERS: [&str; 7] =
    [HARMONY_START, "<|channel|>", "<|constrain|>", HARMONY_MESSAGE, "<|end|>", "<|call|>", "<|return|>"];

pub(super) const HARMONY_SPELLING: Spelling = Spelling {
    before: "<|channel|>commentary to=functions.",
    between: " <|constrain|>json<|message|>",
    after: "<|call|>",
};

pub(super) const HARMONY_START: &str = "<|start|>";

pub(super) const HARMONY_MESSAGE: &str = "<|message|>";

#[cfg(test)]
mod tests {
    use super::*;

    fn check(template: &str, tokens: &[&str], syntax: &str, open: Option<&str>) {
        let dialect = Dialect::detect(template, &|token| tokens.contains(&token));
        assert_eq!(dialect.call_syntax(), syntax, "{template}");
        assert_eq!(dialect.thinking().map(|tags| tags.open), open, "{template}");
    }

    #[test]
    fn templates_tell_the_dialect() {
        let think = Some("<think>");
        check("", &["<think>", "</think>", "<tool_call>"], "none", None);
        check("{{ messages }}", &[], "none", None);
        check("{% if tools %}…", &[], "generic", None);
        check("{% if tools %}…", &["[TOOL_CALLS]"], "mistral", None);
        check("{% if tools %}<tools></tools> within <tool_call></tool_call>", &[], "hermes", None);
        check("{{- '<think>\\n\\n</think>\\n\\n' }} <tool_call>", &[], "hermes", think);
        check("<tool_call>\n<function=example>\n<parameter=a>", &[], "functions", None);
        check("<tool_call>{function-name}\n<arg_key>{k}</arg_key>", &["<think>", "</think>"], "keys", think);
        check("{{ '<｜tool▁calls▁begin｜>' }} content.split('</think>')", &[], "deepseek", think);
        check("'<|start|>assistant<|channel|>final<|message|>'", &[], "harmony", None);
        check("{{- \"Environment: ipython\\n\" if tools }}", &[], "llama", None);
        check("[TOOL_CALLS][ARGS] [THINK]", &[], "mistral", Some("[THINK]"));
        check("{{ '<|tool_call|>' + x }}", &[], "granite", None);
    }

    #[test]
    fn no_mark_begins_another() {
        for syntax in syntaxes::ALL.iter().chain([&syntaxes::GENERIC]) {
            let opens: Vec<&str> = syntax.marks.iter().map(|mark| mark.open).collect();
            let all = || opens.iter().copied().chain(THINKING.iter().map(|tags| tags.open));
            for open in &opens {
                assert_eq!(all().filter(|other| other.starts_with(open)).count(), 1, "{}: {open}", syntax.name);
            }
        }
    }
}
