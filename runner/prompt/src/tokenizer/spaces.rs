//! Removal of spaces from decoded texts: before some punctuation, and in contractions.
//!
//! Source of the rules: `detokenize` in `llama-vocab.cpp` of llama.cpp, after
//! `clean_up_tokenization` of Hugging Face transformers.

/// Returns the text without such spaces.
pub(super) fn cleaned(text: &str) -> String {
    let text = without_spaces(text, |rest| rest.starts_with(['?', '!', '.', ',']));
    // A single apostrophe loses the spaces on both sides.
    let mut apart = text.split(" ' ");
    let mut joined = apart.next().unwrap_or_default().to_owned();
    for part in apart {
        joined.push('\'');
        joined.push_str(part);
    }
    without_spaces(&joined, |rest| ["'s", "'m", "'re", "'ve"].iter().any(|end| rest.starts_with(end)))
}

/// Removes each space that is followed by a text that `is_so` accepts.
fn without_spaces(text: &str, is_so: impl Fn(&str) -> bool) -> String {
    let is_kept = |(at, c): &(usize, char)| *c != ' ' || !is_so(&text[at + 1..]);
    text.char_indices().filter(is_kept).map(|(_, c)| c).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_go_before_some_punctuation() {
        for (text, expect) in [
            ("Well , yes . no ; ? !", "Well, yes. no ;?!"),
            ("it 's I 'm we 're they 've he 'd you 'll don 't", "it's I'm we're they've he 'd you 'll don 't"),
            ("a ' b", "a'b"),
            (" ' ", "'"),
            ("", ""),
        ] {
            assert_eq!(cleaned(text), expect, "{text}");
        }
    }
}
