//! Code with its colours: each word has classes, and the page's styles know what they look like.

use std::panic::catch_unwind;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use syntect::html::{ClassStyle, ClassedHTMLGenerator};
use syntect::parsing::SyntaxSet;
use syntect::util::LinesWithEndings;

use super::safe::escaped;

/// How long a text's code may take to be coloured: it is read as often as an answer grows, and grammars take seconds for some lines.
const PATIENCE: Duration = Duration::from_millis(60);
/// A longer line is data, and grammars take long for it.
const LONGEST_LINE: usize = 300;

/// How long the code of a text may still take.
pub(super) struct Budget(Duration);

impl Default for Budget {
    fn default() -> Self {
        Self(PATIENCE)
    }
}

/// A block of code.
pub(super) fn block(language: &str, text: &str, budget: &mut Budget) -> String {
    let inner = coloured(language, text, budget).unwrap_or_else(|| escaped(text));
    // One can scroll it by the keys.
    format!("<pre data-language=\"{}\" tabindex=\"0\"><code>{inner}</code></pre>\n", escaped(language))
}

fn coloured(language: &str, text: &str, budget: &mut Budget) -> Option<String> {
    static SYNTAXES: OnceLock<SyntaxSet> = OnceLock::new();
    if language.is_empty() || text.lines().any(|line| line.len() > LONGEST_LINE) {
        return None;
    }
    let syntaxes = SYNTAXES.get_or_init(SyntaxSet::load_defaults_newlines);
    let syntax = syntaxes.find_syntax_by_token(alias(language))?;
    // The grammars themselves are read once, which is not the text's fault.
    let (begin, patience) = (Instant::now(), budget.0);
    // A grammar is a program of somebody else; code that it fails on is code without colours.
    let coloured = catch_unwind(|| {
        let style = ClassStyle::SpacedPrefixed { prefix: "c-" };
        let mut generator = ClassedHTMLGenerator::new_with_class_style(syntax, syntaxes, style);
        for line in LinesWithEndings::from(text) {
            if begin.elapsed() > patience {
                return None;
            }
            generator.parse_html_for_line_which_includes_newline(line).ok()?;
        }
        Some(generator.finalize())
    });
    budget.0 = patience.saturating_sub(begin.elapsed());
    coloured.ok().flatten()
}

/// What a language is called where the grammars have no name of it, or a relative's.
fn alias(language: &str) -> &str {
    match language {
        "ts" | "typescript" | "tsx" | "jsx" => "js",
        "shell" | "console" | "zsh" => "bash",
        "jsonc" | "json5" => "json",
        "golang" => "go",
        "toml" => "ini",
        other => other,
    }
}
