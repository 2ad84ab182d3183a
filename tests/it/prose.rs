//! The words of comments and documents. `STYLE.md` has the rules (33 and 34); these tests check the
//! ones that a program can check.

use std::fs;
use std::path::Path;

use crate::rust_source::{Piece, pieces};
use crate::tidy::{project_files, relative};

/// The widest comment line, in columns.
const WIDEST: usize = 100;

/// Subjects that name no actor.
const REFUSED: [&str; 11] = [
    "who",
    "whoever",
    "whom",
    "whomever",
    "somebody",
    "someone",
    "nobody",
    "everybody",
    "everyone",
    "anybody",
    "anyone",
];

/// Endings of files with `#` comments, and files without an ending that have them.
const HASH_COMMENTS: [&str; 4] = ["py", "sh", "toml", ""];
/// Endings of files with `//` comments.
const SLASH_COMMENTS: [&str; 8] = ["c", "h", "cu", "cuh", "js", "mjs", "css", "go"];

/// A line of prose.
struct Line {
    number: usize,
    /// The text without comment markers.
    text: String,
    /// Columns of the whole line, if nothing but the comment is on it.
    columns: Option<usize>,
}

#[test]
fn comments_and_documents_use_plain_words() {
    let mut wrong = Vec::new();
    let mut lines = 0;
    for path in project_files() {
        let Ok(source) = fs::read_to_string(&path) else { continue };
        let prose = prose(&path, &source);
        lines += prose.len();
        let (mut before, mut number) = (String::new(), 0);
        for line in &prose {
            if line.number != number + 1 {
                before.clear();
            }
            number = line.number;
            let text = without_quotations(&line.text);
            let place = || format!("{}:{}: {}", relative(&path), line.number, line.text.trim());
            if let Some(word) = refused_word(&text) {
                wrong.push(format!("`{word}`: {}", place()));
            }
            if begins_with_what(&text, &before) {
                wrong.push(format!("a sentence begins with \"What\": {}", place()));
            }
            if line.columns.is_some_and(|columns| columns > WIDEST) && !line.text.contains("http") {
                wrong.push(format!("more than {WIDEST} columns: {}", place()));
            }
            text.trim().clone_into(&mut before);
        }
    }
    assert!(lines > 10_000, "only {lines} lines of prose were found");
    assert!(wrong.is_empty(), "{} lines are not plain (STYLE.md, 33 and 34): {wrong:#?}", wrong.len());
}

#[test]
fn riddles_are_found() {
    let check = |source: &str| {
        let lines = prose(Path::new("a.rs"), source);
        lines.iter().any(|line| {
            let text = without_quotations(&line.text);
            refused_word(&text).is_some() || begins_with_what(&text, "")
        })
    };
    for bad in [
        "/// Tells who waits.",
        "let x = 1; // Nobody reads it.",
        "/* a\n  block for whoever reads */",
        "//! What is not here is pulled.",
        "// It ends. What is left stays.",
        "// those that are left",
        "let a = '\"'; // somebody",
        "let a = r#\"// \"#; // somebody",
    ] {
        assert!(check(bad), "{bad}");
    }
    for good in [
        "/// Tells the waiting requests.",
        "/// `who` and \"nobody\" are quoted.",
        "let text = \"// nobody\";",
        "let text = r#\"// nobody \"quoted\" \"#;",
        "// What is left?",
        "// whose size, whole, whoosh",
        "fn f<'a>(x: &'a str) {}",
    ] {
        assert!(!check(good), "{good}");
    }
}

/// The prose of a file, by its kind.
fn prose(path: &Path, source: &str) -> Vec<Line> {
    let ending = path.extension().map_or("", |ending| ending.to_str().unwrap_or_default());
    match ending {
        "rs" => rust_comments(source),
        "md" => markdown(source),
        ending if HASH_COMMENTS.contains(&ending) => line_comments(source, &["#"]),
        ending if SLASH_COMMENTS.contains(&ending) => line_comments(source, &["//", "/*", "*"]),
        _ => Vec::new(),
    }
}

/// Lines outside of code blocks.
fn markdown(source: &str) -> Vec<Line> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (index, line) in source.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push(Line { number: index + 1, text: line.to_owned(), columns: None });
        }
    }
    lines
}

/// Lines that begin with a marker.
fn line_comments(source: &str, markers: &[&str]) -> Vec<Line> {
    let comment = |(index, line): (usize, &str)| {
        let trimmed = line.trim_start();
        let is_comment = markers.iter().any(|marker| trimmed.starts_with(marker)) && !trimmed.starts_with("#!");
        let text = trimmed.trim_start_matches(['#', '/', '*', ' ']).to_owned();
        is_comment.then(|| Line { number: index + 1, text, columns: Some(line.chars().count()) })
    };
    source.lines().enumerate().filter_map(comment).collect()
}

/// The comments of a Rust file.
fn rust_comments(source: &str) -> Vec<Line> {
    let whole: Vec<&str> = source.split('\n').collect();
    let mut lines = Vec::new();
    for (at, piece) in pieces(source) {
        let Piece::Comment(comment) = piece else { continue };
        let number = source[..at].matches('\n').count() + 1;
        for (index, text) in comment.split('\n').enumerate() {
            let line = whole.get(number + index - 1).copied().unwrap_or_default();
            let is_alone = line.trim_start().starts_with("//");
            let text = text.trim_start().trim_start_matches(['/', '*', '!']).to_owned();
            lines.push(Line { number: number + index, text, columns: is_alone.then(|| line.chars().count()) });
        }
    }
    lines
}

/// The text without code in backticks and quotations.
fn without_quotations(text: &str) -> String {
    let outside = |text: &str, mark: char| -> String {
        let parts: Vec<&str> = text.split(mark).collect();
        // Without a second mark the last part is not quoted.
        let is_quoted = |index: usize| index % 2 == 1 && index + 1 < parts.len();
        parts.iter().enumerate().filter(|(index, _)| !is_quoted(*index)).map(|(_, part)| *part).collect()
    };
    outside(&outside(text, '`'), '"')
}

/// A word that may not be a subject.
fn refused_word(text: &str) -> Option<String> {
    let words: Vec<String> = text
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let those = words.windows(2).find(|pair| pair[0] == "those" && ["that", "which"].contains(&pair[1].as_str()));
    let refused = words.iter().find(|word| REFUSED.contains(&word.as_str())).cloned();
    refused.or_else(|| those.map(|pair| pair.join(" ")))
}

/// True if a sentence that is no question begins with "What". `before` is the previous line.
fn begins_with_what(text: &str, before: &str) -> bool {
    let is_end = |c: char| matches!(c, '.' | ':' | ';' | '!' | '?' | ')');
    let trimmed = text.trim();
    trimmed.match_indices("What ").any(|(at, _)| {
        let lead = trimmed[..at].trim_end_matches(['*', '-', '|', ' ', '_', '#', '>']);
        let begins =
            if lead.is_empty() { before.is_empty() || before.ends_with(is_end) } else { lead.ends_with(is_end) };
        let sentence = trimmed[at..].split('.').next().unwrap_or_default();
        begins && !sentence.contains('?')
    })
}
