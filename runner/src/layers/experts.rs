//! Experts: gated networks, of which a router chooses some for each token. Tokens are grouped by
//! expert, so that an expert's weights are read once for all of them, and the weights of unused
//! experts are not read. A backend that can choose experts on its device does so.

use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use architectures::{Activation, Groups, RouterScores};
use kernels::elementwise::softplus;

use super::router::Router;
use super::shared_expert::SharedExpert;
use super::{LayerTokens, Loader};
use crate::backend::{Backend, ExpertsOf, Map, NormOf, RoutedExperts, RoutingRule, Run};

/// Experts and their router.
#[derive(Debug)]
pub(crate) struct Experts<B: Backend> {
    router: Router<B>,
    /// Norm of the experts' input.
    input_norm: Option<NormOf<B>>,
    networks: Vec<Network<B>>,
    activation: Activation,
    shared: Option<SharedExpert<B>>,
    /// All experts, prepared for a backend that chooses among them itself.
    prepared: Option<B::Experts>,
    /// Projections into and out of the space in which the experts compute.
    latent: Option<[B::Matrix; 2]>,
    /// Width of the experts' inputs.
    width: usize,
    /// Whether weights multiply the inputs, and not the outputs.
    weighs_inputs: bool,
    /// The routes of the current pass.
    routes: Mutex<Routes>,
}

/// The projections of an expert.
#[derive(Debug)]
struct Network<B: Backend> {
    gate: Option<B::Matrix>,
    up: B::Matrix,
    down: B::Matrix,
}

/// The routes of a pass: which token uses which expert, with which weight.
#[derive(Debug, Default)]
struct Routes {
    /// Expert, token and weight of each route.
    all: Vec<(usize, usize, f32)>,
    scores: Vec<f32>,
    /// The scores with the router's bias, by which experts are chosen.
    ranks: Vec<f32>,
    /// Indexes of experts or groups, the best first.
    order: Vec<usize>,
    /// The experts of all tokens, if they are not chosen by their scores: `[tokens, top_k]`.
    given: Vec<f32>,
    /// The routes of each chosen expert, in the order of experts.
    runs: Vec<Run>,
    /// The token and the weight of each route.
    tokens: Vec<usize>,
    weights: Vec<f32>,
}

impl<B: Backend> Experts<B> {
    pub(super) fn load(loader: &Loader<'_, B>, own: &architectures::Experts) -> Result<Self> {
        let Loader { backend, weights, hidden, .. } = *loader;
        let (count, width) = (own.count as usize, own.width as usize);
        let inputs = own.latent.as_ref().map_or(hidden, |latent| latent.width as usize);
        let matrix = |matrices: &architectures::Matrices, index, input, output| {
            weights.matrix(backend, &matrices.projection(index), input, output, None)
        };
        let expert = |index: u64| {
            Ok(Network {
                gate: own.gate.as_ref().map(|gate| matrix(gate, index, inputs, width)).transpose()?,
                up: matrix(&own.up, index, inputs, width)?,
                down: matrix(&own.down, index, width, inputs)?,
            })
        };
        let latent = |latent: &architectures::ExpertLatent| -> Result<[B::Matrix; 2]> {
            Ok([
                weights.matrix(backend, &latent.down, hidden, inputs, None)?,
                weights.matrix(backend, &latent.up, inputs, hidden, None)?,
            ])
        };
        let router = Router::load(loader, &own.router, count)?;
        let networks = (0..own.count).map(expert).collect::<Result<Vec<_>>>()?;
        // Backends choose only among experts with gates.
        let all = networks.iter().map(|Network { gate, up, down }| Some([gate.as_ref()?, up, down])).collect();
        let prepared = match all {
            // Kernels have no factors of experts, choose all at once by their scores, and weigh
            // outputs only.
            _ if router.rule.expert_scales.is_some()
                || router.rule.nearness.is_some()
                || router.of_tokens
                || own.weighs_inputs =>
            {
                None
            }
            Some(all) => {
                backend.experts(&ExpertsOf { rule: &router.rule, networks: all, activation: own.activation })?
            }
            None => None,
        };
        Ok(Self {
            router,
            input_norm: own.input_norm.as_ref().map(|norm| weights.norm(backend, norm, hidden)).transpose()?,
            networks,
            activation: own.activation,
            shared: own.shared.as_ref().map(|shared| SharedExpert::load(loader, shared)).transpose()?,
            prepared,
            latent: own.latent.as_ref().map(latent).transpose()?,
            width: inputs,
            weighs_inputs: own.weighs_inputs,
            routes: Mutex::default(),
        })
    }

    pub(super) fn forward(&self, backend: &B, x: &B::Act, tokens: &LayerTokens<'_, B>) -> Result<B::Act> {
        let logits = self.router.logits(backend, x)?;
        let shared = self.shared.as_ref().map(|shared| shared.forward(backend, x)).transpose()?;
        let input = self.input_norm.as_ref().map(|norm| backend.norm(norm, x)).transpose()?;
        let x = input.as_ref().unwrap_or(x);
        let Some([down, up]) = &self.latent else { return self.routed(backend, &logits, x, shared, tokens) };
        let [low] = backend.project([down], x)?;
        let [out] = backend.project([up], &self.routed(backend, &logits, &low, None, tokens)?)?;
        match shared {
            Some(shared) => backend.map(out, Map::Add(&shared, 1.0)),
            None => Ok(out),
        }
    }

    /// Adds the weighted outputs of each token's experts to `sum`.
    fn routed(
        &self,
        backend: &B,
        logits: &B::Act,
        x: &B::Act,
        sum: Option<B::Act>,
        tokens: &LayerTokens<'_, B>,
    ) -> Result<B::Act> {
        if let Some(experts) = &self.prepared {
            return experts.forward(logits, x, sum);
        }
        // If a panic left data in the buffers, it is overwritten.
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        routes.all.clear();
        routes.given.clear();
        if self.router.of_tokens {
            backend.read(tokens.own()?, 0..tokens.count, &mut |experts| {
                routes.given.extend_from_slice(experts);
                Ok(())
            })?;
        }
        let mut token = 0;
        backend.read(logits, 0..tokens.count, &mut |logits| {
            token += 1;
            routes.choose(&self.router.rule, token - 1, logits)
        })?;
        #[cfg(test)]
        tape::pass(&mut routes.all);
        routes.group();
        let Routes { runs, tokens: chosen, weights, .. } = &*routes;
        let sum = match sum {
            Some(sum) => sum,
            None => backend.rows(tokens.count, self.width, |zeros| {
                zeros.fill(0.0);
                Ok(())
            })?,
        };
        let mut rows = backend.select(x, chosen)?;
        let ones = self.weighs_inputs.then(|| vec![1.0; chosen.len()]);
        if self.weighs_inputs {
            let zeros = backend.rows(chosen.len(), self.width, |zeros| {
                zeros.fill(0.0);
                Ok(())
            })?;
            rows = backend.scatter(zeros, &rows, &(0..chosen.len()).collect::<Vec<_>>(), weights)?;
        }
        let by = |expert: usize| &self.networks[expert];
        let gates = self.networks.first().and_then(|first| first.gate.as_ref());
        let gated = if gates.is_some() {
            let gate = |expert: usize| by(expert).gate.as_ref().unwrap_or(&by(expert).up);
            let [gate, up] = backend.project_runs(runs, |expert| [gate(expert), &by(expert).up], &rows)?;
            backend.map(gate, Map::Gate(self.activation, &up))?
        } else {
            let [up] = backend.project_runs(runs, |expert| [&by(expert).up], &rows)?;
            backend.map(up, Map::Activate(self.activation))?
        };
        drop(rows);
        let [made] = backend.project_runs(runs, |expert| [&by(expert).down], &gated)?;
        backend.scatter(sum, &made, chosen, ones.as_ref().unwrap_or(weights))
    }
}

impl Routes {
    /// Chooses the experts of a token.
    ///
    /// # Errors
    /// Fails if logits are not numbers.
    fn choose(&mut self, rule: &RoutingRule, token: usize, logits: &[f32]) -> Result<()> {
        ensure!(
            logits.iter().all(|logit| !logit.is_nan()),
            "a router computed NaN; the model's weights may be damaged"
        );
        let Self { all, scores, ranks, order, given, .. } = self;
        if let Some(nearness) = rule.nearness {
            let first = all.len();
            choose_in_turn(rule.top_k, nearness, token, logits, ranks, all);
            weigh(rule, &mut all[first..]);
            return Ok(());
        }
        scores.clear();
        match rule.scores {
            RouterScores::Softmax => {
                scores.extend_from_slice(logits);
                softmax(scores);
            }
            RouterScores::Sigmoid => scores.extend(logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp()))),
            RouterScores::SoftmaxOfChosen => scores.extend_from_slice(logits),
            RouterScores::RootOfSoftplus => scores.extend(logits.iter().map(|logit| softplus(*logit).sqrt())),
        }
        if !given.is_empty() {
            let first = all.len();
            for number in &given[token * rule.top_k..(token + 1) * rule.top_k] {
                let expert = index_of(*number, scores.len())?;
                all.push((expert, token, scores[expert]));
            }
            weigh(rule, &mut all[first..]);
            return Ok(());
        }
        ranks.clear();
        ranks.extend_from_slice(scores);
        if let Some(bias) = &rule.bias {
            ranks.iter_mut().zip(bias).for_each(|(rank, bias)| *rank += bias);
        }
        if let Some(groups) = rule.groups {
            keep_groups(groups, ranks, order);
        }
        order.clear();
        order.extend(0..ranks.len());
        order.sort_unstable_by(|a, b| ranks[*b].total_cmp(&ranks[*a]).then(a.cmp(b)));
        order.truncate(rule.top_k);
        let first = all.len();
        all.extend(order.iter().map(|expert| (*expert, token, scores[*expert])));
        weigh(rule, &mut all[first..]);
        Ok(())
    }

    /// Groups the routes by expert.
    fn group(&mut self) {
        let Self { all, runs, tokens, weights, .. } = self;
        all.sort_unstable_by_key(|(expert, token, _)| (*expert, *token));
        runs.clear();
        tokens.clear();
        weights.clear();
        for (at, (expert, token, weight)) in all.iter().enumerate() {
            tokens.push(*token);
            weights.push(*weight);
            match runs.last_mut() {
                Some(run) if run.by == *expert => run.rows.end = at + 1,
                _ => runs.push(Run { by: *expert, rows: at..at + 1 }),
            }
        }
    }
}

/// Returns the index of an expert that a table gives to a token.
#[expect(clippy::cast_sign_loss, reason = "it is not negative")]
fn index_of(number: f32, experts: usize) -> Result<usize> {
    ensure!(
        number >= 0.0 && number < experts as f32,
        "the table of the experts of tokens has expert {number}, the layer has {experts}; the model's weights may be damaged"
    );
    Ok(number as usize)
}

/// Chooses experts one after the other. The weight of each is its share of a softmax over the
/// logits near to it. Chosen experts are marked in `left`.
fn choose_in_turn(
    top_k: usize,
    nearness: f32,
    token: usize,
    logits: &[f32],
    left: &mut Vec<f32>,
    all: &mut Vec<(usize, usize, f32)>,
) {
    left.clear();
    left.extend_from_slice(logits);
    for _ in 0..top_k {
        let best = (0..left.len()).max_by(|a, b| left[*a].total_cmp(&left[*b]).then(b.cmp(a))).unwrap_or_default();
        let most = left[best];
        let is_near = |x: &&f32| x.is_finite() && (most - **x) / x.abs().max(most) <= nearness;
        let sum: f32 = left.iter().filter(is_near).map(|x| (x - most).exp()).sum();
        all.push((best, token, 1.0 / sum.max(1.0)));
        left[best] = f32::NEG_INFINITY;
    }
}

/// Converts the scores of the chosen experts to weights.
fn weigh(rule: &RoutingRule, chosen: &mut [(usize, usize, f32)]) {
    if rule.scores == RouterScores::SoftmaxOfChosen {
        let largest = chosen.iter().fold(f32::NEG_INFINITY, |largest, route| largest.max(route.2));
        for route in chosen.iter_mut() {
            route.2 = (route.2 - largest).exp();
        }
    }
    if rule.normalize || rule.scores == RouterScores::SoftmaxOfChosen {
        // Scores that are all 0 stay 0.
        let sum = chosen.iter().map(|route| route.2).sum::<f32>().max(1e-20);
        for route in chosen.iter_mut() {
            route.2 /= sum;
        }
    }
    for route in chosen.iter_mut() {
        route.2 *= rule.scale * rule.expert_scales.as_ref().map_or(1.0, |scales| scales[route.0]);
    }
}

/// Excludes all but the best groups from the choice.
fn keep_groups(groups: Groups, ranks: &mut [f32], order: &mut Vec<usize>) {
    let size = ranks.len() / groups.count as usize;
    let worth = |group: usize| {
        // Finds the few best ranks one by one: each is below the one before it, or equal and behind
        // it.
        let own = &ranks[group * size..(group + 1) * size];
        let mut sum = 0.0;
        let mut last: Option<(f32, usize)> = None;
        for _ in 0..groups.best {
            let after = |(at, rank): (usize, f32)| {
                last.is_none_or(|(value, place)| rank < value || (rank <= value && at > place))
            };
            let candidates = own.iter().copied().enumerate().filter(|candidate| after(*candidate));
            let best = candidates.fold(None, |best: Option<(f32, usize)>, (at, rank)| match best {
                Some((value, _)) if value >= rank => best,
                _ => Some((rank, at)),
            });
            sum += best.map_or(0.0, |(rank, _)| rank);
            last = best.or(last);
        }
        sum
    };
    order.clear();
    order.extend(0..groups.count as usize);
    order.sort_by(|a, b| worth(*b).total_cmp(&worth(*a)));
    for group in &order[groups.keep as usize..] {
        ranks[group * size..(group + 1) * size].fill(f32::NEG_INFINITY);
    }
}

fn softmax(x: &mut [f32]) {
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for x in x.iter_mut() {
        *x = (*x - largest).exp();
    }
    let sum: f32 = x.iter().sum();
    for x in x.iter_mut() {
        *x /= sum;
    }
}

/// Routes that tests transfer from one model to another.
#[cfg(test)]
pub(crate) mod tape {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    /// The routes of a layer: expert, token and weight of each.
    type Choices = Vec<(usize, usize, f32)>;

    #[derive(Default)]
    enum Tape {
        #[default]
        Off,
        Recording(VecDeque<Choices>),
        Playing(VecDeque<Choices>),
    }

    thread_local!(static TAPE: RefCell<Tape> = const { RefCell::new(Tape::Off) });

    /// Records the routes of a layer, or replaces them by recorded ones.
    pub(super) fn pass(choices: &mut Choices) {
        TAPE.with_borrow_mut(|tape| match tape {
            Tape::Off => {}
            Tape::Recording(all) => all.push_back(choices.clone()),
            Tape::Playing(all) => *choices = all.pop_front().expect("as many layers as were recorded"),
        });
    }

    /// Records the routes that layers choose on this thread.
    pub(crate) fn record<T>(work: impl FnOnce() -> T) -> (T, VecDeque<Choices>) {
        TAPE.set(Tape::Recording(VecDeque::new()));
        let done = work();
        match TAPE.take() {
            Tape::Recording(all) => (done, all),
            _ => unreachable!("it was recording"),
        }
    }

    /// Replaces the routes that layers choose on this thread by recorded ones.
    pub(crate) fn play<T>(choices: VecDeque<Choices>, work: impl FnOnce() -> T) -> T {
        TAPE.set(Tape::Playing(choices));
        let done = work();
        TAPE.take();
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(rule: &RoutingRule, logits: &[f32]) -> Vec<(usize, f32)> {
        let mut routes = Routes::default();
        routes.choose(rule, 0, logits).expect("numbers");
        routes.all.iter().map(|(expert, _, weight)| (*expert, (weight * 1000.0).round() / 1000.0)).collect()
    }

    #[test]
    fn tables_give_experts_to_tokens() {
        let rule = RoutingRule { normalize: true, ..rule(RouterScores::Sigmoid) };
        let route = |given: [f32; 2]| {
            let mut routes = Routes { given: given.into(), ..Routes::default() };
            routes.choose(&rule, 0, &[0.0, 0.0, 100.0, -100.0])?;
            Ok::<_, anyhow::Error>(routes.all.iter().map(|(expert, _, weight)| (*expert, *weight)).collect::<Vec<_>>())
        };
        assert_eq!(route([1.0, 0.0]).expect("experts"), [(1, 0.5), (0, 0.5)], "the third one is not chosen");
        assert_eq!(route([1.0, 1.0]).expect("experts"), [(1, 0.5), (1, 0.5)]);
        for wrong in [4.0, -1.0, f32::NAN] {
            let error = route([0.0, wrong]).expect_err("no such expert").to_string();
            assert!(error.contains(&format!("has expert {wrong}, the layer has 4")), "{error}");
        }
    }

    fn rule(scores: RouterScores) -> RoutingRule {
        RoutingRule {
            scores,
            bias: None,
            groups: None,
            nearness: None,
            top_k: 2,
            normalize: false,
            scale: 1.0,
            expert_scales: None,
        }
    }

    #[test]
    fn the_best_are_chosen() {
        let logits = [0.0, 2.0f32.ln(), 4.0f32.ln(), 0.0];
        assert_eq!(chosen(&rule(RouterScores::Softmax), &logits), [(2, 0.5), (1, 0.25)]);
        let normalized = RoutingRule { normalize: true, scale: 3.0, ..rule(RouterScores::Softmax) };
        assert_eq!(chosen(&normalized, &logits), [(2, 2.0), (1, 1.0)]);
        assert_eq!(chosen(&rule(RouterScores::SoftmaxOfChosen), &logits), [(2, 0.667), (1, 0.333)]);
        assert_eq!(chosen(&rule(RouterScores::Sigmoid), &logits), [(2, 0.8), (1, 0.667)]);
        assert_eq!(chosen(&rule(RouterScores::RootOfSoftplus), &logits), [(2, 1.269), (1, 1.048)]);
        let biased = RoutingRule { bias: Some(vec![1.0, 0.0, 0.0, 0.0]), ..rule(RouterScores::Sigmoid) };
        assert_eq!(chosen(&biased, &logits), [(0, 0.5), (2, 0.8)], "the bias has no weight");
    }

    /// The second expert is near to the first one, and the third is not.
    #[test]
    fn experts_are_chosen_in_turn() {
        let near = RoutingRule { nearness: Some(0.02), ..rule(RouterScores::Softmax) };
        assert_eq!(chosen(&near, &[1.0, 2.0, 1.97, -1.0]), [(1, 0.507), (2, 1.0)]);
        assert_eq!(chosen(&near, &[1.0, 2.0, 1.9, -1.0]), [(1, 1.0), (2, 1.0)]);
    }

    #[test]
    fn only_the_best_groups_count() {
        let logits = [3.0, -3.0, 1.0, 1.0, 2.0, 2.0];
        let grouped = |best| RoutingRule {
            groups: Some(Groups { count: 3, keep: 1, best }),
            normalize: true,
            ..rule(RouterScores::SoftmaxOfChosen)
        };
        let experts = |best| chosen(&grouped(best), &logits).iter().map(|(expert, _)| *expert).collect::<Vec<_>>();
        assert_eq!(experts(1), [0, 1], "by the best of each");
        assert_eq!(experts(2), [4, 5], "by the sum of the two best, equal ones count twice");
    }
}
