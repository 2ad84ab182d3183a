//! A loaded model without its decoder: its text part, and settings for embeddings and rankings.

use anyhow::Result;

use crate::picture_reader::PictureReader;
use crate::text::ranking::Ranking;
use crate::text::scorer::Scorer;
use crate::text::sentence::Sentence;
use crate::text::text_model::TextModel;

/// A loaded model without its decoder.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) text: TextModel,
    /// Number of tokens that the decoder knows.
    pub(crate) vocabulary: usize,
    /// Whether the model computes logits.
    pub(crate) generates: bool,
    /// The settings for embeddings.
    pub(crate) sentence: Sentence,
    /// The settings for rankings, or the reason why the model cannot rank.
    pub(crate) ranking: Result<Ranking>,
    /// The head that scores texts, if the model has one.
    pub(crate) scorer: Option<Scorer>,
    /// Reads pictures, or the reason why the model cannot see them.
    pub(crate) pictures: Result<PictureReader, String>,
}
