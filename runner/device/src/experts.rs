//! Experts: which of them tokens are computed by is chosen on the device, so that nobody waits for the choice.
//!
//! ```text
//! logits ──route──▶ Routes ──expert_product──▶ gate · up ──expert_product──▶ rows of experts ──mix──▶ rows of tokens
//! ```

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use architectures::{Groups, RouterScores};
use candle_core::Tensor;

use crate::arguments::{Address, Group, MixArguments, RouteArguments};
use crate::machine::{Grid, Machine, Memory, Place, bytes_of};
use crate::product::WeightSet;
use crate::weight::DeviceWeight;

/// Experts, and threads of a block with the tokens that it has, see `experts.cuh`.
const MOST_EXPERTS: usize = 512;
const ROUTE_THREADS: usize = 256;
const TOKENS_OF_BLOCK: usize = ROUTE_THREADS / 32;
const MIX_THREADS: usize = 256;
/// Groups of experts: a lane of a warp has one.
const MOST_GROUPS: u64 = 32;

/// How experts are chosen by their logits.
#[derive(Clone, Copy, Debug)]
pub struct Routing<'a> {
    /// What logits become.
    pub scores: RouterScores,
    /// `[experts]`, added to scores for the choice only.
    pub bias: Option<&'a Tensor>,
    /// Groups of which some count.
    pub groups: Option<Groups>,
    /// Experts of a token.
    pub top_k: usize,
    /// Whether the shares of a token's experts sum up to 1.
    pub normalizes: bool,
    /// What shares are multiplied with.
    pub scale: f32,
}

/// Weights of experts, which are alike.
#[derive(Debug)]
pub struct ExpertWeights {
    /// What kernels are told of them.
    pub(crate) sets: Memory,
    /// Rows of each weight of a set.
    pub(crate) widths: Vec<usize>,
    /// How many experts.
    pub(crate) count: usize,
    /// Their memory lives as long as they.
    all: Arc<Vec<DeviceWeight>>,
    /// Biases likewise.
    biases: Arc<Vec<Tensor>>,
}

/// Which experts the tokens of a pass are computed by. The device knows it; nobody else does.
#[derive(Debug)]
pub struct Routes {
    /// Experts of a token, `[tokens, top_k]`.
    pub(crate) chosen: Memory,
    /// What each has a share of, `[tokens, top_k]` of float32.
    pub(crate) weights: Memory,
    /// Where each has its row, `[tokens, top_k]`.
    pub(crate) places: Memory,
    /// The token of each row, `[tokens · top_k]`.
    pub(crate) tokens_of_rows: Memory,
    /// The rows of each expert that somebody chose.
    pub(crate) groups: Memory,
    /// How many of these there are, at most.
    pub(crate) most_groups: usize,
    pub(crate) tokens: usize,
    pub(crate) top_k: usize,
    experts: usize,
}

impl Routes {
    /// Rows of all experts.
    pub fn rows(&self) -> usize {
        self.tokens * self.top_k
    }

    /// Tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// All that kernels read and write of them.
    pub(crate) fn used(&self) -> [Arc<Place>; 5] {
        let Self { chosen, weights, places, tokens_of_rows, groups, .. } = self;
        [chosen, weights, places, tokens_of_rows, groups].map(|memory| memory.place().clone())
    }

    /// Sees to it that it is of such experts.
    pub(crate) fn ensure_of(&self, weights: &ExpertWeights) -> Result<()> {
        ensure!(self.experts == weights.count, "invariant: routes to {} experts of {}", self.experts, weights.count);
        Ok(())
    }
}

impl ExpertWeights {
    /// All that kernels read of them.
    pub(crate) fn used(&self) -> (Arc<Place>, Arc<Vec<DeviceWeight>>, Arc<Vec<Tensor>>) {
        (self.sets.place().clone(), self.all.clone(), self.biases.clone())
    }

    /// A weight that all are like.
    pub(crate) fn like(&self) -> Result<&DeviceWeight> {
        self.all.first().context("invariant: there are experts")
    }
}

impl Routing<'_> {
    /// Whether there is a kernel for such a choice among so many experts.
    pub fn is_known(&self, experts: usize) -> bool {
        let groups = self.groups.unwrap_or(Groups { count: 1, keep: 1, best: 1 });
        let size = experts as u64 / groups.count.max(1);
        let is_grouped = (1..=MOST_GROUPS).contains(&groups.count) && (1..=groups.count).contains(&groups.keep);
        // What is out of the choice is never chosen.
        let is_enough = size * groups.count == experts as u64 && self.top_k as u64 <= size * groups.keep;
        is_grouped && is_enough && experts <= MOST_EXPERTS && self.top_k > 0
    }
}

impl Machine {
    /// Tells the device of the weights of experts, a set for each.
    ///
    /// # Errors
    /// They are not alike, or there is no memory.
    pub fn expert_weights(&self, sets: &[WeightSet<'_>]) -> Result<ExpertWeights> {
        let (_, widths) = crate::product::ensure_alike(sets)?;
        let known = sets.iter().map(|set| self.weight_set(set)).collect::<Result<Vec<_>>>()?;
        Ok(ExpertWeights {
            sets: self.upload(bytes_of(&known))?,
            widths,
            count: sets.len(),
            all: Arc::new(sets.iter().flatten().map(|(weight, _)| (*weight).clone()).collect()),
            biases: Arc::new(sets.iter().flatten().filter_map(|(_, bias)| bias.cloned()).collect()),
        })
    }

    /// Chooses the experts of tokens by their logits, `[tokens, experts]`. Logits that are not numbers give shares that are none.
    ///
    /// # Errors
    /// There is [no kernel](Routing::is_known) for it, or no memory.
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
            },
            is_normalized: u32::from(normalizes),
            group_count,
            kept,
            best,
        };
        let grid = Grid { blocks: [tokens.div_ceil(TOKENS_OF_BLOCK), 1, 1], threads: ROUTE_THREADS, shared: 0 };
        // SAFETY: logits and the bias have the shapes that the arguments say, results are made for as many routes, and every route has an
        // expert that there is, see `is_known`.
        unsafe { self.launch("route_experts", grid, &arguments)? };
        Ok(routes)
    }

    /// What tokens get of their experts: `sum + Σ share · made`, or `residual + scale · (sum + Σ share · made)`. `made` are the rows
    /// of all experts.
    ///
    /// # Errors
    /// Shapes do not fit one another, or the device has failed.
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
        // SAFETY: all rows have the shapes that were seen, and routes are of rows that there are.
        unsafe { self.launch("mix_experts", grid, &arguments)? };
        self.tensor(out)
    }
}
