//! What is done to rows of activations by themselves: norms, rounding to 8 bits.

use anyhow::{Result, ensure};
use architectures::NormKind;
use candle_core::Tensor;

use crate::arguments::{Address, NormArguments};
use crate::machine::{Grid, Machine, Memory};

/// Elements that are rounded together.
pub(crate) const RUN: usize = 32;
/// Threads of a block that norms a row, at most.
const MOST_THREADS: usize = 1024;

/// A norm: `normed(x) · weight + bias`.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// How.
    pub kind: NormKind,
    /// Elements that are normed together.
    pub width: usize,
    /// `[turns, width]`: runs of a row take turns.
    pub weight: &'a Tensor,
    /// `[width]`.
    pub bias: Option<&'a Tensor>,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// Rows of activations that are rounded to 8 bits by runs of 32.
#[derive(Debug)]
pub struct Rounded {
    /// `[rows, columns]` of signed bytes.
    pub(crate) codes: Memory,
    /// `[rows, columns / 32, 4]` of float32: the scale, the sums of the first and of the second 16 codes, nothing.
    pub(crate) factors: Memory,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

impl Machine {
    /// Each run of `norm.width` elements of `x`, normed.
    ///
    /// # Errors
    /// `x` is not of float32, or its rows are not whole runs; the device has failed.
    pub fn norm(&self, norm: Norm<'_>, x: &Tensor) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let mut fresh = self.fresh([rows, width])?;
        self.norm_rows(Some(norm), x, NormArguments { out: fresh.address(), ..NormArguments::default() })?;
        self.tensor(fresh)
    }

    /// The rows of `x`, normed where that is said, rounded to 8 bits.
    ///
    /// # Errors
    /// The same, or rows are not whole runs of 32.
    pub fn rounded(&self, norm: Option<Norm<'_>>, x: &Tensor) -> Result<Rounded> {
        let (rows, columns) = x.dims2()?;
        let rounded = self.room_for_rounded([rows, columns])?;
        if let Some(norm) = norm {
            ensure!(norm.width == columns, "invariant: whole rows are normed before they are rounded");
        }
        let (codes, factors) = (rounded.codes.address(), rounded.factors.address());
        self.norm_rows(norm, x, NormArguments { codes, factors, ..NormArguments::default() })?;
        Ok(rounded)
    }

    pub(crate) fn room_for_rounded(&self, [rows, columns]: [usize; 2]) -> Result<Rounded> {
        ensure!(columns.is_multiple_of(RUN), "rows of {columns} are not whole runs of {RUN}");
        let factors = self.memory(rows * columns / RUN * 4 * size_of::<f32>())?;
        Ok(Rounded { codes: self.memory(rows * columns)?, factors, rows, columns })
    }

    #[expect(unsafe_code, reason = "a kernel is launched")]
    fn norm_rows(&self, norm: Option<Norm<'_>>, x: &Tensor, results: NormArguments) -> Result<()> {
        let (rows, columns) = x.dims2()?;
        let width = norm.map_or(columns, |norm| norm.width);
        ensure!(width > 0 && columns.is_multiple_of(width), "rows of {columns} are not whole runs of {width}");
        let runs = rows * columns / width;
        let (mut weight, mut bias, mut turns) = (Address::NONE, Address::NONE, 1);
        if let Some(norm) = norm {
            turns = norm.weight.elem_count() / width;
            let fits =
                turns > 0 && norm.weight.elem_count() == turns * width && (columns / width).is_multiple_of(turns);
            ensure!(fits, "a norm of {} weights for runs of {width}", norm.weight.elem_count());
            weight = self.address(norm.weight, turns * width)?;
            if let Some(own) = norm.bias {
                bias = self.address(own, width)?;
            }
        }
        let kind = norm.map_or(0, |norm| match norm.kind {
            NormKind::Rms => 1,
            NormKind::Layer => 2,
        });
        let arguments = NormArguments {
            x: self.address(x, rows * columns)?,
            weight,
            bias,
            epsilon: norm.map_or(0.0, |norm| norm.epsilon),
            kind,
            width: width as u32,
            turns: turns as u32,
            ..results
        };
        let grid = Grid { blocks: [runs, 1, 1], threads: width.next_multiple_of(RUN).min(MOST_THREADS), shared: 0 };
        // SAFETY: x is of whole rows, weight and bias of as many numbers as was seen, results as callers have made them; a block has a run.
        unsafe { self.launch("norm_rows", grid, &arguments) }
    }
}
