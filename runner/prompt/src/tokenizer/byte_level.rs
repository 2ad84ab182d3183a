//! Byte-level BPE from a GGUF vocabulary.
//!
//! How text is split before merging has a name in the file, `tokenizer.ggml.pre`; the patterns are llama.cpp's
//! (`llama-vocab.cpp`).

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer};

use crate::{Error, PieceKind, Vocabulary, VocabularyKind};

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SINGLE_DIGITS: &str = r"\p{N}";

/// The patterns of a pre-tokenizer, applied one after the other, and whether a whole word that is a token is never cut.
fn patterns(name: &str) -> Result<(&'static [&'static str], bool), Error> {
    match name {
        "gpt-2" | "gpt2" | "phi-2" | "jina-es" | "jina-de" | "mpt" | "olmo" | "jais" | "default" | "" => {
            Ok((&[GPT2], false))
        }
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
            Ok((&[SINGLE_DIGITS, GPT2], false))
        }
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "pixtral" => Ok((&[LLAMA3], true)),
        "dbrx" | "smaug-bpe" => Ok((&[LLAMA3], false)),
        "qwen2" | "stablelm2" | "deepseek-r1-qwen" | "megrez" => Ok((&[QWEN2], false)),
        other => Err(Error::tokenizer(format!("the pre-tokenizer `{other}` is not known yet"))),
    }
}

pub(super) fn build(vocabulary: Vocabulary) -> Result<Tokenizer, Error> {
    let VocabularyKind::ByteLevel { pre_tokenizer, merges } = vocabulary.kind else {
        return Err(Error::tokenizer("it is not byte-level BPE"));
    };
    let (patterns, ignore_merges) = patterns(&pre_tokenizer)?;
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
    let model =
        BPE::builder().vocab_and_merges(ids, merges).ignore_merges(ignore_merges).build().map_err(Error::tokenizer)?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer_of(patterns)?));
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
