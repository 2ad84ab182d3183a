//! The commands of a session: lines that begin with `/`.

use api::nearest;
use api::ollama::Options;
use serde_json::Value;

use crate::cli::run;

/// The first words of commands.
const WORDS: [&str; 11] = ["set", "show", "load", "save", "clear", "help", "?", "bye", "exit", "quit", "q"];
/// The names that `/set` accepts.
const SETTINGS: [&str; 12] = [
    "parameter",
    "system",
    "think",
    "nothink",
    "format",
    "noformat",
    "history",
    "nohistory",
    "wordwrap",
    "nowordwrap",
    "verbose",
    "quiet",
];

/// A command.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SessionCommand {
    Set(Setting),
    Show(ShownPart),
    /// Switch to another model.
    Load(String),
    /// Save the model with this conversation under a name.
    Save(String),
    Clear,
    Help,
    Leave,
}

/// A setting and its new value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Setting {
    Parameter { name: String, value: Value },
    System(String),
    Think(Value),
    Format(Option<Value>),
    History(bool),
    WordWrap(bool),
    Verbose(bool),
}

/// The part of the model to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShownPart {
    Info,
    Modelfile,
    Parameters,
    System,
    Template,
    License,
}

/// Parses a command without its `/`.
///
/// # Errors
/// Describes the mistake, with a suggestion if one is likely.
pub(super) fn parse(text: &str) -> Result<SessionCommand, String> {
    let (word, rest) = split(text);
    match word {
        "set" => set(rest).map(SessionCommand::Set),
        "show" => part(rest).map(SessionCommand::Show),
        "load" => name(rest, "load").map(SessionCommand::Load),
        "save" => name(rest, "save").map(SessionCommand::Save),
        "clear" => Ok(SessionCommand::Clear),
        "help" | "?" => Ok(SessionCommand::Help),
        "bye" | "exit" | "quit" | "q" => Ok(SessionCommand::Leave),
        other if SETTINGS.contains(&other) => Err(format!("/{other} is not a command; did you mean `/set {text}`?")),
        other => Err(format!("/{other} is not a command{}; /? lists them", meant(other, "/", &WORDS))),
    }
}

/// Splits a text into its first word and the rest.
fn split(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim())
}

fn meant(word: &str, before: &str, known: &[&str]) -> String {
    nearest(word, known.iter().copied()).map(|near| format!("; did you mean `{before}{near}`?")).unwrap_or_default()
}

fn name(text: &str, command: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err(format!("/{command} takes the name of a model, e.g. `/{command} mine`"));
    }
    Ok(text.to_owned())
}

fn set(text: &str) -> Result<Setting, String> {
    let (what, value) = split(text);
    match what {
        "parameter" => parameter(value),
        "system" => Ok(Setting::System(unquoted(value).to_owned())),
        "think" if ["", "on", "off"].contains(&value) => switch(what, value).map(|on| Setting::Think(on.into())),
        "think" => Ok(Setting::Think(run::think(value))),
        "nothink" => alone(what, value, Setting::Think(false.into())),
        "format" if value.is_empty() => Err("/set format takes `json`, or a JSON schema".to_owned()),
        "format" => run::format(value).map(Some).map(Setting::Format).map_err(|error| error.to_string()),
        "noformat" => alone(what, value, Setting::Format(None)),
        "history" => switch(what, value).map(Setting::History),
        "nohistory" => alone(what, value, Setting::History(false)),
        "wordwrap" => switch(what, value).map(Setting::WordWrap),
        "nowordwrap" => alone(what, value, Setting::WordWrap(false)),
        "verbose" => switch(what, value).map(Setting::Verbose),
        "quiet" => alone(what, value, Setting::Verbose(false)),
        "" => Err(format!("/set takes one of {}", SETTINGS.join(", "))),
        other
            if nearest(other, SETTINGS.into_iter()).is_none()
                && let Some(option) = Options::nearest(other) =>
        {
            Err(format!("/set {other} is not known; did you mean `/set parameter {option} {value}`?"))
        }
        other => Err(format!("/set {other} is not known{}; /? lists what is", meant(other, "/set ", &SETTINGS))),
    }
}

/// Parses a switch; an empty value means on.
fn switch(what: &str, value: &str) -> Result<bool, String> {
    match value {
        "" | "on" => Ok(true),
        "off" => Ok(false),
        other => Err(format!("/set {what} takes `on` or `off`, not `{other}`")),
    }
}

/// Checks that a setting without a value has none.
fn alone(what: &str, value: &str, setting: Setting) -> Result<Setting, String> {
    if value.is_empty() { Ok(setting) } else { Err(format!("/set {what} takes no value, not `{value}`")) }
}

/// Parses the name and the value of a parameter, and checks its type.
fn parameter(text: &str) -> Result<Setting, String> {
    let (name, value) = split(text);
    if value.is_empty() {
        return Err("/set parameter takes a name and a value, e.g. `/set parameter temperature 0`".to_owned());
    }
    run::option(name, value).map(|(name, value)| Setting::Parameter { name, value })
}

/// Removes the `"""` around a message of several lines.
pub(super) fn without_block_quotes(text: &str) -> &str {
    between(text.trim(), "\"\"\"").unwrap_or(text)
}

/// Removes `"""` or `"` around a text.
fn unquoted(text: &str) -> &str {
    let block = without_block_quotes(text);
    between(block.trim(), "\"").unwrap_or(block)
}

fn between<'t>(text: &'t str, quotes: &str) -> Option<&'t str> {
    text.strip_prefix(quotes)?.strip_suffix(quotes)
}

/// Returns true if a text opens `"""` and does not close it, so more lines follow.
pub(super) fn is_open(text: &str) -> bool {
    let text = text.trim_start();
    let text = text.strip_prefix("/set").map_or(text, |rest| split(rest.trim_start()).1);
    text.strip_prefix("\"\"\"").is_some_and(|opened| !opened.trim_end().ends_with("\"\"\""))
}

fn part(text: &str) -> Result<ShownPart, String> {
    match text {
        "" | "info" => Ok(ShownPart::Info),
        "modelfile" => Ok(ShownPart::Modelfile),
        "parameters" => Ok(ShownPart::Parameters),
        "system" => Ok(ShownPart::System),
        "template" => Ok(ShownPart::Template),
        "license" => Ok(ShownPart::License),
        other => {
            let known = "info, modelfile, parameters, system, template and license";
            Err(format!("/show {other} is not known; it shows {known}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn commands_are_read() {
        let parameter = |name: &str, value| SessionCommand::Set(Setting::Parameter { name: name.to_owned(), value });
        for (text, expect) in [
            ("set parameter temperature 0", parameter("temperature", json!(0))),
            ("set  parameter  stop  a b", parameter("stop", json!(["a", "b"]))),
            ("set parameter stop [\"a b\"]", parameter("stop", json!(["a b"]))),
            ("set system You are terse.", SessionCommand::Set(Setting::System("You are terse.".to_owned()))),
            ("set system \"\"\"two\nlines\"\"\"", SessionCommand::Set(Setting::System("two\nlines".to_owned()))),
            ("set think", SessionCommand::Set(Setting::Think(json!(true)))),
            ("set think off", SessionCommand::Set(Setting::Think(json!(false)))),
            ("set think high", SessionCommand::Set(Setting::Think(json!("high")))),
            ("set nothink", SessionCommand::Set(Setting::Think(json!(false)))),
            ("set format json", SessionCommand::Set(Setting::Format(Some(json!("json"))))),
            ("set noformat", SessionCommand::Set(Setting::Format(None))),
            ("set nowordwrap", SessionCommand::Set(Setting::WordWrap(false))),
            ("set wordwrap off", SessionCommand::Set(Setting::WordWrap(false))),
            ("set history on", SessionCommand::Set(Setting::History(true))),
            ("set verbose off", SessionCommand::Set(Setting::Verbose(false))),
            ("show", SessionCommand::Show(ShownPart::Info)),
            ("show license", SessionCommand::Show(ShownPart::License)),
            ("save mine", SessionCommand::Save("mine".to_owned())),
            ("load other:1b", SessionCommand::Load("other:1b".to_owned())),
            ("?", SessionCommand::Help),
            ("bye", SessionCommand::Leave),
        ] {
            assert_eq!(parse(text), Ok(expect), "{text}");
        }
    }

    #[test]
    fn mistakes_are_explained() {
        for (text, expect) in [
            ("set temperature 0", "did you mean `/set parameter temperature 0`?"),
            ("set parameter temprature 0", "did you mean `temperature`?"),
            ("set parameter temperature hot", "must be of type float32"),
            ("set parameter temperature", "takes a name and a value"),
            ("set format {", "expected json or a JSON schema"),
            ("set sistem x", "did you mean `/set system`?"),
            ("system x", "did you mean `/set system x`?"),
            ("sho", "did you mean `/show`?"),
            ("set history maybe", "takes `on` or `off`, not `maybe`"),
            ("set nohistory off", "/set nohistory takes no value, not `off`"),
            ("save", "takes the name of a model"),
            ("show all", "it shows info, modelfile"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(expect), "{text}: {error}");
        }
    }

    #[test]
    fn texts_of_several_lines_are_open_until_they_end() {
        for open in ["\"\"\"", "\"\"\"a", "\"\"\"a\nb", "/set system \"\"\"a", "/set system \"\"\""] {
            assert!(is_open(open), "{open}");
        }
        for whole in ["a", "\"\"\"a\"\"\"", "\"\"\"a\nb\"\"\" ", "/set system \"\"\"a\"\"\"", "say \"\"\"", "/show"] {
            assert!(!is_open(whole), "{whole}");
        }
    }
}
