//! Modelfiles: `FROM`, `ADAPTER`, `PARAMETER`, `TEMPLATE`, `RENDERER`, `PARSER`, `SYSTEM`, `LICENSE`, `MESSAGE`.
//!
//! An instruction is a word and the rest of its line; `"""` quotes text over several lines, `"` within one; `#` begins a
//! comment. Grammar: Ollama's `parser/parser.go`.

use serde_json::{Map, Value};

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
}

const ROLES: [&str; 3] = ["system", "user", "assistant"];
const LATER: [&str; 2] = ["REQUIRES", "DRAFT"];

impl Modelfile {
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
                ensure(self.from.is_empty(), || {
                    format!("line {line}: there is a second FROM; a model has one source")
                })?;
                self.from = value;
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
        crate::ollama::Options::read(&self.parameters).map_err(|e| Malformed(format!("line {line}: {e}")))?;
        Ok(())
    }
}

/// An instruction with a text, as [`Modelfile::parse`] reads it. The text may be anybody's: no line of it becomes an instruction. One
/// that the grammar cannot say is told in a comment.
pub fn instruction(word: &str, text: &str) -> String {
    if !text.contains("\"\"\"") && !text.ends_with('"') {
        return format!("{word} \"\"\"{text}\"\"\"");
    }
    let quoted = format!("\"{text}\"");
    if !text.contains(['\n', '\r']) && !quoted.starts_with("\"\"\"") {
        return format!("{word} {quoted}");
    }
    format!("# {word} has quotes that no Modelfile can say; the model of FROM has it")
}

/// The same for a message; a role that is none is told in a comment.
pub fn message(role: &str, content: &str) -> String {
    if ROLES.contains(&role) {
        return instruction(&format!("MESSAGE {role}"), content);
    }
    format!("# MESSAGE of `{}`, which is no role; the model of FROM has it", role.escape_debug())
}

/// The same for a parameter; a name that is no word is told in a comment.
pub fn parameter(name: &str, value: &Value) -> String {
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return format!("PARAMETER {name} {value}");
    }
    format!("# PARAMETER `{}` is none; the model of FROM has it", name.escape_debug())
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
                parameter(&text, &json!(1)),
                parameter("temperature", &json!(0.5)),
            ];
            let file = Modelfile::parse(&lines.join("\n")).expect("a Modelfile");
            prop_assert_eq!(&file.from, "a");
            prop_assert_eq!(file.template.as_deref(), Some("{{ messages }}"));
            prop_assert!(file.adapters.is_empty() && file.licenses.is_empty());
            // A carriage return before the end of a line is part of the end.
            let said = text.replace("\r\n", "\n");
            if let Some(system) = &file.system {
                prop_assert_eq!(system, &said);
            }
            for (role, content) in &file.messages {
                prop_assert!(role == "user" && (*content == said || content == "x"), "{:?}", file.messages);
            }
            prop_assert_eq!(file.parameters.get("temperature"), Some(&json!(0.5)));
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
            ("FROM a\nFROM b", "line 2"),
            ("FROM a\nFRUM b", "line 2: `FRUM`"),
            ("FROM a\nPARAMETER", "line 2"),
            ("FROM a\nPARAMETER temperature", "no value"),
            ("FROM a\nPARAMETER temperature hot", "line 2: option"),
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
