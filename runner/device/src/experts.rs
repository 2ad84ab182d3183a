//! Mixture of experts with routing on the device, so that the host does not wait for it.
//!
//! ```text
//! logits ──route──▶ Routes ──expert_product──▶ gate · up ──expert_product──▶ rows of experts
//!                                                                     ──mix──▶ rows of tokens
//! ```

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use architectures::{Groups, RouterScores};
use candle_core::Tensor;

use crate::arguments::{Address, Group, MixArguments, RouteArguments};
use crate::machine::{GpuRuntime, Grid, Memory, MemoryPlace, bytes_of};
use crate::weight::DeviceWeight;
use crate::weight::WeightSet;

/// Limits and block sizes of `experts.cuh`.
const MOST_EXPERTS: usize = 512;
const ROUTE_THREADS: usize = 256;
const TOKENS_OF_BLOCK: usize = ROUTE_THREADS / 32;
const MIX_THREADS: usize = 256;
/// Greatest number of groups of experts: each has a lane of a warp.
const MOST_GROUPS: u64 = 32;

/// The routing rule: selects experts by their logits.
#[derive(Clone, Copy, Debug)]
pub struct Routing<'a> {
    /// Function that converts logits to scores.
    pub scores: RouterScores,
    /// `[experts]`, added to scores for the selection only.
    pub bias: Option<&'a Tensor>,
    /// Groups of experts, of which only the best are considered.
    pub groups: Option<Groups>,
    /// Number of experts for each token.
    pub top_k: usize,
    /// Whether the shares of a token's experts are normalized to a sum of 1.
    pub normalizes: bool,
    /// Factor of the shares.
    pub scale: f32,
}

/// Weights of experts, all of the same layout.
#[derive(Debug)]
pub struct ExpertWeights {
    /// Table of the weights for kernels.
    pub(crate) sets: Memory,
    /// Number of rows of each weight in a set.
    pub(crate) widths: Vec<usize>,
    /// Number of experts.
    pub(crate) count: usize,
    /// Keeps the memory of the weights alive.
    all: Arc<Vec<DeviceWeight>>,
    /// Keeps the biases alive.
    biases: Arc<Vec<Tensor>>,
}

/// Routing of the tokens of a pass. It is known on the device only.
#[derive(Debug)]
pub struct Routes {
    /// Experts of each token, `[tokens, top_k]`.
    pub(crate) chosen: Memory,
    /// Shares of the experts, `[tokens, top_k]` of float32.
    pub(crate) weights: Memory,
    /// Row of each route, `[tokens, top_k]`.
    pub(crate) places: Memory,
    /// Token of each row, `[tokens · top_k]`.
    pub(crate) tokens_of_rows: Memory,
    /// Rows of each expert that has any.
    pub(crate) groups: Memory,
    /// Greatest possible number of such groups.
    pub(crate) most_groups: usize,
    pub(crate) tokens: usize,
    pub(crate) top_k: usize,
    experts: usize,
}

impl Routes {
    /// Returns the total number of rows of all experts.
    pub fn rows(&self) -> usize {
        self.tokens * self.top_k
    }

    /// Returns the number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns all memory that kernels use for the routes.
    pub(crate) fn used(&self) -> [Arc<MemoryPlace>; 5] {
        let Self { chosen, weights, places, tokens_of_rows, groups, .. } = self;
        [chosen, weights, places, tokens_of_rows, groups].map(|memory| memory.place().clone())
    }

    /// Checks that the routes are for these experts.
    pub(crate) fn ensure_of(&self, weights: &ExpertWeights) -> Result<()> {
        ensure!(self.experts == weights.count, "invariant: routes to {} experts of {}", self.experts, weights.count);
        Ok(())
    }
}

impl ExpertWeights {
    /// Returns everything that kernels read of the weights.
    pub(crate) fn used(&self) -> (Arc<MemoryPlace>, Arc<Vec<DeviceWeight>>, Arc<Vec<Tensor>>) {
        (self.sets.place().clone(), self.all.clone(), self.biases.clone())
    }

    /// Returns a weight that has the common layout.
    pub(crate) fn like(&self) -> Result<&DeviceWeight> {
        self.all.first().context("invariant: there are experts")
    }
}

impl Routing<'_> {
    /// Returns whether there is a kernel for this rule with `experts` experts.
    pub fn is_known(&self, experts: usize) -> bool {
        let groups = self.groups.unwrap_or(Groups { count: 1, keep: 1, best: 1 });
        let size = experts as u64 / groups.count.max(1);
        let is_grouped = (1..=MOST_GROUPS).contains(&groups.count) && (1..=groups.count).contains(&groups.keep);
        // Experts outside of the kept groups are never selected.
        let is_enough = size * groups.count == experts as u64 && self.top_k as u64 <= size * groups.keep;
        is_grouped && is_enough && experts <= MOST_EXPERTS && self.top_k > 0
    }
}

impl GpuRuntime {
    /// Uploads the table of the weights of experts, a set for each expert.
    ///
    /// # Errors
    /// The weights differ in layout, or memory is exhausted.
    pub fn expert_weights(&self, sets: &[WeightSet<'_>]) -> Result<ExpertWeights> {
        let (_, widths) = crate::weight::ensure_alike(sets)?;
        let known = sets.iter().map(|set| self.weight_set(set)).collect::<Result<Vec<_>>>()?;
        Ok(ExpertWeights {
            sets: self.upload(bytes_of(&known))?,
            widths,
            count: sets.len(),
            all: Arc::new(sets.iter().flatten().map(|(weight, _)| (*weight).clone()).collect()),
            biases: Arc::new(sets.iter().flatten().filter_map(|(_, bias)| bias.cloned()).collect()),
        })
    }

    /// Routes tokens to experts by their logits, `[tokens, experts]`. NaN logits give NaN shares.
    ///
    /// # Errors
    /// There is [no kernel](Routing::is_known) for the rule, or memory is exhausted.
    #[expect(unsafe_code, reason = "a kernel is launched")]
    pub fn route(&self, routing: Routing<'_>, logits: &Tensor) -> Result<Routes> {
        let (tokens, experts) = logits.dims2()?;
        ensure!(routing.is_known(experts), "invariant: there is a kernel for {routing:?} of {experts} experts");
        let Routing { scores, bias, groups, top_k, normalizes, scale } = routing;
        let rows = tokens * top_k;
        let most_groups = rows.min(experts);
        let words = |count: usize| self.memory(count * size_of::<u32>());
        let routes = Routes {
            chosen: words(rows)?,
            weights: words(rows)?,
            places: words(rows)?,
            tokens_of_rows: words(rows)?,
            groups: self.memory(most_groups * size_of::<Group>())?,
            most_groups,
            tokens,
            top_k,
            experts,
        };
        if let Some(bias) = bias {
            ensure!(bias.elem_count() == experts, "invariant: a bias for each expert");
        }
        let [group_count, kept, best] =
            groups.map_or([0; 3], |groups| [groups.count, groups.keep, groups.best]).map(|number| number as u32);
        let arguments = RouteArguments {
            logits: self.address(logits, tokens * experts)?,
            bias: bias.map_or(Ok(Address::NONE), |bias| self.address(bias, experts))?,
            chosen: routes.chosen.address(),
            weights: routes.weights.address(),
            places: routes.places.address(),
            tokens_of_rows: routes.tokens_of_rows.address(),
            groups: routes.groups.address(),
            done: self.counters()?,
            scale,
            tokens: tokens as u32,
            experts: experts as u32,
            top_k: top_k as u32,
            most_groups: most_groups as u32,
            scores: match scores {
                RouterScores::Softmax => 0,
                RouterScores::Sigmoid => 1,
                RouterScores::SoftmaxOfChosen => 2,
                RouterScores::RootOfSoftplus => 3,
            },
            is_normalized: u32::from(normalizes),
            group_count,
            kept,
            best,
        };
        let grid = Grid { blocks: [tokens.div_ceil(TOKENS_OF_BLOCK), 1, 1], threads: ROUTE_THREADS, shared: 0 };
        // SAFETY: logits and bias have the shapes of the arguments, results have room for all
        // routes, and every route has a valid expert, see `is_known`.
        unsafe { self.launch("route_experts", grid, &arguments)? };
        Ok(routes)
    }

    /// Combines the rows of experts for each token: `sum + Σ share · made`, or
    /// `residual + scale · (sum + Σ share · made)`. `made` has the rows of all experts.
    ///
    /// # Errors
    /// Shapes do not match, or the device has failed.
    #[expect(unsafe_code, reason = "a kernel is launched")]
    pub fn mix(
        &self,
        routes: &Routes,
        made: &Tensor,
        sum: Option<&Tensor>,
        residual: Option<(&Tensor, f32)>,
    ) -> Result<Tensor> {
        let (rows, width) = made.dims2()?;
        ensure!(rows == routes.rows(), "invariant: a row for each of {} routes, not {rows}", routes.rows());
        self.ensure_own(routes.weights.owner())?;
        self.note_use(|| Box::new(routes.used()));
        let shape = [routes.tokens, width];
        let address = |own: Option<&Tensor>| match own {
            Some(own) => {
                ensure!(own.dims() == shape, "invariant: rows of {shape:?}, not {:?}", own.dims());
                self.address(own, shape[0] * shape[1])
            }
            None => Ok(Address::NONE),
        };
        let mut out = self.fresh(shape)?;
        let arguments = MixArguments {
            made: self.address(made, rows * width)?,
            places: routes.places.address(),
            weights: routes.weights.address(),
            sum: address(sum)?,
            residual: address(residual.map(|(rows, _)| rows))?,
            out: out.address(),
            scale: residual.map_or(1.0, |(_, scale)| scale),
            width: width as u32,
            top_k: routes.top_k as u32,
            unused: 0,
        };
        let grid = Grid { blocks: [width.div_ceil(MIX_THREADS), routes.tokens, 1], threads: MIX_THREADS, shared: 0 };
        // SAFETY: all rows have the shapes that were checked, and routes refer to existing rows.
        unsafe { self.launch("mix_experts", grid, &arguments)? };
        self.tensor(out)
    }
}
