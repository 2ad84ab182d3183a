//! Tensors, views of tensors, and small components that consist of them.

use serde::{Deserialize, Serialize};

/// Tensor of the model, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WireTensor", into = "WireTensor")]
pub struct Tensor {
    /// Canonical name.
    pub name: String,
    /// Part of the tensor that is used.
    pub view: View,
}

/// Part of a stored tensor, selected in this order: an item of a stack, transposition, a range of
/// rows. Shapes in blueprints are shapes of the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct View {
    /// Index of a matrix in a stack, `[items, …]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<u64>,
    /// Whether rows and columns are exchanged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub transposed: bool,
    /// Selected rows, for projections that are stored in one tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<Rows>,
}

/// Rows in strided blocks: row `r` is the stored row `first + r / block · stride + r % block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    /// First stored row.
    pub first: u64,
    /// Number of rows in total; a multiple of `block`.
    pub count: u64,
    /// Number of contiguous rows in a block.
    pub block: u64,
    /// Distance from the first row of a block to the first row of the next one.
    pub stride: u64,
}

/// `y = x · Wᵀ + b`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Projection {
    /// Module name that adapters use.
    pub module: String,
    /// `[output, input]`.
    pub weight: Tensor,
    /// `[output]`.
    pub bias: Option<Tensor>,
    /// Bounds of the inputs and of the outputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clamps: Option<Box<Clamps>>,
}

/// Bounds of the elements of rows before and behind a projection, one number each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clamps {
    /// Smallest and largest element before the projection.
    pub input: [Tensor; 2],
    /// Smallest and largest element behind it.
    pub output: [Tensor; 2],
}

impl Projection {
    /// Returns the projection with a part of its outputs.
    #[must_use]
    pub fn rows(&self, rows: Rows) -> Self {
        let of = |tensor: &Tensor| Tensor::blocks(&tensor.name, rows);
        let bias = self.bias.as_ref().map(of);
        Self { module: self.module.clone(), weight: of(&self.weight), bias, clamps: self.clamps.clone() }
    }
}

/// Matrices of the same shape, `[output, input]` each: of experts, or of heads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Matrices {
    /// A tensor for each matrix. `{}` in the names stands for the index.
    Each(Projection),
    /// Items of a stack `[items, …]`; the view applies to each item. A bias is a row of
    /// `[items, output]`; the rows of the weight's view select its elements.
    Items(Projection),
    /// Rows of one matrix: each block of the view's rows is a matrix.
    Blocks(Tensor),
}

/// Normalization of rows, then `· (weight + offset) + bias`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Norm {
    /// Kind of normalization.
    pub kind: NormKind,
    /// `[width]`; `None` means that all weights are 1.
    pub weight: Option<Tensor>,
    /// `[width]`.
    pub bias: Option<Tensor>,
    /// Constant that is added under the root; 0 for `Factors`.
    pub epsilon: f64,
    /// Constant that is added to the weight: 1 for Gemma's weights from Hugging Face; 0 for GGUF
    /// files, whose weights already include it.
    pub offset: f64,
}

impl Norm {
    /// Returns factors of the elements of rows, which are not normalized.
    pub(crate) fn factors(weight: Tensor) -> Self {
        Self { kind: NormKind::Factors, weight: Some(weight), bias: None, epsilon: 0.0, offset: 0.0 }
    }
}

/// Kind of normalization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + epsilon)`.
    Rms,
    /// `(x - mean(x)) / sqrt(var(x) + epsilon)`.
    Layer,
    /// `x`: nothing is normalized, the weights are factors of the elements.
    Factors,
}

impl Tensor {
    /// Returns a whole tensor.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), view: View::default() }
    }

    /// Returns a contiguous range of rows of a tensor.
    pub fn rows(name: impl Into<String>, first: u64, count: u64) -> Self {
        Self::blocks(name, Rows::run(first, count))
    }

    /// Returns selected rows of a tensor.
    pub fn blocks(name: impl Into<String>, rows: Rows) -> Self {
        Self { name: name.into(), view: View { rows: Some(rows), ..View::default() } }
    }
}

impl View {
    /// True if the view is the whole tensor in its stored form.
    pub fn is_whole(self) -> bool {
        self == Self::default()
    }
}

impl Rows {
    /// Returns a contiguous range of rows.
    pub fn run(first: u64, count: u64) -> Self {
        Self { first, count, block: count, stride: count }
    }

    /// Returns every second row, `count` in total.
    pub fn every_second(first: u64, count: u64) -> Self {
        Self { first, count, block: 1, stride: 2 }
    }

    /// Returns the stored row of a selected row.
    pub fn stored(self, row: u64) -> u64 {
        self.first + row / self.block * self.stride + row % self.block
    }

    /// Returns the first stored row after all selected rows; `None` on overflow.
    pub fn end(self) -> Option<u64> {
        let blocks = self.count.checked_div(self.block)?;
        let last = blocks.checked_sub(1)?.checked_mul(self.stride)?;
        self.first.checked_add(last)?.checked_add(self.block)
    }
}

impl Matrices {
    /// Returns the projection with this index.
    pub fn projection(&self, index: u64) -> Projection {
        match self {
            Self::Each(each) => {
                let named = |name: &str| name.replace("{}", &index.to_string());
                let tensor = |tensor: &Tensor| Tensor { name: named(&tensor.name), view: tensor.view };
                Projection {
                    module: named(&each.module),
                    weight: tensor(&each.weight),
                    bias: each.bias.as_ref().map(tensor),
                    clamps: None,
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
                    clamps: None,
                }
            }
            Self::Blocks(tensor) => {
                let rows = tensor.view.rows.map(|rows| Rows::run(rows.first + index * rows.stride, rows.block));
                let weight = Tensor { name: tensor.name.clone(), view: View { rows, ..tensor.view } };
                Projection { module: tensor.name.clone(), weight, bias: None, clamps: None }
            }
        }
    }

    /// Returns the tensors with their generic names, with `{}` for indices.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let (weight, bias) = match self {
            Self::Each(of) | Self::Items(of) => (&of.weight, of.bias.as_ref()),
            Self::Blocks(tensor) => (tensor, None),
        };
        std::iter::once(weight).chain(bias)
    }
}

/// Name of a tensor, or a name with a view.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WireTensor {
    Whole(String),
    Part { name: String, view: View },
}

impl From<Tensor> for WireTensor {
    fn from(Tensor { name, view }: Tensor) -> Self {
        if view.is_whole() { Self::Whole(name) } else { Self::Part { name, view } }
    }
}

impl From<WireTensor> for Tensor {
    fn from(wire: WireTensor) -> Self {
        match wire {
            WireTensor::Whole(name) => Self::named(name),
            WireTensor::Part { name, view } => Self { name, view },
        }
    }
}
