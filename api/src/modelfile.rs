//! Modelfiles: `FROM`, `ADAPTER`, `PARAMETER`, `TEMPLATE`, `RENDERER`, `PARSER`, `SYSTEM`,
//! `LICENSE`, `MESSAGE`.
//!
//! An instruction is a word and the rest of its line; `"""` quotes text over several lines, `"`
//! within one; `#` begins a comment. Grammar: Ollama's `parser/parser.go`.

use serde_json::{Map, Value};

use crate::ollama::Options;

/// The error for a Modelfile that cannot be parsed: the line and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(String);

/// Returns an error with `reason` unless `holds` is true.
fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Result<(), Malformed> {
    if holds { Ok(()) } else { Err(Malformed(reason())) }
}

/// A parsed Modelfile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Modelfile {
    /// The base: a model, a file or a folder.
    pub from: String,
    /// Values of further FROM lines: a projector of the model. The reader of this field refuses
    /// anything else.
    pub more: Vec<String>,
    /// Files or folders of low-rank adapters.
    pub adapters: Vec<String>,
    /// Default generation parameters. A parameter that is given several times is a list.
    pub parameters: Map<String, Value>,
    /// Chat template that converts a conversation to a prompt.
    pub template: Option<String>,
    /// Name of a built-in renderer that replaces the template.
    pub renderer: Option<String>,
    /// Name of a built-in parser for the model's output.
    pub parser: Option<String>,
    /// System prompt.
    pub system: Option<String>,
    /// License texts.
    pub licenses: Vec<String>,
    /// Example messages: role and content.
    pub messages: Vec<(String, String)>,
    /// Minimum version of Ollama that the author requires. Lode ignores it.
    pub requires: Option<String>,
}

const ROLES: [&str; 3] = ["system", "user", "assistant"];
const LATER: [&str; 1] = ["DRAFT"];

impl Modelfile {
    /// Decodes a Modelfile from UTF-8, or from UTF-16 with a byte order mark, as Windows editors
    /// write it.
    ///
    /// # Errors
    /// Fails if the bytes are neither.
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

    /// Parses a Modelfile. Errors name the line.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let mut file = Self::default();
        let mut lines = text.lines().enumerate();
        while let Some((index, line)) = lines.next() {
            // Only the start is trimmed: trailing space may belong to a quoted text that continues
            // on the next line.
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

    /// Adds a parameter. `stop` is collected in a list; numbers and booleans are parsed as such.
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

/// Formats an instruction with a text so that [`Modelfile::parse`] reads it back: no line of the
/// text becomes another instruction. A text that the grammar cannot express becomes a comment that
/// says so.
pub fn instruction(word: &str, text: &str) -> String {
    said(word, text).unwrap_or_else(|| format!("# {word} cannot be written in a Modelfile; the model of FROM has it"))
}

/// Formats an instruction. Returns `None` if the grammar cannot express the text.
fn said(word: &str, text: &str) -> Option<String> {
    // Line readers treat a carriage return before a line feed as a part of the line end.
    if text.contains("\r\n") {
        return None;
    }
    if !text.contains("\"\"\"") && !text.ends_with(['"', '\r']) {
        return Some(format!("{word} \"\"\"{text}\"\"\""));
    }
    let quoted = format!("\"{text}\"");
    (!text.contains(['\n', '\r']) && !quoted.starts_with("\"\"\"")).then(|| format!("{word} {quoted}"))
}

/// Formats a `MESSAGE` instruction. An invalid role becomes a comment that says so.
pub fn message(role: &str, content: &str) -> String {
    if ROLES.contains(&role) {
        return instruction(&format!("MESSAGE {role}"), content);
    }
    format!("# MESSAGE of `{}`, which is no role; the model of FROM has it", role.escape_debug())
}

/// Formats a parameter as lines, one for each item of a list. A parameter that Modelfiles do not
/// have, or with an item that cannot be written, becomes a comment that refers to the model of
/// FROM.
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

/// Splits the name off the value, for instructions that have a name: `PARAMETER` and `MESSAGE`.
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

/// Parses a value, quoted or not. A text in `"""` may continue on the following lines.
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
        /// Any text becomes exactly one instruction with that text, or none.
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
            // Stop strings are the ones written, or none if one of them cannot be written.
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
