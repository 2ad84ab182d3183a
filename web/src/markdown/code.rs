//! Syntax highlighting: each token of code gets CSS classes, and the page's style sheet defines
//! their colours.

use std::panic::catch_unwind;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use syntect::html::{ClassStyle, ClassedHTMLGenerator};
use syntect::parsing::SyntaxSet;
use syntect::util::LinesWithEndings;

use super::safe::escaped;

/// Maximal time for highlighting all code of a text. The text is converted again as an answer
/// grows, and grammars take seconds for some lines.
const PATIENCE: Duration = Duration::from_millis(60);
/// Maximal length of a line. Longer lines are usually data, and grammars are slow on them.
const LONGEST_LINE: usize = 300;

/// The remaining time for highlighting the code of a text.
pub(super) struct Budget(Duration);

impl Default for Budget {
    fn default() -> Self {
        Self(PATIENCE)
    }
}

/// Converts a code block to HTML.
pub(super) fn block(language: &str, text: &str, budget: &mut Budget) -> String {
    let inner = coloured(language, text, budget).unwrap_or_else(|| escaped(text));
    // `tabindex` lets users scroll the block with the keyboard.
    format!("<pre data-language=\"{}\" tabindex=\"0\"><code>{inner}</code></pre>\n", escaped(language))
}

fn coloured(language: &str, text: &str, budget: &mut Budget) -> Option<String> {
    static SYNTAXES: OnceLock<SyntaxSet> = OnceLock::new();
    if language.is_empty() || text.lines().any(|line| line.len() > LONGEST_LINE) {
        return None;
    }
    let syntaxes = SYNTAXES.get_or_init(SyntaxSet::load_defaults_newlines);
    let syntax = syntaxes.find_syntax_by_token(alias(language))?;
    // The time starts after the grammars are loaded, which happens once.
    let (begin, patience) = (Instant::now(), budget.0);
    // The grammars are third-party code; if one panics, the code stays without colours.
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

/// Maps a language to the name of its grammar, or of the grammar of a similar language.
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
