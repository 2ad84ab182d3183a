//! BPE from a GGUF vocabulary: of bytes, or of text.
//!
//! How text is split before merging has a name in the file, `tokenizer.ggml.pre`, and patterns in the table
//! of `vocabulary`.

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::Replace;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, DecoderWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer, decoders};
use vocabulary::pre_tokenizer::{self, Spelling};
use vocabulary::{PieceKind, Vocabulary, VocabularyKind};

use super::pieces::SPACE;
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
    let model = BPE::builder().vocab_and_merges(ids, merges).ignore_merges(split.ignore_merges);
    let model = model.byte_fallback(split.spelling == Spelling::Text).build().map_err(Error::tokenizer)?;
    let mut tokenizer = Tokenizer::new(model);
    let mut steps = splits(split.patterns)?;
    match split.spelling {
        Spelling::Bytes => {
            steps.push(PreTokenizerWrapper::from(ByteLevel::new(false, false, false)));
            tokenizer.with_decoder(Some(ByteLevel::new(false, false, false)));
        }
        Spelling::Text => {
            let spaces = Replace::new(" ", SPACE).map_err(Error::tokenizer)?;
            tokenizer.with_normalizer(Some(spaces)).map_err(Error::tokenizer)?;
            let decoders = vec![
                DecoderWrapper::from(Replace::new(SPACE, " ").map_err(Error::tokenizer)?),
                DecoderWrapper::from(ByteFallback::new()),
                DecoderWrapper::from(Fuse::new()),
            ];
            tokenizer.with_decoder(Some(decoders::sequence::Sequence::new(decoders)));
        }
    }
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
    tokenizer.add_tokens(added).map_err(Error::tokenizer)?;
    Ok(tokenizer)
}

fn splits(patterns: &[&str]) -> Result<Vec<PreTokenizerWrapper>, Error> {
    let split = |pattern: &&str| {
        let pattern = SplitPattern::Regex((*pattern).to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(Error::tokenizer)?;
        Ok(PreTokenizerWrapper::from(split))
    };
    patterns.iter().map(split).collect()
}
