//! Modelfiles: `FROM`, `ADAPTER`, `PARAMETER`, `TEMPLATE`, `RENDERER`, `PARSER`, `SYSTEM`, `LICENSE`, `MESSAGE`.
//!
//! An instruction is a word and the rest of its line; `"""` quotes text over several lines, `"` within one; `#` begins a
//! comment. Grammar: Ollama's `parser/parser.go`.

use serde_json::{Map, Value};

use crate::ollama::Options;

/// A Modelfile that cannot be read: which line, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(String);

/// Fails with a reason, where something does not hold.
fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Result<(), Malformed> {
    if holds { Ok(()) } else { Err(Malformed(reason())) }
}

/// A Modelfile, read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Modelfile {
    /// A model, a file or a folder.
    pub from: String,
    /// What further FROM lines name: a projector of the model. Anything else is for the reader to refuse.
    pub more: Vec<String>,
    /// Files or folders of low-rank adapters.
    pub adapters: Vec<String>,
    /// With which it generates; lists are of parameters that are given several times.
    pub parameters: Map<String, Value>,
    /// How a conversation becomes a prompt.
    pub template: Option<String>,
    /// What makes prompts in the place of a template, by name.
    pub renderer: Option<String>,
    /// What reads answers, by name.
    pub parser: Option<String>,
    /// What precedes conversations.
    pub system: Option<String>,
    /// Texts of licences.
    pub licenses: Vec<String>,
    /// Role and content.
    pub messages: Vec<(String, String)>,
    /// The version of Ollama that the author asks for. Nothing depends on it here.
    pub requires: Option<String>,
}

const ROLES: [&str; 3] = ["system", "user", "assistant"];
const LATER: [&str; 1] = ["DRAFT"];

impl Modelfile {
    /// The text of a Modelfile: UTF-8, or UTF-16 with its byte order mark, as editors of Windows write it.
    ///
    /// # Errors
    /// It is neither.
    pub fn decode(bytes: &[u8]) -> Result<String, Malformed> {
        let wide = |unit: fn([u8; 2]) -> u16| {
            let units = bytes[2..].chunks(2).map(|pair| unit([pair[0], pair.get(1).copied().unwrap_or(0)]));
            char::decode_utf16(units).collect::<Result<String, _>>().ok()
        };
        let text = match bytes {
            [0xff, 0xfe, ..] => wide(u16::from_le_bytes),
            [0xfe, 0xff, ..] => wide(u16::from_be_bytes),
            _ => std::str::from_utf8(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)).ok().map(str::to_owned),
        };
        text.ok_or_else(|| Malformed("it is no text; expected a Modelfile in UTF-8".to_owned()))
    }

    /// Reads a Modelfile. Errors name the line.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut file = Self::default();
        let mut lines = text.lines().enumerate();
        while let Some((index, line)) = lines.next() {
            // Its end may belong to a text that goes on.
            let line = line.trim_start();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = index + 1;
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let (lead, rest) = lead(word, rest.trim_start());
            let value = value(rest, &mut lines.by_ref().map(|(_, line)| line), number)?;
            file.apply(word, lead, value, number)?;
        }
        ensure(!file.from.is_empty(), || {
            "the Modelfile has no FROM line; expected a model, a file or a folder".to_owned()
        })?;
        Ok(file)
    }

    fn apply(&mut self, word: &str, lead: Option<&str>, value: String, line: usize) -> Result<(), Malformed> {
        match (word.to_ascii_uppercase().as_str(), lead) {
            ("FROM", _) => {
                if self.from.is_empty() {
                    self.from = value;
                } else {
                    self.more.push(value);
                }
            }
            ("ADAPTER", _) => {
                ensure(!value.is_empty(), || {
                    format!("line {line}: ADAPTER has no value, expected a file or a folder")
                })?;
                self.adapters.push(value);
            }
            ("PARAMETER", Some(name)) => self.parameter(name, &value, line)?,
            ("TEMPLATE", _) => self.template = Some(value),
            ("RENDERER", _) => self.renderer = Some(value.trim().to_owned()),
            ("PARSER", _) => self.parser = Some(value.trim().to_owned()),
            ("SYSTEM", _) => self.system = Some(value),
            ("REQUIRES", _) => self.requires = Some(value.trim().to_owned()),
            ("LICENSE", _) => self.licenses.push(value),
            ("MESSAGE", Some(role)) => {
                ensure(ROLES.contains(&role), || {
                    format!("line {line}: role `{role}`, expected system, user or assistant")
                })?;
                self.messages.push((role.to_owned(), value));
            }
            ("PARAMETER" | "MESSAGE", None) => {
                return Err(Malformed(format!("line {line}: {word} has no name before its value")));
            }
            (later, _) if LATER.contains(&later) => {
                return Err(Malformed(format!("line {line}: {later} is not supported yet")));
            }
            _ => {
                return Err(Malformed(format!(
                    "line {line}: `{word}` is not an instruction; expected FROM, ADAPTER, PARAMETER, TEMPLATE, RENDERER, PARSER, SYSTEM, LICENSE or MESSAGE"
                )));
            }
        }
        Ok(())
    }

    /// A parameter that is given several times is a list; numbers and truth values are read as such.
    fn parameter(&mut self, name: &str, value: &str, line: usize) -> Result<(), Malformed> {
        ensure(!value.is_empty(), || format!("line {line}: PARAMETER {name} has no value"))?;
        if name == "stop" {
            let list = self.parameters.entry(name).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(list) = list {
                list.push(value.into());
            }
            return Ok(());
        }
        let parsed = match value.parse::<i64>() {
            Ok(number) => Value::from(number),
            Err(_) => match (value.parse::<f64>(), value.parse::<bool>()) {
                (Ok(number), _) => Value::from(number),
                (_, Ok(flag)) => Value::from(flag),
                _ => Value::from(value),
            },
        };
        self.parameters.insert(name.to_owned(), parsed);
        let (_, unknown) = Options::read(&self.parameters).map_err(|e| Malformed(format!("line {line}: {e}")))?;
        ensure(unknown.is_empty(), || {
            let meant = Options::nearest(name).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            format!("line {line}: there is no PARAMETER `{name}`{meant}")
        })
    }
}

/// An instruction with a text, as [`Modelfile::parse`] reads it: no line of the text becomes an instruction. A text that the
/// grammar cannot say is told in a comment.
pub fn instruction(word: &str, text: &str) -> String {
    said(word, text).unwrap_or_else(|| format!("# {word} cannot be written in a Modelfile; the model of FROM has it"))
}

/// The instruction, where the grammar can say it.
fn said(word: &str, text: &str) -> Option<String> {
    // Readers of lines take a carriage return before the end of a line for a part of the end.
    if text.contains("\r\n") {
        return None;
    }
    if !text.contains("\"\"\"") && !text.ends_with(['"', '\r']) {
        return Some(format!("{word} \"\"\"{text}\"\"\""));
    }
    let quoted = format!("\"{text}\"");
    (!text.contains(['\n', '\r']) && !quoted.starts_with("\"\"\"")).then(|| format!("{word} {quoted}"))
}

/// The same for a message; a role that is none is told in a comment.
pub fn message(role: &str, content: &str) -> String {
    if ROLES.contains(&role) {
        return instruction(&format!("MESSAGE {role}"), content);
    }
    format!("# MESSAGE of `{}`, which is no role; the model of FROM has it", role.escape_debug())
}

/// The lines of a parameter; a list has one for each item. A parameter that no Modelfile can have, or one item that cannot be
/// written, is told in a comment: the model of FROM has all of it.
pub fn parameter(name: &str, value: &Value) -> Vec<String> {
    let items = match value {
        Value::Array(items) => items.as_slice(),
        single => std::slice::from_ref(single),
    };
    let word = format!("PARAMETER {name}");
    let line = |item: &Value| match item {
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => said(&word, text),
        other => Some(format!("{word} {other}")),
    };
    let lines = Options::knows(name).then(|| items.iter().map(line).collect::<Option<Vec<_>>>()).flatten();
    lines.unwrap_or_else(|| {
        vec![format!(
            "# PARAMETER `{}` cannot be written in a Modelfile; the model of FROM has it",
            name.escape_debug()
        )]
    })
}

/// The word between the instruction and its value, for instructions that have one.
fn lead<'a>(word: &str, rest: &'a str) -> (Option<&'a str>, &'a str) {
    if !word.eq_ignore_ascii_case("PARAMETER") && !word.eq_ignore_ascii_case("MESSAGE") {
        return (None, rest);
    }
    match rest.split_once(char::is_whitespace) {
        Some((lead, rest)) => (Some(lead), rest.trim_start()),
        None if rest.is_empty() => (None, rest),
        None => (Some(rest), ""),
    }
}

/// A value: as it stands, or without its quotes; `"""` may go on over the following lines.
fn value<'a>(rest: &'a str, lines: &mut dyn Iterator<Item = &'a str>, number: usize) -> Result<String, Malformed> {
    if let Some(opened) = rest.strip_prefix("\"\"\"") {
        if let Some(end) = opened.find("\"\"\"") {
            return Ok(opened[..end].to_owned());
        }
        let mut text = vec![opened];
        for line in lines {
            if let Some(end) = line.find("\"\"\"") {
                text.push(&line[..end]);
                return Ok(text.join("\n"));
            }
            text.push(line);
        }
        return Err(Malformed(format!("line {number}: `\"\"\"` is never closed")));
    }
    let rest = rest.trim_end();
    let quoted = rest.strip_prefix('"').and_then(|inner| inner.strip_suffix('"'));
    Ok(quoted.unwrap_or(rest).to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        /// Whatever a text is, it becomes one instruction with that text, or none.
        #[test]
        fn texts_add_no_instructions(
            parts in prop::collection::vec(prop::sample::select(vec!["\"", "\"\"\"", "a", " ", "\n", "\r", "\nFROM evil\n", "#"]), 0..12),
        ) {
            let text = parts.concat();
            let lines = [
                "FROM a".to_owned(),
                instruction("SYSTEM", &text),
                instruction("TEMPLATE", "{{ messages }}"),
                message("user", &text),
                message(&text, "x"),
                parameter(&text, &json!(1)).join("\n"),
                parameter("temperature", &json!(0.5)).join("\n"),
                parameter("stop", &json!(["x", text])).join("\n"),
            ];
            let file = Modelfile::parse(&lines.join("\n")).expect("a Modelfile");
            prop_assert_eq!(&file.from, "a");
            prop_assert_eq!(file.template.as_deref(), Some("{{ messages }}"));
            prop_assert!(file.adapters.is_empty() && file.licenses.is_empty());
            if let Some(system) = &file.system {
                prop_assert_eq!(system, &text);
            }
            for (role, content) in &file.messages {
                prop_assert!(role == "user" && (*content == text || content == "x"), "{:?}", file.messages);
            }
            prop_assert_eq!(file.parameters.get("temperature"), Some(&json!(0.5)));
            // Stops are those that were written, or none where one of them cannot be.
            if let Some(stops) = file.parameters.get("stop") {
                prop_assert_eq!(stops, &json!(["x", text]));
            }
        }
    }

    #[test]
    fn texts_are_written_as_they_are_read() {
        for text in ["", "plain", "two\nlines", "say \"hi\"", "a \"\"\" b", "ends with a \"", " spaces "] {
            let file = Modelfile::parse(&format!("FROM a\n{}", instruction("SYSTEM", text))).expect("a Modelfile");
            assert_eq!(file.system.as_deref(), Some(text));
        }
    }

    #[test]
    fn stops_are_written_as_they_are_read() {
        let stops = json!(["\n\n", "say \"hi\"", "a\\n", "\t", "5", "true", " x ", "\u{1f600}"]);
        let file = Modelfile::parse(&format!("FROM a\n{}", parameter("stop", &stops).join("\n"))).expect("a Modelfile");
        assert_eq!(file.parameters["stop"], stops);
    }

    #[test]
    fn texts_of_windows_are_read() {
        let wide: Vec<u8> = "FROM ä\r\nSYSTEM x".encode_utf16().flat_map(u16::to_le_bytes).collect();
        for bytes in [[b"\xff\xfe", wide.as_slice()].concat(), b"\xef\xbb\xbfFROM \xc3\xa4\nSYSTEM x".to_vec()] {
            let file = Modelfile::parse(&Modelfile::decode(&bytes).expect("text")).expect("a Modelfile");
            assert_eq!((file.from.as_str(), file.system.as_deref()), ("ä", Some("x")));
        }
        assert!(Modelfile::decode(b"\x7fELF\xff").is_err());
    }

    #[test]
    fn reads_instructions() {
        let file = Modelfile::parse(
            "# comment\nFROM ./m.gguf\nparameter temperature 0.5\nPARAMETER num_ctx 64\nPARAMETER stop \"<end>\"\n\
             PARAMETER stop b c\nSYSTEM \"\"\"You are\nterse.\"\"\"\nMESSAGE user Hi there\nMESSAGE assistant \"Yes?\"\n\
             LICENSE \"\"\"MIT\"\"\"\nADAPTER ./one\nADAPTER two.gguf\nTEMPLATE {{ messages }}\n",
        )
        .expect("a Modelfile");
        assert_eq!(file.from, "./m.gguf");
        assert_eq!(Value::from(file.parameters), json!({"temperature": 0.5, "num_ctx": 64, "stop": ["<end>", "b c"]}));
        assert_eq!(file.adapters, ["./one", "two.gguf"]);
        assert_eq!(file.system.as_deref(), Some("You are\nterse."));
        assert_eq!(file.messages, [("user".into(), "Hi there".into()), ("assistant".into(), "Yes?".into())]);
        assert_eq!((file.licenses, file.template.as_deref()), (vec!["MIT".to_owned()], Some("{{ messages }}")));
    }

    #[test]
    fn says_which_line_is_wrong() {
        for (text, expect) in [
            ("", "no FROM"),
            ("FROM a\nFRUM b", "line 2: `FRUM`"),
            ("FROM a\nPARAMETER", "line 2"),
            ("FROM a\nPARAMETER temperature", "no value"),
            ("FROM a\nPARAMETER temperature hot", "line 2: option"),
            (
                "FROM a\nPARAMETER temprature 0",
                "line 2: there is no PARAMETER `temprature`; did you mean `temperature`?",
            ),
            ("FROM a\nMESSAGE robot x", "role `robot`"),
            ("FROM a\nSYSTEM \"\"\"open", "never closed"),
            ("FROM a\nADAPTER", "line 2: ADAPTER has no value"),
            ("FROM a\nDRAFT x", "not supported yet"),
        ] {
            let error = Modelfile::parse(text).expect_err(text).to_string();
            assert!(error.contains(expect), "{error} should say {expect}");
        }
    }
}
