//! Which experts a token is computed by.

use architectures::{Activation, Groups, RouterScores};

use super::Backend;

/// How experts are chosen by their logits.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) scores: RouterScores,
    /// Added to the scores for the choice only.
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) groups: Option<Groups>,
    pub(crate) top_k: usize,
    pub(crate) normalize: bool,
    pub(crate) scale: f32,
}

/// The experts of a layer.
#[derive(Debug)]
pub(crate) struct ExpertsOf<'a, B: Backend> {
    pub(crate) rule: &'a Rule,
    /// The projections of each: gate, up, down.
    pub(crate) networks: Vec<[&'a B::Matrix; 3]>,
    pub(crate) activation: Activation,
}
