//! BPE from a GGUF vocabulary: byte-level, or of text.
//!
//! The file names the pre-tokenizer in `tokenizer.ggml.pre`; the table of the crate `vocabulary`
//! contains its patterns.

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::normalizers::Replace;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, DecoderWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, decoders};
use vocabulary::pre_tokenizer::{self, Spelling};
use vocabulary::{PieceKind, TokenTable};

use super::bpe::{Bpe, Rules};
use super::library::{AnyModel, Library};
use super::pieces::SPACE;
use crate::Error;

/// Creates the tokenizer of a vocabulary whose pieces and merges are in a table.
pub(super) fn build(table: &TokenTable, pre_tokenizer: &str) -> Result<Library, Error> {
    let split = pre_tokenizer::of_file(pre_tokenizer)
        .ok_or_else(|| Error::tokenizer(format!("the pre-tokenizer `{pre_tokenizer}` is not known yet")))?;
    let added = |id: u32| {
        let kind = table.kind(id)?;
        let is_added = matches!(kind, PieceKind::Control | PieceKind::UserDefined | PieceKind::Unknown);
        let text = is_added.then(|| table.get(id)).flatten()?.text;
        Some(AddedToken::from(text, kind != PieceKind::UserDefined).normalized(false))
    };
    let added: Vec<AddedToken> = table.ids().filter_map(added).collect();
    let rules = Rules {
        byte_fallback: split.spelling == Spelling::Text,
        ignore_merges: split.ignore_merges,
        ..Rules::default()
    };
    let mut tokenizer = Library::new(AnyModel::Table(Bpe::new(table.clone(), rules)));
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
