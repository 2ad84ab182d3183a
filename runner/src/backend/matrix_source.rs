//! The parts that a projection is made from: a weight, a bias, and the factors of adapters.

use architectures::Rows;

use super::Backend;
use crate::mapped::MappedTensor;

/// The parts that a projection is made from.
pub(crate) struct MatrixSource<B: Backend> {
    pub(crate) weight: WeightSource,
    /// `[output]`.
    pub(crate) bias: Option<Vec<f32>>,
    /// Factors of adapters, which add `scale · up(down(x))`.
    pub(crate) adapters: Vec<LowRank<B>>,
}

/// The source of a matrix's numbers.
#[derive(Clone, Debug)]
pub(crate) enum WeightSource {
    /// Rows of a mapped matrix.
    Mapped {
        tensor: MappedTensor,
        /// Selected rows; `None` means all.
        rows: Option<Rows>,
    },
    /// Columns of a mapped matrix, which become the rows.
    Transposed {
        tensor: MappedTensor,
        /// Selected columns; `None` means all.
        columns: Option<Rows>,
    },
    /// `[rows, columns]` in private memory.
    Numbers { numbers: Vec<f32>, shape: [usize; 2] },
}

impl WeightSource {
    /// Returns the numbers of rows and columns of the matrix.
    pub(crate) fn shape(&self) -> [usize; 2] {
        match self {
            Self::Mapped { tensor, rows } => {
                [rows.map_or(tensor.shape[0], |rows| rows.count as usize), tensor.shape[1]]
            }
            Self::Transposed { tensor, columns } => {
                [columns.map_or(tensor.shape[1], |columns| columns.count as usize), tensor.shape[0]]
            }
            Self::Numbers { shape, .. } => *shape,
        }
    }
}

/// The factors that an adapter adds to a projection.
#[derive(Debug)]
pub(crate) struct LowRank<B: Backend> {
    /// `[rank, input]`.
    pub(crate) down: B::Matrix,
    /// `[output, rank]`.
    pub(crate) up: B::Matrix,
    pub(crate) scale: f64,
}
