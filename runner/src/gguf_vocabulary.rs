//! The vocabulary and special tokens of a kept GGUF header.

use anyhow::{Context, Result, bail, ensure};
use formats::Gguf;
use prompt::{Piece, PieceKind, Vocabulary, VocabularyKind};

/// Texts of control tokens that end a turn. Files name one of them as EOS and say nothing of the others.
const ENDS: [&str; 8] =
    ["<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "<|eom_id|>", "<|end|>", "<EOT>"];

/// Texts of control tokens that begin a turn.
const BEGINS: [&str; 4] = ["<|im_start|>", "<|start_header_id|>", "<|begin_of_text|>", "<start_of_turn>"];

/// Pre-tokenizers whose models begin with BOS where the file does not say.
const WITH_BOS: [&str; 5] = ["llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"];

/// Reads a vocabulary.
pub(crate) fn read(gguf: &Gguf<'_>) -> Result<Vocabulary> {
    let texts = gguf.array("tokenizer.ggml.tokens").context("the GGUF header has no `tokenizer.ggml.tokens`")?;
    let mut pieces: Vec<Piece> = texts
        .iter()
        .map(|text| {
            let text = String::from_utf8_lossy(text.as_bytes().unwrap_or_default()).into_owned();
            Piece { text, score: 0.0, kind: PieceKind::Normal }
        })
        .collect();
    if let Some(kinds) = gguf.array("tokenizer.ggml.token_type") {
        ensure!(kinds.len() == texts.len(), "{} token types for {} tokens", kinds.len(), texts.len());
        for (piece, kind) in pieces.iter_mut().zip(kinds.iter()) {
            piece.kind = PieceKind::from_id(kind.as_u64().unwrap_or(1));
        }
    }
    // Some published files give these the type of text.
    for piece in
        pieces.iter_mut().filter(|piece| ENDS.contains(&piece.text.as_str()) || BEGINS.contains(&piece.text.as_str()))
    {
        piece.kind = PieceKind::Control;
    }
    let id = |key: &str| gguf.unsigned(&format!("tokenizer.ggml.{key}_token_id")).map(|id| id as u32);
    let flag = |key: &str| gguf.flag(&format!("tokenizer.ggml.{key}"));
    let model = gguf.text("tokenizer.ggml.model").unwrap_or_default();
    let sentence_piece = model == "llama";
    let pre_tokenizer = gguf.text("tokenizer.ggml.pre").unwrap_or_default();
    let kind = match model {
        "gpt2" => VocabularyKind::ByteLevel { pre_tokenizer: pre_tokenizer.to_owned(), merges: merges(gguf)? },
        "llama" => {
            scores(gguf, &mut pieces)?;
            VocabularyKind::SentencePiece
        }
        other => bail!("the tokenizer model `{other}` is not known yet; expected gpt2 or llama"),
    };
    Ok(Vocabulary {
        kind,
        pieces,
        bos: id("bos"),
        eos: id("eos"),
        unknown: id("unknown"),
        add_bos: flag("add_bos_token").unwrap_or(sentence_piece || WITH_BOS.contains(&pre_tokenizer)),
        add_eos: flag("add_eos_token").unwrap_or(false),
        add_space_prefix: flag("add_space_prefix").unwrap_or(sentence_piece),
    })
}

fn merges(gguf: &Gguf<'_>) -> Result<Vec<String>> {
    let merges = gguf.array("tokenizer.ggml.merges").context("the GGUF header has no `tokenizer.ggml.merges`")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(merges.iter().map(|merge| text(merge.as_bytes().unwrap_or_default())).collect())
}

fn scores(gguf: &Gguf<'_>, pieces: &mut [Piece]) -> Result<()> {
    let scores = gguf.array("tokenizer.ggml.scores").context("the GGUF header has no `tokenizer.ggml.scores`")?;
    ensure!(scores.len() == pieces.len() as u64, "{} scores for {} tokens", scores.len(), pieces.len());
    for (piece, score) in pieces.iter_mut().zip(scores.iter()) {
        piece.score = score.as_f64().unwrap_or(0.0) as f32;
    }
    Ok(())
}

/// The tokens that end a generation.
pub(crate) fn ends(gguf: &Gguf<'_>, vocabulary: &Vocabulary) -> Vec<u32> {
    let named = ["eos", "eot", "eom"]
        .into_iter()
        .filter_map(|key| gguf.unsigned(&format!("tokenizer.ggml.{key}_token_id")).map(|id| id as u32));
    let known = (0..).zip(&vocabulary.pieces).filter_map(|(id, piece)| {
        (piece.kind == PieceKind::Control && ENDS.contains(&piece.text.as_str())).then_some(id)
    });
    let mut ends: Vec<u32> = named.chain(known).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}
