//! Two texts as one sequence, the input of models that compare them.
//!
//! The post-processor of a `tokenizer.json` determines the special tokens around the texts. GGUF
//! files specify less: the first text has the same tokens around it as a single text. The separator
//! follows if the file adds one, then the second text with its end token (llama.cpp,
//! `format_prompt_rerank`).

use super::{Around, Tokenizer, TokenizerKind};
use crate::Error;

/// Probe texts that most vocabularies have tokens for; the special tokens around a pair are derived
/// from them.
const PROBES: [[&str; 2]; 4] = [["a", "0"], ["0", "."], [".", "x"], ["x", "a"]];

/// The special tokens around two texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairForm {
    before: Vec<u32>,
    between: Vec<u32>,
    after: Vec<u32>,
    /// Number of tokens between the texts that have the first type, if the tokens after them have
    /// the second type.
    first_type: Option<usize>,
}

/// Two texts as one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Tokens of both texts, with the special tokens.
    pub tokens: Vec<u32>,
    /// Index of the first token of the second type; `None` if all tokens have the first type.
    pub second: Option<usize>,
}

impl Tokenizer {
    /// Returns the special tokens around two texts.
    ///
    /// # Errors
    /// The post-processor does not put the texts one after the other, each once.
    pub fn pair_form(&self) -> Result<PairForm, Error> {
        let around = match &self.kind {
            TokenizerKind::Library { tokenizer, around, .. } => {
                if tokenizer.get_post_processor().is_some() {
                    let pair = |[first, second]: [&str; 2]| {
                        let both = tokenizer.encode((first, second), true).map_err(Error::tokenizer)?;
                        Ok(PairForm::of(&both))
                    };
                    let found = PROBES.into_iter().map(pair).collect::<Result<Vec<_>, Error>>()?;
                    let mut forms = found.into_iter().flatten();
                    let form = forms.next();
                    // The special tokens must be the same for all probe texts.
                    return form.filter(|form| forms.all(|other| other == *form)).ok_or_else(|| {
                        Error::tokenizer("its post-processor does not join two texts in order, each once")
                    });
                }
                *around
            }
            TokenizerKind::VocabularyTokenizer(tokenizer) => tokenizer.around(),
        };
        Ok(around.into())
    }
}

impl PairForm {
    /// Derives the form from an encoded pair; `None` if a text has no tokens in it, or if the texts
    /// are split or out of order.
    fn of(both: &tokenizers::Encoding) -> Option<Self> {
        let of = both.get_sequence_ids();
        let place = |text: usize| {
            let begin = of.iter().position(|of| *of == Some(text))?;
            let end = begin + of[begin..].iter().take_while(|of| **of == Some(text)).count();
            let others = of[..begin].iter().chain(&of[end..]);
            (!others.into_iter().any(|of| *of == Some(text))).then_some(begin..end)
        };
        let (first, second) = (place(0)?, place(1)?);
        if first.end > second.start {
            return None;
        }
        let tokens = both.get_ids();
        let of_second = both.get_type_ids().iter().position(|kind| *kind != 0);
        Some(Self {
            before: tokens[..first.start].to_vec(),
            between: tokens[first.end..second.start].to_vec(),
            after: tokens[second.end..].to_vec(),
            first_type: of_second
                .filter(|place| (first.end..=second.start).contains(place))
                .map(|place| place - first.end),
        })
    }

    /// Returns the same form for models without token types.
    #[must_use]
    pub fn of_one_type(self) -> Self {
        Self { first_type: None, ..self }
    }

    /// Returns the number of special tokens around the texts.
    pub fn len(&self) -> usize {
        self.before.len() + self.between.len() + self.after.len()
    }

    /// Whether there are no special tokens around the texts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many tokens of two texts are kept if the whole sequence is limited to `all`
    /// tokens. The longer text is cut to the length of the other, then both to half the limit, as
    /// in the library (`truncate_encodings`, `LongestFirst`).
    pub fn left(&self, [first, second]: [usize; 2], all: usize) -> [usize; 2] {
        let all = all.saturating_sub(self.len());
        let [shorter, longer] = [first.min(second), first.max(second)];
        let [shorter, longer] = if shorter + longer <= all {
            [shorter, longer]
        } else if 2 * shorter <= all {
            [shorter, all - shorter]
        } else {
            [all / 2, all - all / 2]
        };
        if first <= second { [shorter, longer] } else { [longer, shorter] }
    }

    /// Joins the tokens of two texts.
    pub fn join(&self, first: &[u32], second: &[u32]) -> Pair {
        let begin = self.before.len() + first.len();
        let tokens = [&self.before, first, &self.between, second, &self.after].concat();
        Pair { second: self.first_type.map(|of_first| begin + of_first), tokens }
    }
}

/// The form of a GGUF file: the tokens between the texts have the first type.
impl From<Around> for PairForm {
    fn from(around: Around) -> Self {
        let between: Vec<u32> = around.after.into_iter().chain(around.between).collect();
        Self {
            before: Vec::from_iter(around.before),
            first_type: Some(between.len()),
            between,
            after: Vec::from_iter(around.after),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use vocabulary::{PieceKind, Vocabulary, VocabularyEntry, VocabularyKind};

    use super::*;

    #[test]
    fn the_longer_text_is_cut_first() {
        let form = PairForm { before: vec![1], between: vec![2], after: vec![3], first_type: None };
        for (lengths, all, expect) in [
            ([3, 4], 7, [3, 4]),
            ([3, 9], 8, [3, 5]),
            ([9, 3], 8, [5, 3]),
            ([4, 9], 8, [4, 4]),
            ([7, 9], 9, [4, 5]),
            ([9, 7], 9, [5, 4]),
            ([9, 9], 0, [0, 0]),
            ([5, 1], 3, [2, 1]),
            ([600, 0], 509, [509, 0]),
        ] {
            assert_eq!(form.left(lengths, all + 3), expect, "{lengths:?} in {all}");
        }
        assert_eq!(form.left([1, 1], 2), [0, 0], "no room for what stands around");
    }

    #[test]
    fn vocabularies_of_files_part_two_texts() {
        let pieces = ["[UNK]", "[CLS]", "[SEP]", "\u{2581}a", "\u{2581}b"];
        let pieces = pieces.iter().map(|text| VocabularyEntry {
            text: (*text).to_owned(),
            score: 0.0,
            kind: if text.starts_with('[') { PieceKind::Control } else { PieceKind::Normal },
        });
        let kind = VocabularyKind::WordPiece { lowercase: true, strip_accents: true };
        let own = Vocabulary {
            unknown: Some(0),
            bos: Some(1),
            separator: Some(2),
            ..Vocabulary::new(kind, pieces.collect())
        };
        let pair = |own: Vocabulary| {
            let form = Tokenizer::from_vocabulary(own).expect("a tokenizer").pair_form().expect("a form");
            form.join(&[3], &[4, 4])
        };
        assert_eq!(pair(own.clone()), Pair { tokens: vec![1, 3, 2, 4, 4, 2], second: Some(3) });
        let parted = Vocabulary { add_separator: true, ..own };
        assert_eq!(pair(parted), Pair { tokens: vec![1, 3, 2, 2, 4, 4, 2], second: Some(4) });
    }

    /// Derives the form of a tokenizer with this pair template.
    fn templated(pair: &[Value]) -> Result<PairForm, Error> {
        let special = json!({"S": {"id": "S", "ids": [1], "tokens": ["S"]}});
        let single = [json!({"Sequence": {"id": "A", "type_id": 0}})];
        let document = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
            "pre_tokenizer": {"type": "Whitespace"},
            "added_tokens": [{"id": 1, "content": "S", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "post_processor": {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special},
            "model": {"type": "WordLevel", "vocab": {"?": 0, "S": 1, "a": 2, "x": 3}, "unk_token": "?"},
        });
        Tokenizer::from_json(document.to_string().as_bytes()).expect("a tokenizer").pair_form()
    }

    #[test]
    fn post_processors_say_what_stands_around() {
        let text = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
        let special = |kind: u32| json!({"SpecialToken": {"id": "S", "type_id": kind}});
        let form = |pair: &[Value]| templated(pair).expect("a form").join(&[7], &[8, 8]);
        let bert = form(&[special(0), text("A", 0), special(0), text("B", 1), special(1)]);
        assert_eq!(bert, Pair { tokens: vec![1, 7, 1, 8, 8, 1], second: Some(3) });
        let early = form(&[text("A", 0), special(0), special(1), text("B", 1)]);
        assert_eq!(early, Pair { tokens: vec![7, 1, 1, 8, 8], second: Some(2) });
        assert_eq!(form(&[text("A", 0), text("B", 0)]), Pair { tokens: vec![7, 8, 8], second: None });
        // Templates that are refused.
        for pair in [
            &[special(0), text("B", 0), special(0), text("A", 0)][..],
            &[text("B", 0), text("A", 0), text("B", 0)],
            &[text("A", 0), special(0), text("B", 0), text("A", 0)],
        ] {
            assert!(templated(pair).is_err(), "{pair:?}");
        }
    }
}
