//! Mixture of experts whose routing is computed on the device.

use std::sync::Arc;

use anyhow::Result;
use architectures::Activation;
use candle_core::{Device, Tensor};
use device::{ExpertInput, ExpertWeights, GpuRuntime, ProductInput, Purpose, Routes, Routing, WeightSet};

use super::super::{Candle, Kernels};
use super::Act;
use super::matrix::DeviceMatrix;
use crate::backend::{ExpertsOf, RoutedExperts, RoutingRule};

/// The experts of a layer.
#[derive(Debug)]
pub(crate) struct Experts {
    kernels: Kernels,
    rule: RuleOf,
    gates: ExpertWeights,
    downs: ExpertWeights,
    /// Whether the gate and up products, and the down products, take rounded rows.
    rounds: [bool; 2],
    activation: Activation,
}

/// Routing rule, with its bias on the device.
#[derive(Debug)]
struct RuleOf {
    bias: Option<Tensor>,
    rest: RoutingRule,
}

/// Output of the routed experts, not combined yet.
#[derive(Debug)]
pub(in crate::backends::candle) struct Mixed {
    machine: GpuRuntime,
    routes: Routes,
    made: Tensor,
    sum: Option<Tensor>,
}

impl Experts {
    /// Uploads the tables of the experts' weights. Returns `None` if there are no kernels for all
    /// experts or for the routing rule, if weights differ in layout, or if adapters add to the
    /// products.
    pub(in crate::backends::candle) fn new(
        kernels: &Kernels,
        experts: &ExpertsOf<'_, Candle>,
        device: &Device,
    ) -> Result<Option<Self>> {
        let of_device = |network: &[&super::matrix::CandleMatrix; 3]| -> Option<[Arc<DeviceMatrix>; 3]> {
            let [gate, up, down] = network.map(|matrix| matrix.of_device().cloned());
            Some([gate?, up?, down?])
        };
        let Some(all) = experts.networks.iter().map(of_device).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let Some([gate, _, down]) = all.first() else { return Ok(None) };
        let alike = |own: &[Arc<DeviceMatrix>; 3]| {
            own[..2].iter().all(|own| own.weight.is_like(&gate.weight)) && own[2].weight.is_like(&down.weight)
        };
        let rule = RuleOf::new(experts.rule, device)?;
        if !all.iter().all(alike) || !rule.routing().is_known(all.len()) {
            return Ok(None);
        }
        let sets = |part: std::ops::Range<usize>| -> Vec<WeightSet<'_>> {
            all.iter().map(|own| own[part.clone()].iter().map(|own| own.with_bias()).collect()).collect()
        };
        let [gates, downs] = [sets(0..2), sets(2..3)].map(|sets| kernels.machine.expert_weights(&sets));
        Ok(Some(Self {
            kernels: kernels.clone(),
            rule,
            gates: gates?,
            downs: downs?,
            rounds: [gate.weight.rounds(), down.weight.rounds()],
            activation: experts.activation,
        }))
    }
}

impl RoutedExperts<Act> for Experts {
    fn forward(&self, logits: &Act, x: &Act, sum: Option<Act>) -> Result<Act> {
        let Kernels { machine, is_exact, .. } = &self.kernels;
        let routes = machine.route(self.rule.routing(), logits.rows()?)?;
        let gate = |x: ProductInput<'_>| {
            let x = ExpertInput::OfTokens(x);
            machine.expert_product(&self.gates, &routes, Purpose::Gate(self.activation), x, *is_exact)
        };
        let gated = Act::made(x.input(&self.kernels, self.rounds[0], gate)?)?;
        let down = |x: ProductInput<'_>| {
            machine.expert_product(&self.downs, &routes, Purpose::Write, ExpertInput::OfRoutes(x), *is_exact)
        };
        let made = Act::made(gated.input(&self.kernels, self.rounds[1], down)?)?;
        let made = made.rows()?.clone();
        let sum = sum.map(|sum| sum.rows().cloned()).transpose()?;
        Ok(Act::mixed(Mixed { machine: machine.clone(), routes, made, sum }))
    }
}

impl RuleOf {
    fn new(rule: &RoutingRule, device: &Device) -> Result<Self> {
        let bias = rule.bias.as_ref().map(|bias| Tensor::from_slice(bias, bias.len(), device)).transpose()?;
        let RoutingRule { scores, groups, top_k, normalize, scale, .. } = *rule;
        Ok(Self {
            bias,
            rest: RoutingRule {
                scores,
                bias: None,
                groups,
                nearness: None,
                top_k,
                normalize,
                scale,
                expert_scales: None,
            },
        })
    }

    fn routing(&self) -> Routing<'_> {
        let RoutingRule { scores, groups, top_k, normalize, scale, .. } = self.rest;
        Routing { scores, bias: self.bias.as_ref(), groups, top_k, normalizes: normalize, scale }
    }
}

impl Mixed {
    /// Returns the combined rows of the tokens; `residual` adds them, scaled, to a residual stream.
    pub(in crate::backends::candle) fn rows(&self, residual: Option<(&Tensor, f32)>) -> Result<Tensor> {
        self.machine.mix(&self.routes, &self.made, self.sum.as_ref(), residual)
    }

    pub(in crate::backends::candle) fn count(&self) -> usize {
        self.routes.tokens()
    }
}
