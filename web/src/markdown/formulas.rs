//! Conversion of LaTeX formulas to `MathML`, which browsers render natively.

use std::cell::Cell;
use std::panic::{self, catch_unwind};
use std::sync::Once;

use pulldown_latex::config::DisplayMode;
use pulldown_latex::event::Content;
use pulldown_latex::{Event, Parser, RenderConfig, Storage, push_mathml};

use super::safe::escaped;

/// The longest formula that is converted, in bytes.
pub(super) const LONGEST: usize = 4 << 10;
/// Maximal number of events of a formula.
const MOST: usize = 10_000;
/// Maximal nesting of braces.
const DEEPEST: usize = 40;
/// Commands that define other commands, whose expansion may be endless.
const DEFINES: [&str; 8] = ["def", "gdef", "edef", "xdef", "let", "futurelet", "newcommand", "renewcommand"];

/// Converts an inline formula.
pub(super) fn inline(source: &str) -> String {
    mathml(source, DisplayMode::Inline).unwrap_or_else(|| format!("<code>{}</code>", escaped(source)))
}

/// Converts a display formula.
pub(super) fn display(source: &str) -> String {
    let formula = mathml(source, DisplayMode::Block).unwrap_or_else(|| format!("<code>{}</code>", escaped(source)));
    format!("<span class=\"formula\">{formula}</span>")
}

/// Returns `None` if the source is not a valid formula or exceeds a limit.
fn mathml(source: &str, display_mode: DisplayMode) -> Option<String> {
    if source.len() > LONGEST || depth(source) > DEEPEST || defines(source) {
        return None;
    }
    unless_it_panics(|| {
        let storage = Storage::new();
        let events: Vec<Event<'_>> = Parser::new(source, &storage).take(MOST).collect::<Result<_, _>>().ok()?;
        // The library does not escape function names.
        let has_tags = |event: &Event<'_>| matches!(event, Event::Content(Content::Function(name)) if name.contains(['<', '>', '&']));
        if events.iter().any(has_tags) {
            return None;
        }
        let mut written = String::new();
        let config = RenderConfig { display_mode, ..RenderConfig::default() };
        let events = events.into_iter().map(Ok::<_, std::convert::Infallible>);
        push_mathml(&mut written, events, config).ok()?;
        Some(written)
    })
}

thread_local! {
    static IS_SILENT: Cell<bool> = const { Cell::new(false) };
}

/// Returns the result of `work`, or `None` if it panics. The panic message is suppressed: the
/// library slices strings inside of characters, and the message would write the user's text into
/// the log.
fn unless_it_panics<T>(work: impl FnOnce() -> Option<T> + panic::UnwindSafe) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_SILENT.get() {
                before(info);
            }
        }));
    });
    IS_SILENT.set(true);
    let done = catch_unwind(work);
    IS_SILENT.set(false);
    done.ok().flatten()
}

/// Returns an upper bound of the nesting of braces, `\left` and `\begin`.
fn depth(source: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for character in source.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest.max(source.matches("\\left").count()).max(source.matches("\\begin").count())
}

fn defines(source: &str) -> bool {
    let name = |rest: &str| rest.chars().take_while(char::is_ascii_alphabetic).collect::<String>();
    source.split('\\').skip(1).any(|rest| DEFINES.contains(&name(rest).as_str()))
}
