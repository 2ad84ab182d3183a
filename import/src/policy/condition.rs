//! Conditions of rules besides the name of a tensor.

use serde::Deserialize;

use super::survey::{CountedPosition, Survey};

/// Number of elements below which quantizing a matrix is not worthwhile.
const SMALL: u64 = 4096;

/// Condition on a tensor within its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Condition {
    /// Fewer than 4096 elements.
    Small,
    /// The model has no output matrix: the embedding is used as such.
    Tied,
    /// The layer is in the first or last eighth, or is every third one between them.
    MoreBits,
    FirstEighth,
    FirstSixteenth,
    FirstTwo,
    FirstFour,
    /// At least four query heads for each key and value head.
    #[serde(rename = "gqa_4")]
    Gqa4,
    #[serde(rename = "experts_8")]
    Experts8,
    #[serde(rename = "not_experts_8")]
    NotExperts8,
    /// 80 layers with grouped queries: Llama 2 70B and models of the same shape.
    #[serde(rename = "size_70b")]
    Size70b,
    Falcon,
    NotFalcon,
}

impl Condition {
    /// Returns whether the condition holds for a tensor with this many elements.
    pub(super) fn holds(self, survey: &Survey, place: CountedPosition, elements: u64) -> bool {
        let CountedPosition { index, count } = place;
        match self {
            Self::Small => elements < SMALL,
            Self::Tied => survey.tied,
            Self::MoreBits => more_bits(index, count),
            Self::FirstEighth => index < count / 8,
            Self::FirstSixteenth => index < count / 16,
            Self::FirstTwo => index < 2,
            Self::FirstFour => index < 4,
            Self::Gqa4 => survey.queries_per_key >= 4,
            Self::Experts8 => survey.experts == 8,
            Self::NotExperts8 => survey.experts != 8,
            Self::Size70b => survey.is_70b(),
            Self::Falcon => survey.architecture == "falcon",
            Self::NotFalcon => survey.architecture != "falcon",
        }
    }
}

/// Source of the formula: `use_more_bits` in `llama-quant.cpp` of llama.cpp.
fn more_bits(index: u64, count: u64) -> bool {
    index < count / 8 || index >= 7 * count / 8 || (index - count / 8) % 3 == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_bits_at_both_ends_and_every_third_layer_between() {
        let chosen = |count| (0..count).filter(|index| more_bits(*index, count)).collect::<Vec<_>>();
        assert_eq!(chosen(32), [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
        assert_eq!(chosen(30), [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29]);
        assert_eq!(chosen(2), [1]);
        assert_eq!(chosen(1), [0]);
    }
}
