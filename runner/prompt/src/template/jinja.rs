//! Jinja as in Hugging Face transformers.
//!
//! `trim_blocks` and `lstrip_blocks` are on. There are loop controls, a `generation` block that
//! renders as its content, `raise_exception`, `strftime_now`, and Python's string methods. `tojson`
//! keeps the order of keys and escapes neither HTML nor non-ASCII. Source:
//! `transformers/utils/chat_template_utils.py`.

mod filters;
mod json;
mod methods;
mod python;
mod source;
mod tests;

use std::io;

use minijinja::{Environment, ErrorKind};
use serde_json::Map;

use vocabulary::chat_templates::NamedTemplate;

use super::clock::Clock;
use super::explain_length;
use crate::{Error, MAX_TEXT};

/// Maximum recursion depth of a template.
const RECURSION_LIMIT: usize = 100;
/// Maximum number of steps of a template. The largest published templates need a fraction of it per
/// message.
const FUEL: u64 = 10_000_000;

/// Parsed templates.
#[derive(Debug)]
pub(super) struct Jinja(Environment<'static>);

impl Jinja {
    /// Parses templates.
    pub(super) fn read(named: &[NamedTemplate], clock: Clock) -> Result<Self, Error> {
        let mut environment = environment(clock);
        for (name, source) in named {
            let read = environment.add_template_owned(name.clone(), source::prepared(source));
            read.map_err(|e| Error::Template(explain(&e)))?;
        }
        Ok(Self(environment))
    }

    /// Renders the template with this name.
    pub(super) fn render(&self, name: &str, variables: &Map<String, serde_json::Value>) -> Result<String, Error> {
        let template = self.0.get_template(name).map_err(|e| Error::Template(explain(&e)))?;
        let mut text = Bounded(Vec::new());
        template
            .render_captured_to(python::dictionary(variables), &mut text)
            .map_err(|e| Error::Template(explain(&e)))?;
        String::from_utf8(text.0).map_err(|_| Error::Template("its output is not UTF-8".to_owned()))
    }
}

/// Output of a template, limited to [`MAX_TEXT`] bytes.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_TEXT {
            return Err(io::Error::other(explain_length()));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the error message with its cause, which contains the text that a template raised.
fn explain(error: &minijinja::Error) -> String {
    if let Some(failure) = std::error::Error::source(error).filter(|_| error.kind() == ErrorKind::WriteFailure) {
        return failure.to_string();
    }
    let mut text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    if let Some(line) = error.line() {
        text = format!("{text} (line {line})");
    }
    text
}

fn environment(clock: Clock) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_fuel(Some(FUEL));
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(methods::call);
    minijinja_contrib::add_to_environment(&mut environment);
    environment.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", move |format: &str| {
        clock.strftime(format).map_err(|reason| minijinja::Error::new(ErrorKind::InvalidOperation, reason))
    });
    environment.set_formatter(python::print);
    environment.add_filter("tojson", json::to_json);
    environment.add_filter("string", filters::string);
    environment.add_filter("join", filters::join);
    environment.add_filter("length", filters::length);
    environment.add_filter("count", filters::length);
    environment.add_test("sequence", tests::is_sequence);
    environment.add_test("iterable", tests::is_iterable);
    environment
}
