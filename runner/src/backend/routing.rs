//! Routing: the choice of the experts that compute a token.

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
    pub(crate) top_k: usize,
    pub(crate) normalize: bool,
    pub(crate) scale: f32,
}

/// The experts of a layer, with the rule that chooses among them.
#[derive(Debug)]
pub(crate) struct ExpertsOf<'a, B: Backend> {
    pub(crate) rule: &'a RoutingRule,
    /// The projections of each expert: gate, up, down.
    pub(crate) networks: Vec<[&'a B::Matrix; 3]>,
    pub(crate) activation: Activation,
}
