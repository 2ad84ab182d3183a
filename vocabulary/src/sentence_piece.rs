//! `tokenizer.model`: a vocabulary as `SentencePiece` writes it, for folders that have no
//! `tokenizer.json`.
//!
//! The file is a protocol buffers message (`sentencepiece_model.proto`). Fields that are read, with
//! their numbers: the pieces (1: text 1, score 2, kind 3); the trainer settings (2: model type 3);
//! the normalizer settings (3: character map 2, space before texts 3, merging of runs of spaces 4).

use serde_json::Value;

use crate::special_tokens;
use crate::{Error, PieceKind, Vocabulary, VocabularyEntry, VocabularyKind};

/// `TrainerSpec.ModelType.UNIGRAM`. BPE is 2; other kinds are not in use.
const UNIGRAM: u64 = 1;

impl Vocabulary {
    /// Reads a `tokenizer.model`. `config` is the `tokenizer_config.json` of the same folder, or
    /// `null`; it names the special tokens and the added tokens.
    ///
    /// # Errors
    /// The file is not such a message, or it has no pieces.
    pub fn of_sentence_piece(raw: &[u8], config: &Value) -> Result<Self, Error> {
        let wrong = || Error("`tokenizer.model` is not a model of SentencePiece".to_owned());
        let (mut pieces, mut kind, mut normalizer) = (Vec::new(), UNIGRAM, Normalizer::default());
        for field in MessageFields(raw) {
            match field.ok_or_else(wrong)? {
                (1, Field::Bytes(piece)) => pieces.push(self::piece(piece).ok_or_else(wrong)?),
                (2, Field::Bytes(trainer)) => kind = number(trainer, 3, UNIGRAM).ok_or_else(wrong)?,
                (3, Field::Bytes(spec)) => normalizer = Normalizer::read(spec).ok_or_else(wrong)?,
                _ => {}
            }
        }
        if pieces.is_empty() {
            return Err(wrong());
        }
        let kind = if kind == UNIGRAM {
            let character_map = normalizer.character_map.to_vec();
            VocabularyKind::Unigram { character_map, merge_spaces: normalizer.merges_spaces }
        } else {
            VocabularyKind::SentencePiece
        };
        let mut vocabulary = Self { add_space_prefix: normalizer.adds_space, ..Self::new(kind, pieces) };
        vocabulary.add_tokens(config);
        vocabulary.take_special(config);
        Ok(vocabulary)
    }

    /// Adds the tokens of a config to the vocabulary, after its last piece or in place of existing
    /// pieces.
    pub(crate) fn add_tokens(&mut self, config: &Value) {
        let Some(added) = config.get("added_tokens_decoder").and_then(Value::as_object) else { return };
        let mut added: Vec<(usize, &Value)> =
            added.iter().filter_map(|(id, token)| Some((id.parse().ok()?, token))).collect();
        added.sort_by_key(|(id, _)| *id);
        for (id, token) in added {
            let Some(text) = token.get("content").and_then(Value::as_str) else { continue };
            let is_special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
            let kind = if is_special { PieceKind::Control } else { PieceKind::UserDefined };
            let piece = VocabularyEntry { text: text.to_owned(), score: 0.0, kind };
            // A token that would leave a gap is skipped, because its row in the embedding is
            // unknown.
            let is_next = id == self.pieces.len();
            match self.pieces.get_mut(id) {
                Some(own) if own.kind == PieceKind::Unknown => {}
                Some(own) => *own = piece,
                None if is_next => self.pieces.push(piece),
                None => {}
            }
        }
    }

    /// Sets the tokens that begin and end texts, from a config or else by their usual names.
    pub(crate) fn take_special(&mut self, config: &Value) {
        let named = special_tokens::variables(config);
        let id = |role: &str, usual: &str| {
            let text = named.get(role).and_then(Value::as_str).unwrap_or(usual);
            self.pieces.iter().position(|piece| piece.text == text).and_then(|at| u32::try_from(at).ok())
        };
        let (bos, eos, unknown) = (id("bos_token", "<s>"), id("eos_token", "</s>"), id("unk_token", "<unk>"));
        let flag = |key: &str, usual: bool| config.get(key).and_then(Value::as_bool).unwrap_or(usual);
        let usual = self.usual_bos();
        (self.bos, self.eos, self.unknown) = (bos, eos, unknown);
        self.ends = eos.into_iter().collect();
        self.add_bos = flag("add_bos_token", usual);
        self.add_eos = flag("add_eos_token", matches!(self.kind, VocabularyKind::Unigram { .. }));
    }
}

/// How texts are normalized.
struct Normalizer<'a> {
    character_map: &'a [u8],
    adds_space: bool,
    merges_spaces: bool,
}

impl Default for Normalizer<'_> {
    fn default() -> Self {
        Self { character_map: &[], adds_space: true, merges_spaces: true }
    }
}

impl<'a> Normalizer<'a> {
    fn read(raw: &'a [u8]) -> Option<Self> {
        let mut normalizer = Self::default();
        for field in MessageFields(raw) {
            match field? {
                (2, Field::Bytes(map)) => normalizer.character_map = map,
                (3, Field::Number(flag)) => normalizer.adds_space = flag != 0,
                (4, Field::Number(flag)) => normalizer.merges_spaces = flag != 0,
                _ => {}
            }
        }
        Some(normalizer)
    }
}

fn piece(raw: &[u8]) -> Option<VocabularyEntry> {
    let (mut text, mut score, mut kind) = (String::new(), 0.0, PieceKind::Normal);
    for field in MessageFields(raw) {
        match field? {
            (1, Field::Bytes(bytes)) => text = String::from_utf8_lossy(bytes).into_owned(),
            (2, Field::Fixed(bits)) => score = f32::from_bits(bits),
            (3, Field::Number(id)) => kind = PieceKind::from_id(id),
            _ => {}
        }
    }
    Some(VocabularyEntry { text, score, kind })
}

/// Returns the last number of a field in a message, or `usual` if the field is missing; `None` if
/// the message is malformed.
fn number(raw: &[u8], wanted: u64, usual: u64) -> Option<u64> {
    let mut found = usual;
    for field in MessageFields(raw) {
        if let (number, Field::Number(value)) = field?
            && number == wanted
        {
            found = value;
        }
    }
    Some(found)
}

/// Value of a field.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Four bytes. Fields of eight bytes do not occur in the messages that are read here.
    Fixed(u32),
    Other,
}

/// Iterator over the fields of a message with their numbers. It yields `None` for a malformed
/// field, then ends.
struct MessageFields<'a>(&'a [u8]);

impl<'a> Iterator for MessageFields<'a> {
    type Item = Option<(u64, Field<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> MessageFields<'a> {
    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Field::Number(self.varint()?),
            1 => self.take(8).map(|_| Field::Other)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Fixed(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((key >> 3, value))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bytes(number: u8, value: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(value.len()).expect("short")], value].concat()
    }

    fn written(pieces: &[(&str, f32, u8)], model_type: u8) -> Vec<u8> {
        let piece = |(text, score, kind): &(&str, f32, u8)| {
            let own = [bytes(1, text.as_bytes()), vec![0x15], score.to_le_bytes().to_vec(), vec![0x18, *kind]].concat();
            bytes(1, &own)
        };
        let pieces: Vec<u8> = pieces.iter().flat_map(piece).collect();
        [pieces, bytes(2, &[0x18, model_type]), bytes(3, &[0x18, 0])].concat()
    }

    #[test]
    fn pieces_and_settings_are_read() {
        let raw =
            written(&[("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("▁a", -1.5, 1), ("<0x41>", 0.0, 6)], 2);
        let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": true,
            "added_tokens_decoder": {"5": {"content": "<|x|>", "special": true}, "1": {"content": "<s>", "special": true}}});
        let vocabulary = Vocabulary::of_sentence_piece(&raw, &config).expect("a vocabulary");
        assert_eq!(vocabulary.kind, VocabularyKind::SentencePiece);
        assert_eq!((vocabulary.bos, vocabulary.eos, vocabulary.unknown), (Some(1), Some(2), Some(0)));
        assert_eq!((vocabulary.add_bos, vocabulary.add_eos, vocabulary.add_space_prefix), (true, false, false));
        assert_eq!(
            vocabulary.pieces[3],
            VocabularyEntry { text: "▁a".to_owned(), score: -1.5, kind: PieceKind::Normal }
        );
        assert_eq!((vocabulary.pieces[4].kind, vocabulary.pieces[5].kind), (PieceKind::Byte, PieceKind::Control));
    }

    #[test]
    fn what_is_no_model_is_refused() {
        let whole = written(&[("a", 0.0, 1)], 1);
        for raw in [&b"IQ== 0\nIg== 1\n"[..], b"", &whole[..whole.len() - 1], &[0xff; 40]] {
            assert!(Vocabulary::of_sentence_piece(raw, &Value::Null).is_err(), "{raw:?}");
        }
    }
}
