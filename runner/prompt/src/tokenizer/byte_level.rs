//! Byte-level BPE from a GGUF vocabulary.
//!
//! How text is split before merging has a name in the file, `tokenizer.ggml.pre`, and patterns in the table
//! of `vocabulary`.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer};
use vocabulary::{PieceKind, Vocabulary, VocabularyKind, pre_tokenizer};

use crate::Error;

pub(super) fn build(vocabulary: Vocabulary) -> Result<Tokenizer, Error> {
    let VocabularyKind::ByteLevel { pre_tokenizer, merges } = vocabulary.kind else {
        return Err(Error::tokenizer("it is not byte-level BPE"));
    };
    let split = pre_tokenizer::of_file(&pre_tokenizer)
        .ok_or_else(|| Error::tokenizer(format!("the pre-tokenizer `{pre_tokenizer}` is not known yet")))?;
    let added: Vec<AddedToken> = vocabulary
        .pieces
        .iter()
        .filter(|piece| matches!(piece.kind, PieceKind::Control | PieceKind::UserDefined | PieceKind::Unknown))
        .map(|piece| AddedToken::from(piece.text.clone(), piece.kind != PieceKind::UserDefined).normalized(false))
        .collect();
    let ids: Vocab = vocabulary.pieces.into_iter().zip(0..).map(|(piece, id)| (piece.text, id)).collect();
    let merges = merges
        .into_iter()
        .map(|merge| match merge.split_once(' ') {
            Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
            None => Err(Error::tokenizer(format!("merge `{merge}` is not a pair"))),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let model = BPE::builder()
        .vocab_and_merges(ids, merges)
        .ignore_merges(split.ignore_merges)
        .build()
        .map_err(Error::tokenizer)?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer_of(split.patterns)?));
    tokenizer.with_decoder(Some(ByteLevel::new(false, false, false)));
    tokenizer.add_tokens(added).map_err(Error::tokenizer)?;
    Ok(tokenizer)
}

fn pre_tokenizer_of(patterns: &[&str]) -> Result<Sequence, Error> {
    let mut steps = Vec::new();
    for pattern in patterns {
        let pattern = SplitPattern::Regex((*pattern).to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(Error::tokenizer)?;
        steps.push(PreTokenizerWrapper::from(split));
    }
    steps.push(PreTokenizerWrapper::from(ByteLevel::new(false, false, false)));
    Ok(Sequence::new(steps))
}
