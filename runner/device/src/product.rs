//! Products of activations with weights, `y = x · Wᵀ + b`, with an operation on y in the same
//! kernel.

use anyhow::{Result, ensure};
use architectures::Activation;
use candle_core::Tensor;

use crate::arguments::{self, ACTIVATE, ADD, GATE, Group, ProductArguments, WRITE, limit, number};
use crate::experts::{ExpertWeights, Routes};
use crate::machine::{COUNTERS, GpuRuntime, Grid, bytes_of};
use crate::rows::{RUN, Rounded};
use crate::weight::{DeviceWeight, WeightSet, ensure_alike};

/// Number of rows of a weight and of x (at most) in a thread block, and of its threads, see
/// `products.cuh`.
const FEW_ROWS: usize = 4;
const FEW_TOKENS: usize = 8;
/// Greatest number of rows of x for which weights are read several times rather than multiplied in
/// tiles. Tiles keep a GPU busy with long prompts only.
const FEW_AT_MOST: usize = 2 * FEW_TOKENS;
const MOST_THREADS: usize = 256;
const TILE: usize = 64;
const TILE_THREADS: usize = 128;
/// Number of elements that a thread loads at once of a float row.
const EIGHT: usize = 8;

/// Weights of a product, and the operation on its result.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// Sets of up to four weights. All weights have the same layout, see [`DeviceWeight::is_like`],
    /// and sets have the same numbers of rows.
    pub sets: &'a [WeightSet<'a>],
    /// Rows of x for each set, such as an expert. Other rows of the result are not written. `None`:
    /// the only set applies to all rows.
    pub runs: Option<&'a [ExpertRows]>,
    /// Operation on y.
    pub purpose: Purpose<'a>,
    /// Whether floats are never rounded to the types of tensor cores. Set for comparisons.
    pub is_exact: bool,
}

/// Results of products.
#[derive(Debug)]
pub struct Made {
    /// `[tokens, rows]` for each weight; only one result if they are gated.
    pub rows: Vec<Tensor>,
    /// The gated result, rounded for the next product, if the kernel did so.
    pub rounded: Option<Rounded>,
}

/// Rows of x.
#[derive(Clone, Copy, Debug)]
pub enum ProductInput<'a> {
    /// `[tokens, columns]` of float32.
    Rows(&'a Tensor),
    /// Rounded rows, for weights that [need them](DeviceWeight::rounds).
    Rounded(&'a Rounded),
}

/// Rows of x for experts.
#[derive(Clone, Copy, Debug)]
pub enum ExpertInput<'a> {
    /// One row for each token.
    OfTokens(ProductInput<'a>),
    /// One row for each route, as products of experts return them.
    OfRoutes(ProductInput<'a>),
}

/// Operation on y.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// None; a result for each weight.
    Write,
    /// `activation(y)`, for one weight.
    Activate(Activation),
    /// `activation(y) · y'`, for two weights with the same number of rows.
    Gate(Activation),
    /// `residual + scale · y`, for one weight.
    Add(&'a Tensor, f32),
}

/// The rows of x of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertRows {
    /// The expert.
    pub expert: usize,
    /// The first row.
    pub first: usize,
    /// Number of rows.
    pub count: usize,
}

impl GpuRuntime {
    /// Computes products: a tensor of `[tokens, rows]` for each weight of a set, or one if they are
    /// gated.
    ///
    /// # Errors
    /// Weights differ in layout, shapes do not match, a row is out of range, or the device has
    /// failed.
    pub fn product(&self, product: Product<'_>, x: ProductInput<'_>) -> Result<Made> {
        let Product { sets, runs, purpose, is_exact } = product;
        let (like, widths) = ensure_alike(sets)?;
        let tokens = x.shape()?[0];
        let mut arguments = ProductArguments::default();
        let all = sets.iter().map(|set| self.weight_set(set)).collect::<Result<Vec<_>>>()?;
        // Uploads live until the launch; after that, the stream orders their release.
        let mut uploaded = Vec::new();
        let mut longest = tokens;
        if let Some(runs) = runs {
            // The assignment of rows differs in the next pass.
            self.cannot_be_recorded();
            let groups = groups(runs, sets.len(), tokens)?;
            longest = runs.iter().map(|run| run.count).max().unwrap_or(0);
            for bytes in [bytes_of(&all), bytes_of(&groups)] {
                uploaded.push(self.upload(bytes)?);
            }
            (arguments.sets, arguments.groups) = (uploaded[0].address(), uploaded[1].address());
        } else {
            ensure!(sets.len() == 1, "invariant: several sets have rows of their own");
            arguments.set = all[0];
        }
        let shape = Shape { rows: tokens, longest, groups: runs.map_or(1, <[_]>::len), is_exact };
        self.launch_product(arguments, (like, &widths), shape, purpose, x)
    }

    /// Computes products of experts with their rows, `[routes, rows]`.
    ///
    /// # Errors
    /// Routes are for other experts, shapes do not match, or the device has failed.
    pub fn expert_product(
        &self,
        weights: &ExpertWeights,
        routes: &Routes,
        purpose: Purpose<'_>,
        x: ExpertInput<'_>,
        is_exact: bool,
    ) -> Result<Made> {
        routes.ensure_of(weights)?;
        for memory in [&weights.sets, &routes.groups] {
            self.ensure_own(memory.owner())?;
        }
        self.note_use(|| Box::new((weights.used(), routes.used())));
        let mut arguments = ProductArguments {
            sets: weights.sets.address(),
            groups: routes.groups.address(),
            ..ProductArguments::default()
        };
        let rows = routes.rows();
        let (x, expected) = match x {
            ExpertInput::OfTokens(x) => {
                arguments.rows_of_x = routes.tokens_of_rows.address();
                (x, routes.tokens())
            }
            ExpertInput::OfRoutes(x) => (x, rows),
        };
        ensure!(x.shape()?[0] == expected, "invariant: {expected} rows, not {:?}", x.shape()?);
        // A token is routed to an expert at most once. Only the device knows the number of rows of
        // each expert.
        let shape = Shape { rows, longest: routes.tokens(), groups: routes.most_groups, is_exact };
        self.launch_product(arguments, (weights.like()?, &weights.widths), shape, purpose, x)
    }

    /// Launches the kernel for weights of one kind; the arguments have the sets and groups.
    fn launch_product(
        &self,
        mut arguments: ProductArguments,
        (like, widths): (&DeviceWeight, &[usize]),
        shape: Shape,
        purpose: Purpose<'_>,
        x: ProductInput<'_>,
    ) -> Result<Made> {
        let Shape { rows, longest, groups, is_exact } = shape;
        let columns = x.shape()?[1];
        ensure!(columns == like.columns, "invariant: rows of {}, not {columns}", like.columns);
        arguments.count = widths.len() as u32;
        (arguments.tokens, arguments.columns) = (rows as u32, columns as u32);
        self.set_input(&mut arguments, like, x)?;
        let results = self.set_purpose(&mut arguments, purpose, widths, rows)?;
        let is_few = longest <= FEW_AT_MOST || !like.kind.has_tiles || (is_exact && !like.kind.rounds);
        let (kernel, grid) = if is_few { few(like, longest) } else { tiles(like, longest) };
        let grid = Grid { blocks: [blocks(widths, purpose, is_few), grid.blocks[1], groups], ..grid };
        let fresh = results.iter().map(|width| self.fresh([rows, *width])).collect::<Result<Vec<_>>>();
        let mut fresh = fresh?;
        for (out, fresh) in arguments.out.iter_mut().zip(&mut fresh) {
            *out = fresh.address();
        }
        // Gated results of integer kernels are usually the input of another integer product.
        let gates = matches!(purpose, Purpose::Gate(_)) && is_few && like.kind.rounds;
        let counters = grid.blocks[1] * grid.blocks[2] * results[0] / RUN;
        let rounded = (gates && results[0].is_multiple_of(RUN) && counters <= COUNTERS)
            .then(|| self.room_for_rounded([rows, results[0]]))
            .transpose()?;
        if let Some(rounded) = &rounded {
            (arguments.out_codes, arguments.out_factors) = (rounded.codes.address(), rounded.factors.address());
            arguments.counters = self.counters()?;
        }
        // SAFETY: x, weights, biases and residual have the shapes that the grid and the arguments
        // require, as was checked. Results are allocated with these shapes. Groups refer to
        // existing rows, also of x.
        #[expect(unsafe_code, reason = "a kernel is launched")]
        unsafe {
            self.launch(&kernel, grid, &arguments)?;
        }
        let rows = fresh.into_iter().map(|fresh| self.tensor(fresh)).collect::<Result<_>>()?;
        Ok(Made { rows, rounded })
    }

    fn set_input(&self, arguments: &mut ProductArguments, like: &DeviceWeight, x: ProductInput<'_>) -> Result<()> {
        match x {
            ProductInput::Rows(x) => {
                ensure!(!like.kind.rounds, "invariant: weights of {} get rounded rows", like.kind.name);
                arguments.x = self.address(x, x.elem_count())?;
                let is_aligned = arguments.x.0.is_multiple_of(16) || !like.columns.is_multiple_of(EIGHT);
                ensure!(is_aligned, "invariant: rows begin at multiples of 16 bytes, not at {:#x}", arguments.x.0);
            }
            ProductInput::Rounded(x) => {
                ensure!(like.kind.rounds, "invariant: weights of {} get rows of float32", like.kind.name);
                self.ensure_own(x.codes.owner())?;
                self.note_use(|| Box::new([x.codes.place().clone(), x.factors.place().clone()]));
                (arguments.codes, arguments.factors) = (x.codes.address(), x.factors.address());
            }
        }
        Ok(())
    }

    /// Sets the operation on y; returns the widths of the results.
    fn set_purpose(
        &self,
        arguments: &mut ProductArguments,
        purpose: Purpose<'_>,
        widths: &[usize],
        tokens: usize,
    ) -> Result<Vec<usize>> {
        let one = || ensure_one(widths);
        match purpose {
            Purpose::Write => {
                arguments.purpose = WRITE;
                return Ok(widths.to_vec());
            }
            Purpose::Activate(activation) => {
                ensure!(activation.limit().is_none(), "invariant: this activation gates");
                (arguments.purpose, arguments.activation) = (ACTIVATE, number(activation));
                one()?;
            }
            Purpose::Gate(activation) => {
                ensure!(widths.len() == 2 && widths[0] == widths[1], "invariant: gate and up have as many rows");
                (arguments.purpose, arguments.activation) = (GATE, number(activation));
                arguments.limit = limit(activation);
            }
            Purpose::Add(residual, scale) => {
                one()?;
                ensure!(residual.dims() == [tokens, widths[0]], "invariant: what is added has the shape of the result");
                arguments.residual = self.address(residual, tokens * widths[0])?;
                (arguments.purpose, arguments.scale) = (ADD, scale);
            }
        }
        Ok(vec![widths[0]])
    }

    pub(crate) fn weight_set(&self, set: &WeightSet<'_>) -> Result<arguments::WeightSet> {
        let mut all = arguments::WeightSet::default();
        for (at, (weight, bias)) in set.iter().enumerate() {
            self.ensure_own(&weight.owner)?;
            self.note_use(|| Box::new((*weight).clone()));
            all.weights[at] = weight.weight;
            if let Some(bias) = bias {
                ensure!(bias.elem_count() == weight.rows(), "invariant: a bias for each row");
                all.biases[at] = self.address(bias, weight.rows())?;
            }
        }
        Ok(all)
    }
}

/// Dimensions of a product.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Number of rows of the result.
    rows: usize,
    /// Greatest number of rows of one set of weights.
    longest: usize,
    /// Number of sets that have rows.
    groups: usize,
    is_exact: bool,
}

/// Returns the assignment of rows of x to sets, for kernels.
fn groups(runs: &[ExpertRows], experts: usize, tokens: usize) -> Result<Vec<Group>> {
    let group = |run: &ExpertRows| {
        let ExpertRows { expert, first, count } = *run;
        let is_there = expert < experts && first.checked_add(count).is_some_and(|end| end <= tokens);
        ensure!(is_there, "invariant: {run:?} of {experts} experts and {tokens} rows");
        Ok(Group { set: expert as u32, first: first as u32, count: count as u32, unused: 0 })
    };
    runs.iter().map(group).collect()
}

impl ProductInput<'_> {
    fn shape(self) -> Result<[usize; 2]> {
        Ok(match self {
            Self::Rows(x) => x.dims2()?.into(),
            Self::Rounded(x) => [x.rows, x.columns],
        })
    }
}

fn ensure_one(widths: &[usize]) -> Result<()> {
    ensure!(widths.len() == 1, "invariant: one weight");
    Ok(())
}

fn few(like: &DeviceWeight, longest: usize) -> (String, Grid) {
    let columns = like.columns;
    let parts = if like.kind.rounds { columns / RUN } else { columns.div_ceil(EIGHT) };
    let tokens = if longest == 1 { 1 } else { FEW_TOKENS };
    let threads = parts.next_multiple_of(RUN).clamp(RUN, MOST_THREADS);
    (format!("few_{tokens}_{}", like.kind.name), Grid { blocks: [0, longest.div_ceil(tokens), 1], threads, shared: 0 })
}

fn tiles(like: &DeviceWeight, longest: usize) -> (String, Grid) {
    (
        format!("tile_{}", like.kind.name),
        Grid { blocks: [0, longest.div_ceil(TILE), 1], threads: TILE_THREADS, shared: 0 },
    )
}

/// Returns the number of thread blocks for all rows of the weights.
fn blocks(widths: &[usize], purpose: Purpose<'_>, is_few: bool) -> usize {
    let rows = if is_few { FEW_ROWS } else { TILE };
    match purpose {
        Purpose::Gate(_) => widths[0].div_ceil(rows / 2),
        _ => widths.iter().map(|width| width.div_ceil(rows)).sum(),
    }
}
