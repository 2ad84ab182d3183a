//! Routing: the choice of the experts that compute a token.

use std::convert::Infallible;
use std::fmt::Debug;

use anyhow::Result;
use architectures::{Activation, Groups, RouterScores};

use super::Backend;

/// How a router chooses experts from their logits.
#[derive(Debug)]
pub(crate) struct RoutingRule {
    pub(crate) scores: RouterScores,
    /// Added to the scores for the choice only; the weights of the chosen experts do not include
    /// it.
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) groups: Option<Groups>,
    /// Experts are chosen one after the other, see [`architectures::Router::nearness`].
    pub(crate) nearness: Option<f32>,
    pub(crate) top_k: usize,
    pub(crate) normalize: bool,
    pub(crate) scale: f32,
    /// A factor of the weights for each expert.
    pub(crate) expert_scales: Option<Vec<f32>>,
}

/// The experts of a layer, with the rule that chooses among them.
#[derive(Debug)]
pub(crate) struct ExpertsOf<'a, B: Backend> {
    pub(crate) rule: &'a RoutingRule,
    /// The projections of each expert: gate, up, down.
    pub(crate) networks: Vec<[&'a B::Matrix; 3]>,
    pub(crate) activation: Activation,
}

/// Experts of a layer that are chosen by the backend.
pub(crate) trait RoutedExperts<A>: Debug + Send + Sync {
    /// Adds the weighted outputs of each token's experts to `sum`. The experts are chosen by
    /// `logits`, `[tokens, experts]`.
    fn forward(&self, logits: &A, x: &A, sum: Option<A>) -> Result<A>;
}

/// For backends that cannot choose experts.
impl<A> RoutedExperts<A> for Infallible {
    fn forward(&self, _logits: &A, _x: &A, _sum: Option<A>) -> Result<A> {
        match *self {}
    }
}
