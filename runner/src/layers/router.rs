//! A router: the logits of the experts of a layer, and the rule that chooses by them.

use anyhow::Result;

use super::Loader;
use crate::backend::{Backend, Map, NormOf, RoutingRule};

/// A router.
#[derive(Debug)]
pub(super) struct Router<B: Backend> {
    norm: Option<NormOf<B>>,
    projection: B::Matrix,
    logit_scale: Option<f32>,
    pub(super) rule: RoutingRule,
    /// Whether the experts of a token are given.
    pub(super) of_tokens: bool,
}

impl<B: Backend> Router<B> {
    /// Loads the router of so many experts.
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::Router, count: usize) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let numbers = |tensor: &Option<architectures::Tensor>| {
            tensor.as_ref().map(|tensor| weights.numbers(tensor, &[count])).transpose()
        };
        let rule = RoutingRule {
            scores: own.scores,
            bias: numbers(&own.bias)?,
            groups: own.groups,
            nearness: own.nearness.map(|nearness| nearness as f32),
            top_k: own.top_k as usize,
            normalize: own.normalize,
            scale: own.scale as f32,
            expert_scales: numbers(&own.expert_scales)?,
        };
        Ok(Self {
            norm: own.norm.as_ref().map(|norm| weights.norm(backend, norm, hidden)).transpose()?,
            projection: weights.matrix(backend, &own.projection, hidden, count, None)?,
            logit_scale: own.logit_scale.map(|scale| scale as f32),
            rule,
            of_tokens: own.of_tokens.is_some(),
        })
    }

    /// Computes the logits of the experts.
    pub(super) fn logits(&self, backend: &B, x: &B::Act) -> Result<B::Act> {
        let normed = self.norm.as_ref().map(|norm| backend.norm(norm, x)).transpose()?;
        let [logits] = backend.project([&self.projection], normed.as_ref().unwrap_or(x))?;
        match self.logit_scale {
            Some(scale) => backend.map(logits, Map::Scale(scale)),
            None => Ok(logits),
        }
    }
}
