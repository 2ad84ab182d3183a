//! JSON with deviations that common programs write: Python's `json` writes `NaN` and `Infinity`,
//! and Windows editors write a byte order mark.

use std::borrow::Cow;

/// The byte order mark of UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Removes a byte order mark.
pub fn unmarked(raw: &[u8]) -> &[u8] {
    raw.strip_prefix(MARK).unwrap_or(raw)
}

/// Converts the text to strict JSON: removes a byte order mark, replaces `Infinity` by the largest
/// number (keeping a minus sign), and `NaN` by `null`. Strings are not changed.
pub fn tolerant(raw: &[u8]) -> Cow<'_, [u8]> {
    let text = unmarked(raw);
    let has = |word: &[u8]| text.windows(word.len()).any(|window| window == word);
    if !has(b"NaN") && !has(b"Infinity") {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let (mut rest, mut in_string) = (text, false);
    while let Some((byte, after)) = rest.split_first() {
        let word = if in_string { None } else { replaced(rest) };
        if let Some((word, number)) = word {
            out.extend_from_slice(number);
            rest = &rest[word..];
            continue;
        }
        out.push(*byte);
        rest = after;
        match byte {
            b'"' => in_string = !in_string,
            b'\\' if in_string => {
                if let Some((escaped, after)) = rest.split_first() {
                    out.push(*escaped);
                    rest = after;
                }
            }
            _ => {}
        }
    }
    Cow::Owned(out)
}

/// Returns the length of a word that JSON does not have, and its replacement.
fn replaced(text: &[u8]) -> Option<(usize, &'static [u8])> {
    const WORDS: [(&[u8], &[u8]); 2] = [(b"NaN", b"null"), (b"Infinity", b"1.7976931348623157e308")];
    WORDS.iter().find(|(word, _)| text.starts_with(word)).map(|(word, number)| (word.len(), *number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_python_writes_is_read() {
        let text = b"\xef\xbb\xbf{\"a\": Infinity, \"b\": [-Infinity, NaN], \"NaN \\\" Infinity\": \"NaN\"}";
        let expect =
            "{\"a\": 1.7976931348623157e308, \"b\": [-1.7976931348623157e308, null], \"NaN \\\" Infinity\": \"NaN\"}";
        assert_eq!(tolerant(text), expect.as_bytes());
        assert!(matches!(tolerant(b"{\"a\": 1}"), Cow::Borrowed(b"{\"a\": 1}")));
    }
}
