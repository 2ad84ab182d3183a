//! Rust files cut into comments, literals and code, for tests that look at either.

/// A piece of a Rust file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// A comment with its markers.
    Comment(&'a str),
    /// A string or character literal.
    Literal,
    /// Code between the others.
    Code(&'a str),
}

/// The pieces of a file with the byte where each begins.
pub(super) fn pieces(source: &str) -> Vec<(usize, Piece<'_>)> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        let (length, piece) = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            (length, Piece::Comment(&rest[..length]))
        } else if rest.starts_with("/*") {
            let length = rest.find("*/").map_or(rest.len(), |end| end + 2);
            (length, Piece::Comment(&rest[..length]))
        } else if first == '"' {
            (string_length(rest), Piece::Literal)
        } else if let Some(length) = raw_string_length(rest) {
            (length, Piece::Literal)
        } else if let Some(length) = character_length(rest) {
            (length, Piece::Literal)
        } else {
            // A word counts as a whole, so that its last letter `r` does not begin a raw string.
            let length = word_length(rest);
            (length, Piece::Code(&rest[..length]))
        };
        pieces.push((at, piece));
        at += length;
    }
    pieces
}

/// The code of a file without comments and literals.
pub(super) fn code(source: &str) -> String {
    let code = |(_, piece)| match piece {
        Piece::Code(code) => code,
        Piece::Literal => "\"\"",
        Piece::Comment(_) => " ",
    };
    pieces(source).into_iter().map(code).collect()
}

/// The code of a file without comments, literals and the module of its tests.
pub(super) fn product_code(source: &str) -> String {
    let code = code(source);
    let is_module = |(at, mark): &(usize, &str)| {
        let rest = code[at + mark.len()..].trim_start();
        rest.starts_with("mod ") && rest.find('{') < Some(rest.find(';').unwrap_or(usize::MAX))
    };
    let tests = code.match_indices("#[cfg(test)]").find(is_module).map(|(at, _)| at);
    tests.map_or_else(|| code.clone(), |at| code[..at].to_owned())
}

/// Bytes of the string literal that the text begins with.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Bytes of the raw string literal that the text begins with.
fn raw_string_length(text: &str) -> Option<usize> {
    let body = text.strip_prefix("br").or_else(|| text.strip_prefix("cr")).or_else(|| text.strip_prefix('r'))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let quoted = body[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let begin = text.len() - quoted.len();
    Some(quoted.find(&end).map_or(text.len(), |at| begin + at + end.len()))
}

/// Bytes of the character literal that the text begins with; `None` for a lifetime.
fn character_length(text: &str) -> Option<usize> {
    let mut characters = text.strip_prefix('\'')?.char_indices();
    let (_, first) = characters.next()?;
    let (second, c) = characters.next()?;
    if first == '\\' {
        let escaped = 1 + second + c.len_utf8();
        return text[escaped..].find('\'').map(|end| escaped + end + 1);
    }
    (c == '\'').then_some(1 + second + 1)
}

/// Bytes up to the next place where a literal or comment may begin.
fn word_length(text: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let word = text.find(|c| !is_word(c)).unwrap_or(text.len());
    word.max(text.chars().next().map_or(1, char::len_utf8))
}

#[test]
fn files_are_cut_into_comments_literals_and_code() {
    for (source, expect) in [
        ("a // b\nc", "a  \nc"),
        ("let s = \"// \\\" x\"; /* y */ z", "let s = \"\";   z"),
        ("r#\"a\"b\"# br\"c\" for\"d\"", "\"\" \"\" for\"\""),
        ("'a' '\\'' '\\u{1f}' &'a str", "\"\" \"\" \"\" &'a str"),
    ] {
        assert_eq!(code(source), expect, "{source}");
    }
}
