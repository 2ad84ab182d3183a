//! What rules ask besides the name.

use serde::Deserialize;

use super::survey::{Place, Survey};

/// A matrix below this many elements is not worth it.
const SMALL: u64 = 4096;

/// Something that holds for a tensor in its model, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Condition {
    /// Fewer than 4096 elements.
    Small,
    /// There is no output matrix: the embedding is it.
    Tied,
    /// The first and the last eighth of the layers, and every third between.
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
    /// 80 layers with grouped queries: Llama 2 70B and those of its shape.
    #[serde(rename = "size_70b")]
    Size70b,
    Falcon,
    NotFalcon,
}

impl Condition {
    /// Whether it holds. `elements` is their number in the tensor.
    pub(super) fn holds(self, survey: &Survey, place: Place, elements: u64) -> bool {
        let Place { index, count } = place;
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
