//! Prompts for fill-in-the-middle: the model generates the text between two texts.

use vocabulary::insert::marks;

use crate::{Error, Special, Tokenizer};

/// Prefix for tokenizing a text as if it were inside another text.
const LEAD: &str = "\u{263a}";

/// Returns the prompt for the text between two texts, including the tokens that the model expects
/// before every text. Fails if the vocabulary has no fill-in-the-middle tokens.
pub fn insert(tokenizer: &Tokenizer, prefix: &str, suffix: &str) -> Result<Vec<u32>, Error> {
    let marks = marks(&|text| tokenizer.id(text).is_some()).ok_or(Error::Insert)?;
    let mark = |text: &str| tokenizer.id(text).ok_or(Error::Insert);
    // Tokens that end a text are not used: only a token that begins an empty text and does not end
    // it.
    let around = tokenizer.encode("", Special { add: true, parse: false })?;
    let mut tokens = if around.len() == 1 { around } else { around.into_iter().rev().skip(1).rev().collect() };
    let (before, after) = (within(tokenizer, prefix)?, within(tokenizer, suffix)?);
    if let Some(middle) = marks.middle {
        tokens.push(mark(marks.prefix)?);
        tokens.extend(before);
        tokens.push(mark(marks.suffix)?);
        tokens.extend(after);
        tokens.push(mark(middle)?);
    } else {
        tokens.push(mark(marks.suffix)?);
        tokens.extend(after);
        tokens.push(mark(marks.prefix)?);
        tokens.extend(before);
    }
    Ok(tokens)
}

/// Returns the tokens of a text inside another: without the space that some tokenizers put before a
/// text.
fn within(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Error> {
    let plain = Special { add: false, parse: false };
    let lead = tokenizer.encode(LEAD, plain)?;
    let whole = tokenizer.encode(&[LEAD, text].concat(), plain)?;
    match whole.strip_prefix(&lead[..]) {
        Some(tokens) => Ok(tokens.to_vec()),
        // The prefix was merged into one token with the text.
        None => tokenizer.encode(text, plain),
    }
}

#[cfg(test)]
mod tests {
    use vocabulary::{PieceKind, Vocabulary, VocabularyEntry, VocabularyKind};

    use super::*;

    fn tokenizer(special: &[&str]) -> Tokenizer {
        let piece = |text: &str, kind| VocabularyEntry { text: text.to_owned(), score: 0.0, kind };
        let mut pieces = vec![piece("<unk>", PieceKind::Unknown), piece("<s>", PieceKind::Control)];
        pieces.extend(["a", "b", "\u{2581}"].iter().map(|text| piece(text, PieceKind::Normal)));
        pieces.extend(special.iter().map(|text| piece(text, PieceKind::Control)));
        Tokenizer::from_vocabulary(Vocabulary {
            bos: Some(1),
            unknown: Some(0),
            add_bos: true,
            add_space_prefix: true,
            ..Vocabulary::new(VocabularyKind::SentencePiece, pieces)
        })
        .expect("a tokenizer")
    }

    #[test]
    fn both_texts_stand_between_the_marks() {
        let llama = tokenizer(&["▁<PRE>", "▁<SUF>", "▁<MID>"]);
        assert_eq!(insert(&llama, "a", " b").expect("tokens"), [1, 5, 2, 6, 4, 3, 7], "no space but the text's own");
        let codestral = tokenizer(&["[PREFIX]", "[SUFFIX]"]);
        assert_eq!(insert(&codestral, "a", "b").expect("tokens"), [1, 6, 3, 5, 2]);
        // Marks within the texts are plain text.
        assert!(!insert(&llama, "▁<MID>", "").expect("tokens")[2..].starts_with(&[7]));
    }

    #[test]
    fn without_marks_it_is_refused() {
        for special in [&[][..], &["<fim_prefix>", "<fim_suffix>"]] {
            let error = insert(&tokenizer(special), "a", "b").expect_err("refused");
            assert!(error.to_string().contains("does not support insert"), "{error}");
        }
    }
}
