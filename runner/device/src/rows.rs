//! Operations on rows of activations: norms, elementwise maps, rounding to 8 bits.

use anyhow::{Result, bail, ensure};
use architectures::{Activation, NormKind};
use candle_core::Tensor;

use crate::arguments::{Address, MapArguments, NormArguments, limit, number};
use crate::machine::{GpuRuntime, Grid, Memory};

/// Number of elements that share a scale when they are rounded.
pub(crate) const RUN: usize = 32;
/// Number of threads in a block of `map_rows`.
const MAP_THREADS: usize = 256;
/// Greatest number of threads in a block of `norm_rows`.
const MOST_THREADS: usize = 1024;

/// A norm: `normed(x) · weight + bias`.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Kind of the norm.
    pub kind: NormKind,
    /// Number of elements that are normalized together.
    pub width: usize,
    /// `[weight_rows, width]`; the runs of a row alternate among the weights.
    pub weight: &'a Tensor,
    /// `[width]`.
    pub bias: Option<&'a Tensor>,
    /// Added to the mean square.
    pub epsilon: f32,
}

impl Norm<'_> {
    /// Returns whether this norm can follow another norm of rows of this width in the same launch.
    pub fn follows(&self, width: usize) -> bool {
        self.kind == NormKind::Rms && self.width == width && self.bias.is_none() && self.weight.elem_count() == width
    }
}

/// Result of a norm.
#[derive(Debug)]
pub enum NormOutput {
    /// Rows of float32.
    Rows(Tensor),
    /// Rounded rows.
    Rounded(Rounded),
}

/// Rows of activations that are rounded to 8 bits in runs of 32.
#[derive(Debug)]
pub struct Rounded {
    /// `[rows, columns]` of signed bytes.
    pub(crate) codes: Memory,
    /// `[rows, columns / 32, 4]` of float32: the scale, the sums of the first and of the second 16
    /// codes, padding.
    pub(crate) factors: Memory,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// An elementwise operation on rows.
#[derive(Debug)]
pub enum Map<'a, A> {
    /// `x + scale · y`.
    Add(&'a A, f32),
    /// `scale · x`.
    Scale(f32),
    /// `min(max(x, low), high)`.
    Clamp {
        /// Smallest result.
        low: f32,
        /// Largest result.
        high: f32,
    },
    /// `cap · tanh(x / cap)`.
    SoftCap(f32),
    /// `x · y`.
    Times(&'a A),
    /// `x · sigmoid(y)`; `y` may have one element for each of several runs of a row.
    Sigmoid(&'a A),
    /// `x · ln(1 + exp(y))`; `y` may have one element for each of several runs of a row.
    Softplus(&'a A),
    /// `x · silu(y)`.
    Silu(&'a A),
    /// `activation(x)`.
    Activate(Activation),
    /// `activation(x) · y`.
    Gate(Activation, &'a A),
    /// `positive · x² + 0.5 · x` if `x > 0`, else
    /// `negative · (exp(min(x, -1e-6)) - 1 - x) + 0.5 · x`.
    Xielu {
        /// Factor for positive numbers.
        positive: f32,
        /// Factor for negative numbers.
        negative: f32,
    },
    /// `sign(x) · sqrt(max(|x|, least))`; 0 if `x` is 0.
    SignedRoot(f32),
}

impl<A> Clone for Map<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

// It only borrows `A`; a derived implementation would require `A: Copy`.
impl<A> Copy for Map<'_, A> {}

impl<'a, A> Map<'a, A> {
    /// Returns the same map with `y` replaced by `of(y)`.
    ///
    /// # Errors
    /// `of` fails.
    pub fn with<B>(self, of: impl FnOnce(&'a A) -> Result<&'a B>) -> Result<Map<'a, B>> {
        Ok(match self {
            Self::Add(y, scale) => Map::Add(of(y)?, scale),
            Self::Scale(scale) => Map::Scale(scale),
            Self::Clamp { low, high } => Map::Clamp { low, high },
            Self::SoftCap(cap) => Map::SoftCap(cap),
            Self::Times(y) => Map::Times(of(y)?),
            Self::Sigmoid(y) => Map::Sigmoid(of(y)?),
            Self::Softplus(y) => Map::Softplus(of(y)?),
            Self::Silu(y) => Map::Silu(of(y)?),
            Self::Activate(activation) => Map::Activate(activation),
            Self::Gate(activation, y) => Map::Gate(activation, of(y)?),
            Self::Xielu { positive, negative } => Map::Xielu { positive, negative },
            Self::SignedRoot(least) => Map::SignedRoot(least),
        })
    }
}

impl GpuRuntime {
    /// Applies a map to every element of `x`.
    ///
    /// # Errors
    /// Shapes do not match, or the device has failed.
    #[expect(unsafe_code, reason = "a kernel is launched")]
    pub fn map_rows(&self, x: &Tensor, map: Map<'_, Tensor>) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let (kind, y, scale, activation) = match map {
            Map::Add(y, scale) => (0, Some(y), scale, None),
            Map::Scale(scale) => (1, None, scale, None),
            Map::Clamp { low, .. } => (2, None, low, None),
            Map::SoftCap(cap) => (3, None, cap, None),
            Map::Times(y) => (4, Some(y), 1.0, None),
            Map::Sigmoid(y) => (5, Some(y), 1.0, None),
            Map::Silu(y) => (6, Some(y), 1.0, None),
            Map::Activate(activation) => (7, None, 1.0, Some(activation)),
            Map::Gate(activation, y) => (8, Some(y), limit(activation), Some(activation)),
            Map::Softplus(y) => (9, Some(y), 1.0, None),
            Map::Xielu { positive, .. } => (10, None, positive, None),
            Map::SignedRoot(least) => (11, None, least, None),
        };
        let second = match map {
            Map::Xielu { negative, .. } => negative,
            Map::Clamp { high, .. } => high,
            _ => 0.0,
        };
        let shared = match y {
            Some(y) => {
                let (own_rows, runs) = y.dims2()?;
                ensure!(
                    own_rows == rows && width.is_multiple_of(runs),
                    "invariant: {rows} rows of {width}, not {:?}",
                    y.dims()
                );
                width / runs
            }
            None => 1,
        };
        let mut fresh = self.fresh([rows, width])?;
        let arguments = MapArguments {
            x: self.address(x, rows * width)?,
            y: y.map_or(Ok(Address::NONE), |y| self.address(y, rows * width / shared.max(1)))?,
            out: fresh.address(),
            count: (rows * width) as u64,
            scale,
            second,
            kind,
            activation: activation.map_or(0, number),
            shared: shared as u32,
        };
        let grid = Grid { blocks: [(rows * width).div_ceil(MAP_THREADS), 1, 1], threads: MAP_THREADS, shared: 0 };
        // SAFETY: x, y and the result have the shapes that were checked.
        unsafe { self.launch("map_rows", grid, &arguments)? };
        self.tensor(fresh)
    }

    /// Normalizes each run of `norm.width` elements of `x`. With a residual, returns
    /// `residual + scale · normed`.
    ///
    /// # Errors
    /// `x` is not float32, its rows are not whole runs, the residual has another shape, or the
    /// device has failed.
    pub fn norm(&self, norm: Norm<'_>, x: &Tensor, residual: Option<(&Tensor, f32)>) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let mut results = NormArguments::default();
        if let Some((own, scale)) = residual {
            ensure!(own.dims() == x.dims(), "invariant: {rows} rows of {width}, not {:?}", own.dims());
            (results.residual, results.scale) = (self.address(own, rows * width)?, scale);
        }
        let mut fresh = self.fresh([rows, width])?;
        results.out = fresh.address();
        self.norm_rows(Some(norm), x, results)?;
        self.tensor(fresh)
    }

    /// Computes `residual + scale · normed`, and a norm of that sum, as rows or rounded. Both norms
    /// are of whole rows; the second one is an RMS norm.
    ///
    /// # Errors
    /// As of [`norm`](Self::norm), or the second norm is of another kind.
    pub fn norm_twice(
        &self,
        norm: Norm<'_>,
        x: &Tensor,
        (residual, scale): (&Tensor, f32),
        next: Norm<'_>,
        is_rounded: bool,
    ) -> Result<(Tensor, NormOutput)> {
        let (rows, width) = x.dims2()?;
        ensure!(residual.dims() == x.dims(), "invariant: {rows} rows of {width}, not {:?}", residual.dims());
        ensure!(norm.width == width && next.follows(width), "invariant: norms of whole rows of {width}");
        let mut results = NormArguments {
            residual: self.address(residual, rows * width)?,
            scale,
            next_weight: self.address(next.weight, width)?,
            next_epsilon: next.epsilon,
            ..NormArguments::default()
        };
        let mut sum = self.fresh([rows, width])?;
        results.out = sum.address();
        let (mut fresh, mut rounded) = (None, None);
        if is_rounded {
            let room = rounded.insert(self.room_for_rounded([rows, width])?);
            (results.codes, results.factors) = (room.codes.address(), room.factors.address());
        } else {
            results.next_out = fresh.insert(self.fresh([rows, width])?).address();
        }
        self.norm_rows(Some(norm), x, results)?;
        let normed = match (fresh, rounded) {
            (Some(fresh), _) => NormOutput::Rows(self.tensor(fresh)?),
            (None, Some(rounded)) => NormOutput::Rounded(rounded),
            (None, None) => bail!("invariant: one of them is made"),
        };
        Ok((self.tensor(sum)?, normed))
    }

    /// Rounds the rows of `x` to 8 bits, after a norm if one is given.
    ///
    /// # Errors
    /// As of [`norm`](Self::norm), or rows are not whole runs of 32.
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
        let (mut weight, mut bias, mut weight_rows) = (Address::NONE, Address::NONE, 1);
        if let Some(norm) = norm {
            weight_rows = norm.weight.elem_count() / width;
            let fits = weight_rows > 0
                && norm.weight.elem_count() == weight_rows * width
                && (columns / width).is_multiple_of(weight_rows);
            ensure!(fits, "a norm of {} weights for runs of {width}", norm.weight.elem_count());
            weight = self.address(norm.weight, weight_rows * width)?;
            if let Some(own) = norm.bias {
                bias = self.address(own, width)?;
            }
        }
        let kind = norm.map_or(0, |norm| match norm.kind {
            NormKind::Rms => 1,
            NormKind::Layer => 2,
            NormKind::Factors => 3,
        });
        let arguments = NormArguments {
            x: self.address(x, rows * columns)?,
            weight,
            bias,
            epsilon: norm.map_or(0.0, |norm| norm.epsilon),
            kind,
            width: width as u32,
            weight_rows: weight_rows as u32,
            ..results
        };
        let grid = Grid { blocks: [runs, 1, 1], threads: width.next_multiple_of(RUN).min(MOST_THREADS), shared: 0 };
        // SAFETY: x has whole rows, weight and bias have the sizes that were checked, and callers
        // have allocated the results; a block computes one run.
        unsafe { self.launch("norm_rows", grid, &arguments) }
    }
}
