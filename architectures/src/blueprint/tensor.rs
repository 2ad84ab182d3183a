//! Tensors and parts of them, and the small things that are made of them.

use serde::{Deserialize, Serialize};

use super::wire::WireTensor;

/// A tensor of the model, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WireTensor", into = "WireTensor")]
pub struct Tensor {
    /// Its canonical name.
    pub name: String,
    /// What of it is meant.
    pub view: View,
}

/// What of a stored tensor is meant: an item of a stack, then rows and columns exchanged, then some of the rows. Shapes in
/// blueprints are those of the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct View {
    /// One matrix of a stack, `[items, …]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<u64>,
    /// Rows and columns are exchanged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub transposed: bool,
    /// Some rows: a part of projections that are stored as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<Rows>,
}

/// Rows in blocks that lie apart: row `r` is the stored row `first + r / block · stride + r % block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    /// The first.
    pub first: u64,
    /// How many there are in all; a multiple of `block`.
    pub count: u64,
    /// How many lie together.
    pub block: u64,
    /// From the first row of a block to that of the next.
    pub stride: u64,
}

/// `y = x · Wᵀ + b`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Projection {
    /// What adapters call it.
    pub module: String,
    /// `[output, input]`.
    pub weight: Tensor,
    /// `[output]`.
    pub bias: Option<Tensor>,
}

impl Projection {
    /// Some of its outputs.
    #[must_use]
    pub fn rows(&self, rows: Rows) -> Self {
        let of = |tensor: &Tensor| Tensor::blocks(&tensor.name, rows);
        Self { module: self.module.clone(), weight: of(&self.weight), bias: self.bias.as_ref().map(of) }
    }
}

/// Matrices of one shape, `[output, input]` each: those of experts, or of heads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Matrices {
    /// A tensor each. The index stands for `{}` in the names.
    Each(Projection),
    /// Items of a stack `[items, …]`; the view says what of each. A bias is a row of `[items, output]`, whose elements are
    /// those that the weight's view takes of rows.
    Items(Projection),
    /// Rows of one matrix: each block of the view's rows is a matrix.
    Blocks(Tensor),
}

/// Normalization of rows, then `· (weight + offset) + bias`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Norm {
    /// What is done to a row.
    pub kind: NormKind,
    /// `[width]`.
    pub weight: Tensor,
    /// `[width]`.
    pub bias: Option<Tensor>,
    /// Added under the root.
    pub epsilon: f64,
    /// Added to the weight: 1 for Gemma's from Hugging Face, 0 for those of GGUF files, which have it in the weights.
    pub offset: f64,
}

/// A way to normalize.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + epsilon)`.
    Rms,
    /// `(x - mean(x)) / sqrt(var(x) + epsilon)`.
    Layer,
}

impl Tensor {
    /// A whole tensor.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), view: View::default() }
    }

    /// Some rows of a tensor that lie together.
    pub fn rows(name: impl Into<String>, first: u64, count: u64) -> Self {
        Self::blocks(name, Rows::run(first, count))
    }

    /// Some rows of a tensor.
    pub fn blocks(name: impl Into<String>, rows: Rows) -> Self {
        Self { name: name.into(), view: View { rows: Some(rows), ..View::default() } }
    }
}

impl View {
    /// Whether it is all of the tensor as it lies.
    pub fn is_whole(self) -> bool {
        self == Self::default()
    }
}

impl Rows {
    /// Rows that lie together.
    pub fn run(first: u64, count: u64) -> Self {
        Self { first, count, block: count, stride: count }
    }

    /// Every second row, `count` of them.
    pub fn every_second(first: u64, count: u64) -> Self {
        Self { first, count, block: 1, stride: 2 }
    }

    /// The stored row of one of them.
    pub fn stored(self, row: u64) -> u64 {
        self.first + row / self.block * self.stride + row % self.block
    }

    /// The first stored row behind all of them; `None` where that is beyond all numbers.
    pub fn end(self) -> Option<u64> {
        let blocks = self.count.checked_div(self.block)?;
        let last = blocks.checked_sub(1)?.checked_mul(self.stride)?;
        self.first.checked_add(last)?.checked_add(self.block)
    }
}

impl Matrices {
    /// The projection with that index.
    pub fn projection(&self, index: u64) -> Projection {
        match self {
            Self::Each(each) => {
                let named = |name: &str| name.replace("{}", &index.to_string());
                let tensor = |tensor: &Tensor| Tensor { name: named(&tensor.name), view: tensor.view };
                Projection {
                    module: named(&each.module),
                    weight: tensor(&each.weight),
                    bias: each.bias.as_ref().map(tensor),
                }
            }
            Self::Items(stack) => {
                let item = |tensor: &Tensor| Tensor {
                    name: tensor.name.clone(),
                    view: View { item: Some(index), ..tensor.view },
                };
                Projection {
                    module: stack.module.clone(),
                    weight: item(&stack.weight),
                    bias: stack.bias.as_ref().map(item),
                }
            }
            Self::Blocks(tensor) => {
                let rows = tensor.view.rows.map(|rows| Rows::run(rows.first + index * rows.stride, rows.block));
                let weight = Tensor { name: tensor.name.clone(), view: View { rows, ..tensor.view } };
                Projection { module: tensor.name.clone(), weight, bias: None }
            }
        }
    }

    /// The tensors as they are named here: with `{}` for indexes.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let (weight, bias) = match self {
            Self::Each(of) | Self::Items(of) => (&of.weight, of.bias.as_ref()),
            Self::Blocks(tensor) => (tensor, None),
        };
        std::iter::once(weight).chain(bias)
    }
}
