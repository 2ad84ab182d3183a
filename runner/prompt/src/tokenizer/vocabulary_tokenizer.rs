//! Tokenizers of GGUF vocabularies without a list of merges. Special tokens are extracted first;
//! the vocabulary's model tokenizes the text between them.

use vocabulary::{TokenTable, Vocabulary, VocabularyKind};

use super::pieces::{Fragment, Pieces, SPACE};
use super::sentencepiece::SentencePiece;
use super::unigram::Unigram;
use super::wordpiece::WordPiece;
use super::{Around, Special};
use crate::Error;

/// A tokenizer over the pieces of a vocabulary.
#[derive(Debug)]
pub(super) struct VocabularyTokenizer {
    pieces: Pieces,
    around: Around,
    model: VocabularyModel,
    /// Whether the tokenizer puts a space before every text, which the decoder removes.
    add_space_prefix: bool,
}

#[derive(Debug)]
enum VocabularyModel {
    /// BPE by scores; a space is put before a text and after special tokens.
    Scores(Box<SentencePiece>),
    Words(WordPiece),
    Likeliest(Unigram),
}

impl VocabularyTokenizer {
    pub(super) fn new(table: TokenTable, vocabulary: Vocabulary) -> Result<Self, Error> {
        let around = Around::of(&vocabulary);
        let Vocabulary { kind, unknown, add_space_prefix, .. } = vocabulary;
        let pieces = Pieces::new(table)?;
        let model = match kind {
            VocabularyKind::SentencePiece => VocabularyModel::Scores(Box::new(SentencePiece::new(&pieces, unknown))),
            VocabularyKind::WordPiece { lowercase, strip_accents } => {
                VocabularyModel::Words(WordPiece::new(lowercase, strip_accents, unknown))
            }
            VocabularyKind::Unigram { character_map, merge_spaces } => VocabularyModel::Likeliest(Unigram::new(
                &pieces,
                &character_map,
                merge_spaces,
                add_space_prefix,
                unknown,
            )?),
            VocabularyKind::ByteLevel { .. } | VocabularyKind::Other(_) => {
                return Err(Error::tokenizer("the tokenizer model is not supported here"));
            }
        };
        Ok(Self { pieces, around, model, add_space_prefix })
    }

    pub(super) fn size(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.pieces.id(text)
    }

    pub(super) fn piece(&self, id: u32) -> Option<&str> {
        self.pieces.get(id).map(|piece| piece.text)
    }

    /// Returns the special tokens around texts.
    pub(super) fn around(&self) -> Around {
        self.around
    }

    pub(super) fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>, Error> {
        let around = if special.add { self.around } else { Around::default() };
        let mut out = Vec::from_iter(around.before);
        let mut prefix = self.add_space_prefix;
        for fragment in self.pieces.fragments(text, special.parse) {
            match fragment {
                Fragment::Atom(id) => {
                    out.push(id);
                    prefix = self.add_space_prefix;
                }
                Fragment::Text(text) => {
                    match &self.model {
                        VocabularyModel::Scores(model) => {
                            let space = if prefix { SPACE } else { "" };
                            model.cut(&self.pieces, &format!("{space}{}", text.replace(' ', SPACE)), &mut out);
                        }
                        VocabularyModel::Words(model) => model.cut(&self.pieces, text, &mut out)?,
                        VocabularyModel::Likeliest(model) => model.cut(&self.pieces, text, &mut out)?,
                    }
                    prefix = false;
                }
            }
        }
        out.extend(around.after);
        Ok(out)
    }

    /// Returns the bytes of a token. Control pieces have none unless `with_control` is true.
    pub(super) fn bytes(&self, id: u32, with_control: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.pieces.decode(id, with_control, &mut bytes);
        bytes
    }

    /// Decodes tokens to text; bytes that are not UTF-8 become U+FFFD. The space that was put
    /// before the text is removed.
    pub(super) fn decode(&self, ids: &[u32], with_control: bool) -> String {
        let mut bytes = Vec::new();
        for (index, id) in ids.iter().enumerate() {
            self.pieces.decode(*id, with_control, &mut bytes);
            if index == 0 && self.add_space_prefix && bytes.first() == Some(&b' ') {
                bytes.remove(0);
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::pieces::table;
    use vocabulary::{PieceKind, VocabularyEntry};

    fn piece(text: &str, score: f32, kind: PieceKind) -> VocabularyEntry {
        VocabularyEntry { text: text.to_owned(), score, kind }
    }

    fn texts(tokenizer: &VocabularyTokenizer, ids: &[u32]) -> Vec<String> {
        ids.iter().map(|id| tokenizer.piece(*id).expect("id").to_owned()).collect()
    }

    fn own(vocabulary: Vocabulary) -> Result<VocabularyTokenizer, Error> {
        VocabularyTokenizer::new(table(&vocabulary), vocabulary)
    }

    const PLAIN: Special = Special { add: false, parse: false };

    #[test]
    fn merges_by_score() {
        let mut pieces = vec![
            piece("<unk>", 0.0, PieceKind::Unknown),
            piece("<s>", 0.0, PieceKind::Control),
            piece("[img]", 0.0, PieceKind::UserDefined),
        ];
        for (text, score) in
            [("\u{2581}", -1.0), ("a", -2.0), ("b", -3.0), ("ab", -5.0), ("bc", -4.0), ("c", -6.0), ("\u{2581}a", -7.0)]
        {
            pieces.push(piece(text, score, PieceKind::Normal));
        }
        pieces.extend((0..=255).map(|byte: u8| piece(&format!("<0x{byte:02X}>"), 0.0, PieceKind::Byte)));
        let tokenizer = own(Vocabulary {
            unknown: Some(0),
            bos: Some(1),
            add_bos: true,
            add_space_prefix: true,
            ..Vocabulary::new(VocabularyKind::SentencePiece, pieces)
        })
        .expect("a tokenizer");
        let cut = |text: &str, special| texts(&tokenizer, &tokenizer.encode(text, special).expect("tokens"));
        assert_eq!(cut("abc", PLAIN), ["\u{2581}a", "bc"], "bc has the better score than ab");
        assert_eq!(cut("é", PLAIN), ["\u{2581}", "<0xC3>", "<0xA9>"]);
        assert_eq!(cut("<s>", Special { add: true, parse: true }), ["<s>", "<s>"]);
        assert_eq!(cut("b[img]b", PLAIN), ["\u{2581}", "b", "[img]", "\u{2581}", "b"]);
        assert!(cut("", PLAIN).is_empty());
        assert!(!cut("<s>", PLAIN).contains(&"<s>".to_owned()), "text never becomes a control piece");
    }

    #[test]
    fn words_of_any_length_are_cut() {
        let pieces = ["[UNK]", "\u{2581}a", "a", "b"].iter().map(|text| piece(text, 0.0, PieceKind::Normal)).collect();
        let kind = VocabularyKind::WordPiece { lowercase: true, strip_accents: true };
        let tokenizer = own(Vocabulary { unknown: Some(0), ..Vocabulary::new(kind, pieces) }).expect("a tokenizer");
        let cut = |text: &str| tokenizer.encode(text, PLAIN).expect("tokens");
        assert_eq!(cut("Áb b"), [1, 3, 0], "no word begins with b");
        assert_eq!(cut(&"a".repeat(300)).len(), 300, "BERT itself gives up at a hundred");
    }

    #[test]
    fn a_broken_table_of_characters_is_told() {
        let table = |raw: &[u8]| {
            let kind = VocabularyKind::Unigram { character_map: raw.to_vec(), merge_spaces: false };
            let pieces = vec![piece("a", -1.0, PieceKind::Normal)];
            own(Vocabulary { unknown: None, ..Vocabulary::new(kind, pieces) })
                .and_then(|tokenizer| tokenizer.encode("a", PLAIN))
        };
        assert_eq!(table(&[]).expect("none"), [0]);
        for raw in [&[1u8, 0][..], &[8, 0, 0, 0, 1, 2], &[4, 0, 0, 0, 0, 0, 0, 0]] {
            assert!(table(raw).expect_err("cut off").to_string().contains("cut off"));
        }
        // From the root, `a` leads to a unit that ends a key. Its value is a position beyond the
        // texts, or a text without an end.
        let node = u32::from(b'a');
        let leads = |value: u32, texts: &[u8]| {
            let mut units = vec![0u32; 128];
            units[node as usize] = node | 1 << 8 | 1 << 10;
            units[(node ^ 1) as usize] = value;
            let units: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
            [&(units.len() as u32).to_le_bytes()[..], &units, texts].concat()
        };
        assert_eq!(table(&leads(0, b"a\0")).expect("itself"), [0]);
        for raw in [leads(9, b"a\0"), leads(0, b"a"), leads(0, &[b'a'; 5000])] {
            assert!(table(&raw).expect_err("damaged").to_string().contains("damaged"));
        }
    }
}
