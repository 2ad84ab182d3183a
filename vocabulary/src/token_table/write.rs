//! Writing token tables.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use super::layout::{FREE, HEAD, Head, MOST_TOKENS, find, number, pair, seal};
use super::{Settings, Token, TokenTable, id_in};
use crate::{Error, PieceKind, Vocabulary, VocabularyKind};

impl TokenTable {
    /// Lays out the vocabulary of a GGUF file. Returns the bytes of a table.
    ///
    /// # Errors
    /// A merge is not a pair of tokens.
    pub fn of_vocabulary(mut vocabulary: Vocabulary) -> Result<Vec<u8>, Error> {
        let pieces = std::mem::take(&mut vocabulary.pieces);
        let merges = match &mut vocabulary.kind {
            VocabularyKind::ByteLevel { merges, .. } => std::mem::take(merges),
            _ => Vec::new(),
        };
        let scored = matches!(vocabulary.kind, VocabularyKind::SentencePiece | VocabularyKind::Unigram { .. });
        // For duplicate texts, libraries that read BPE use the last id, SentencePiece the first.
        let last_counts = matches!(vocabulary.kind, VocabularyKind::ByteLevel { .. });
        let mut tokens = TokenSections::with_capacity(pieces.len(), scored)?;
        for piece in &pieces {
            tokens.push(Some(Token { text: &piece.text, score: piece.score, kind: piece.kind }))?;
        }
        let mut writer = Writer::new(tokens, last_counts);
        writer.merges = Slots::new(merges.len(), FREE);
        for (rank, merge) in (0..).zip(&merges) {
            writer.merge(rank, parted(merge).ok_or_else(|| Error(format!("merge `{merge}` is not a pair")))?)?;
        }
        writer.finish(&Settings::Gguf(Box::new(vocabulary)))
    }

    /// Lays out the BPE model of a `tokenizer.json`, from texts by id and pairs, best first.
    pub(super) fn of_bpe(
        texts: &[Option<impl AsRef<str>>],
        merges: &[(impl AsRef<str>, impl AsRef<str>)],
        settings: &Settings,
    ) -> Result<Vec<u8>, Error> {
        let mut tokens = TokenSections::with_capacity(texts.len(), false)?;
        for text in texts {
            let token = |text| Token { text, score: 0.0, kind: PieceKind::Normal };
            tokens.push(text.as_ref().map(AsRef::as_ref).map(token))?;
        }
        let mut writer = Writer::new(tokens, true);
        writer.merges = Slots::new(merges.len(), FREE);
        for (rank, (left, right)) in (0..).zip(merges) {
            writer.merge(rank, (left.as_ref(), right.as_ref()))?;
        }
        writer.finish(settings)
    }
}

/// Splits a merge at the space between its two texts; neither is empty.
fn parted(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let space = first + merge[first..].find(' ')?;
    Some((&merge[..space], &merge[space + 1..])).filter(|(_, right)| !right.is_empty())
}

/// Slots of a hash table, at most half of them used.
struct Slots<const SIZE: usize>(Vec<[u8; SIZE]>);

impl<const SIZE: usize> Slots<SIZE> {
    fn new(entries: usize, free: [u8; SIZE]) -> Self {
        Self(if entries == 0 { Vec::new() } else { vec![free; (entries * 2).next_power_of_two()] })
    }
}

/// The sections that have one item for each id.
#[derive(Default)]
struct TokenSections {
    texts: Vec<u8>,
    ends: Vec<u8>,
    kinds: Vec<u8>,
    scores: Vec<u8>,
    scored: bool,
}

impl TokenSections {
    fn with_capacity(tokens: usize, scored: bool) -> Result<Self, Error> {
        if tokens >= MOST_TOKENS as usize {
            return Err(Error(format!("{tokens} tokens are too many")));
        }
        let texts = Vec::with_capacity(tokens * 8);
        Ok(Self {
            texts,
            ends: Vec::with_capacity(tokens * 4),
            kinds: Vec::with_capacity(tokens),
            scored,
            ..Self::default()
        })
    }

    /// Adds the token of the next id, or an unused id.
    fn push(&mut self, token: Option<Token<'_>>) -> Result<(), Error> {
        if let Some(token) = token {
            self.texts.extend(token.text.as_bytes());
        }
        let end =
            u32::try_from(self.texts.len()).map_err(|_| Error("the texts of its tokens exceed 4 GiB".to_owned()))?;
        self.ends.extend(end.to_le_bytes());
        self.kinds.push(token.map_or(0, |token| token.kind as u8));
        if self.scored {
            self.scores.extend(token.map_or(0.0, |token| token.score).to_le_bytes());
        }
        Ok(())
    }

    fn text(&self, id: u32) -> Option<&[u8]> {
        let end = |id: u32| number(&self.ends, id as usize * 4).map(|end| end as usize);
        let start = if id == 0 { 0 } else { end(id - 1)? };
        self.texts.get(start..end(id)?)
    }
}

struct Writer {
    tokens: TokenSections,
    seed: u64,
    count: u64,
    ids: Slots<4>,
    merges: Slots<16>,
    /// Buffer for the merged text.
    both: String,
}

impl Writer {
    fn new(tokens: TokenSections, last_counts: bool) -> Self {
        let count = tokens.kinds.len();
        let ids = Slots::new(count.max(1), [0; 4]);
        let seed = RandomState::new().hash_one(count);
        let mut own = Self { tokens, seed, count: 0, ids, merges: Slots(Vec::new()), both: String::new() };
        for id in 0..count as u32 {
            if own.tokens.kinds[id as usize] == 0 {
                continue;
            }
            let Some(slot) = own.tokens.text(id).and_then(|text| own.slot(text)) else { continue };
            let is_new = id_in(own.ids.0[slot]).is_none();
            own.count += u64::from(is_new);
            if is_new || last_counts {
                own.ids.0[slot] = (id + 1).to_le_bytes();
            }
        }
        own
    }

    fn slot(&self, text: &[u8]) -> Option<usize> {
        find(&self.ids.0, self.seed, text, |slot| Some(self.tokens.text(id_in(*slot)?)? == text))
    }

    fn id(&self, text: &str) -> Result<u32, Error> {
        let id = self.slot(text.as_bytes()).and_then(|slot| id_in(self.ids.0[slot]));
        id.ok_or_else(|| Error(format!("a merge has `{text}`, which is not in the vocabulary")))
    }

    fn merge(&mut self, rank: u32, (left, right): (&str, &str)) -> Result<(), Error> {
        self.both.clear();
        self.both.extend([left, right]);
        let (left, right, both) = (self.id(left)?, self.id(right)?, self.id(&self.both)?);
        let pair = pair(left, right);
        let own = |slot: &[u8; 16]| (*slot != FREE).then(|| slot[..8] == pair);
        // A slot is always found, because at least half of them are free. For duplicate pairs, the
        // last one counts, as in the libraries that read BPE.
        if let Some(slot) = find(&self.merges.0, self.seed, &pair, own) {
            let slot = &mut self.merges.0[slot];
            slot[..8].copy_from_slice(&pair);
            slot[8..12].copy_from_slice(&rank.to_le_bytes());
            slot[12..].copy_from_slice(&both.to_le_bytes());
        }
        Ok(())
    }

    fn finish(self, settings: &Settings) -> Result<Vec<u8>, Error> {
        let settings = serde_json::to_vec(settings).map_err(|error| Error(error.to_string()))?;
        let sections = [
            &settings,
            &self.tokens.texts,
            &self.tokens.ends,
            &self.tokens.kinds,
            &self.tokens.scores,
            self.ids.0.as_flattened(),
            self.merges.0.as_flattened(),
        ];
        let size = HEAD + sections.iter().map(|section| section.len() + 8).sum::<usize>();
        let mut out = Vec::with_capacity(size);
        out.resize(HEAD, 0);
        let mut put = |section: &[u8]| -> Range<usize> {
            out.resize(out.len().next_multiple_of(8), 0);
            let start = out.len();
            out.extend(section);
            start..out.len()
        };
        let [settings, texts, ends, kinds, scores, ids, merges] = sections.map(&mut put);
        let Self { seed, count, .. } = self;
        let head = Head { seed, count, settings, texts, ends, kinds, scores, ids, merges };
        out[..HEAD].copy_from_slice(&head.write());
        seal(&mut out);
        Ok(out)
    }
}
