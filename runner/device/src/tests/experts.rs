//! Tests of routing on the device, compared with routing on the host.

use architectures::{Activation, Groups, RouterScores};
use formats::{Dtype, Encoding, GgmlType};

use super::{Random, Sample, check, machine, numbers, rounded, tensor};
use crate::{ExpertInput, GpuRuntime, Memory, ProductInput, Purpose, Routing, RowBlocks, WeightSet};

/// Parameters of a test: number of experts and tokens, and the rule.
#[derive(Clone, Copy, Debug)]
struct Case {
    experts: usize,
    tokens: usize,
    top_k: usize,
    scores: RouterScores,
    has_bias: bool,
    groups: Option<Groups>,
    normalizes: bool,
}

const CASES: [Case; 7] = [
    Case {
        experts: 8,
        tokens: 1,
        top_k: 2,
        scores: RouterScores::Softmax,
        has_bias: false,
        groups: None,
        normalizes: true,
    },
    Case {
        experts: 128,
        tokens: 9,
        top_k: 8,
        scores: RouterScores::Softmax,
        has_bias: false,
        groups: None,
        normalizes: false,
    },
    Case {
        experts: 64,
        tokens: 21,
        top_k: 6,
        scores: RouterScores::Sigmoid,
        has_bias: true,
        groups: Some(Groups { count: 8, keep: 3, best: 2 }),
        normalizes: true,
    },
    Case {
        experts: 40,
        tokens: 300,
        top_k: 4,
        scores: RouterScores::SoftmaxOfChosen,
        has_bias: true,
        groups: None,
        normalizes: false,
    },
    Case {
        experts: 512,
        tokens: 3,
        top_k: 10,
        scores: RouterScores::Softmax,
        has_bias: false,
        groups: Some(Groups { count: 4, keep: 1, best: 1 }),
        normalizes: true,
    },
    Case {
        experts: 3,
        tokens: 40,
        top_k: 1,
        scores: RouterScores::Sigmoid,
        has_bias: false,
        groups: None,
        normalizes: false,
    },
    Case {
        experts: 33,
        tokens: 17,
        top_k: 6,
        scores: RouterScores::RootOfSoftplus,
        has_bias: true,
        groups: None,
        normalizes: true,
    },
];

/// Returns the experts of a token with their shares, the best first.
fn chosen(case: &Case, logits: &[f32], bias: &[f32], scale: f64) -> Vec<(usize, f64)> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exp = |x: f32| f64::from(x - largest).exp();
    let sum: f64 = logits.iter().map(|x| exp(*x)).sum();
    let score = |x: &f32| match case.scores {
        RouterScores::Softmax => exp(*x) / sum,
        RouterScores::Sigmoid => 1.0 / (1.0 + (-f64::from(*x)).exp()),
        RouterScores::SoftmaxOfChosen => f64::from(*x),
        RouterScores::RootOfSoftplus => f64::from(*x).exp().ln_1p().sqrt(),
    };
    let scores: Vec<f64> = logits.iter().map(score).collect();
    let mut ranks: Vec<f64> = scores.iter().zip(bias).map(|(score, bias)| score + f64::from(*bias)).collect();
    if let Some(groups) = case.groups {
        let size = case.experts / groups.count as usize;
        let worth = |group: &usize| {
            let mut own = ranks[group * size..(group + 1) * size].to_vec();
            own.sort_by(|a, b| b.total_cmp(a));
            own.iter().take(groups.best as usize).sum::<f64>()
        };
        let mut order: Vec<usize> = (0..groups.count as usize).collect();
        order.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
        for group in &order[groups.keep as usize..] {
            ranks[group * size..(group + 1) * size].fill(f64::NEG_INFINITY);
        }
    }
    let mut order: Vec<usize> = (0..case.experts).collect();
    order.sort_by(|a, b| ranks[*b].total_cmp(&ranks[*a]));
    order.truncate(case.top_k);
    let is_softmax = case.scores == RouterScores::SoftmaxOfChosen;
    let shares: Vec<f64> =
        order.iter().map(|expert| if is_softmax { scores[*expert].exp() } else { scores[*expert] }).collect();
    let all = if case.normalizes || is_softmax { shares.iter().sum() } else { 1.0 };
    order.into_iter().zip(shares.into_iter().map(|share| share / all * scale)).collect()
}

fn words(machine: &GpuRuntime, memory: &Memory) -> Vec<u32> {
    let bytes = machine.read(memory).expect("bytes");
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four"))).collect()
}

#[test]
fn experts_are_chosen_as_the_rule_says() {
    for (case, backwards) in CASES.iter().flat_map(|case| [(case, false), (case, true)]) {
        let Some(machine) = machine(backwards) else { return };
        let mut random = Random(31);
        let logits: Vec<f32> = random.rows(case.tokens, case.experts).iter().map(|x| x * 4.0).collect();
        let bias = if case.has_bias { random.rows(1, case.experts) } else { vec![0.0; case.experts] };
        let (logits_at, bias_at) = (tensor(&logits, case.tokens), tensor(&bias, 1));
        let routing = Routing {
            scores: case.scores,
            bias: case.has_bias.then_some(&bias_at),
            groups: case.groups,
            top_k: case.top_k,
            normalizes: case.normalizes,
            scale: 2.5,
        };
        let routes = machine.route(routing, &logits_at).expect("routes");
        let (found, places) = (words(&machine, &routes.chosen), words(&machine, &routes.places));
        let (tokens, groups) = (words(&machine, &routes.tokens_of_rows), words(&machine, &routes.groups));
        let shares: Vec<f32> = words(&machine, &routes.weights).into_iter().map(f32::from_bits).collect();
        let wanted: Vec<(usize, f64)> =
            logits.chunks(case.experts).flat_map(|logits| chosen(case, logits, &bias, 2.5)).collect();
        // Rows are ordered by expert, then by token.
        let mut order: Vec<(u32, usize, usize)> =
            (0..wanted.len()).map(|route| (wanted[route].0 as u32, route / case.top_k, route)).collect();
        order.sort_unstable();
        for (route, (expert, share)) in wanted.iter().enumerate() {
            assert_eq!(found[route] as usize, *expert, "{case:?}: route {route}");
            assert!((f64::from(shares[route]) - share).abs() < 1e-5, "{case:?}: share {} for {share}", shares[route]);
            let (own, token, own_route) = order[places[route] as usize];
            assert_eq!((own as usize, own_route), (*expert, route), "{case:?}: its row");
            assert_eq!(tokens[places[route] as usize] as usize, token);
        }
        let mut next = 0;
        for group in groups.chunks_exact(4).filter(|group| group[2] > 0) {
            assert_eq!(group[1], next, "{case:?}: groups follow one another");
            let own = &order[next as usize..(next + group[2]) as usize];
            assert!(own.iter().all(|(expert, ..)| *expert == group[0]), "{case:?}: {group:?}");
            next += group[2];
        }
        assert_eq!(next as usize, wanted.len(), "{case:?}: groups have all rows");
    }
}

/// Tests tokens through gate, up and down products and the combination: with few tokens and tiles,
/// floats and integers.
#[test]
#[expect(clippy::too_many_lines, reason = "one case after the other")]
fn tokens_get_what_their_experts_make() {
    let Some(machine) = machine(false) else { return };
    let mut random = Random(37);
    let (columns, width, experts) = (64, 32, 8);
    for encoding in [Encoding::Plain(Dtype::F32), Encoding::Blocks(GgmlType::Q8_0)] {
        let mut made = |rows, columns| Sample::new(encoding, [rows, columns], Dtype::F32, &mut random);
        let samples: Vec<[Sample; 3]> =
            (0..experts).map(|_| [made(width, columns), made(width, columns), made(columns, width)]).collect();
        let uploaded: Vec<_> = samples
            .iter()
            .map(|own| own.each_ref().map(|own| own.upload(&machine, RowBlocks::all(own.shape[0]))))
            .collect();
        let sets = |part: std::ops::Range<usize>| -> Vec<WeightSet<'_>> {
            uploaded.iter().map(|own| own[part.clone()].iter().map(|weight| (weight, None)).collect()).collect()
        };
        let (gates, downs) = (machine.expert_weights(&sets(0..2)), machine.expert_weights(&sets(2..3)));
        let (gates, downs) = (gates.expect("weights"), downs.expect("weights"));
        let rounds = uploaded[0][0].rounds();
        for (tokens, top_k) in [(1, 2), (5, 1), (5, 2), (40, 3)] {
            let case = Case { experts, tokens, top_k, ..CASES[0] };
            let (x, logits) = (random.rows(tokens, columns), random.rows(tokens, experts));
            let (sum, residual) = (random.rows(tokens, columns), random.rows(tokens, columns));
            let routing = Routing {
                scores: case.scores,
                bias: None,
                groups: None,
                top_k,
                normalizes: case.normalizes,
                scale: 1.0,
            };
            let routes = machine.route(routing, &tensor(&logits, tokens)).expect("routes");
            let product = |weights, purpose, x: &candle_core::Tensor, of_tokens: bool| {
                let own = rounds.then(|| machine.rounded(None, x).expect("it is rounded"));
                let input = own.as_ref().map_or(ProductInput::Rows(x), ProductInput::Rounded);
                let input = if of_tokens { ExpertInput::OfTokens(input) } else { ExpertInput::OfRoutes(input) };
                machine.expert_product(weights, &routes, purpose, input, false).expect("a product").rows.remove(0)
            };
            let gated = product(&gates, Purpose::Gate(Activation::Relu), &tensor(&x, tokens), true);
            let made = product(&downs, Purpose::Write, &gated, false);
            let out = machine.mix(&routes, &made, Some(&tensor(&sum, tokens)), Some((&tensor(&residual, tokens), 0.5)));
            let see = |x: &[f32]| if rounds { rounded(x) } else { x.to_vec() };
            let mut wanted = Vec::new();
            for token in 0..tokens {
                let own = &x[token * columns..(token + 1) * columns];
                let own_sum = &sum[token * columns..(token + 1) * columns];
                let mut y: Vec<(f64, f64)> = own_sum.iter().map(|y| (f64::from(*y), 1.0)).collect();
                for (expert, share) in chosen(&case, &logits[token * experts..(token + 1) * experts], &[0.0; 8], 1.0) {
                    let [gate, up, down] = samples[expert].each_ref().map(Sample::numbers);
                    let seen = see(own);
                    let dot =
                        |w: &[f32], x: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
                    let gated = (0..width).map(|row| {
                        let row = row * columns..(row + 1) * columns;
                        (dot(&gate[row.clone()], &seen).max(0.0) * dot(&up[row], &seen)) as f32
                    });
                    let gated = see(&gated.collect::<Vec<_>>());
                    for ((y, size), row) in y.iter_mut().zip(down.chunks(width)) {
                        *y += share * dot(row, &gated);
                        *size += row.iter().zip(&gated).map(|(w, x)| f64::from((w * x).abs())).sum::<f64>();
                    }
                }
                let residual = &residual[token * columns..];
                wanted.extend(y.iter().zip(residual).map(|((y, size), r)| (f64::from(*r) + 0.5 * y, *size)));
            }
            let what = format!("{encoding}, {tokens} tokens to {top_k} experts each");
            check(&what, &numbers(&out.expect("rows")), &wanted, if tokens > 16 { 2e-3 } else { 1e-4 });
        }
        // Mismatched shapes are errors.
        let routes = machine.route(
            Routing { scores: RouterScores::Softmax, bias: None, groups: None, top_k: 2, normalizes: true, scale: 1.0 },
            &tensor(&[0.5; 8], 1),
        );
        let x = tensor(&random.rows(3, columns), 3);
        let beyond = machine.mix(&routes.expect("routes"), &x, None, None);
        assert!(beyond.is_err(), "rows of other routes");
    }
}

/// NaN logits give NaN shares, and valid experts.
#[test]
fn a_broken_router_is_told() {
    let Some(machine) = machine(false) else { return };
    for scores in
        [RouterScores::Softmax, RouterScores::Sigmoid, RouterScores::SoftmaxOfChosen, RouterScores::RootOfSoftplus]
    {
        let routing = Routing { scores, bias: None, groups: None, top_k: 2, normalizes: true, scale: 1.0 };
        let routes = machine.route(routing, &tensor(&[0.5, f32::NAN, 0.25, 0.125], 1)).expect("routes");
        assert!(words(&machine, &routes.chosen).iter().all(|expert| *expert < 4));
        assert!(words(&machine, &routes.weights).iter().all(|share| f32::from_bits(*share).is_nan()));
    }
    let rule =
        Routing { scores: RouterScores::Softmax, bias: None, groups: None, top_k: 2, normalizes: true, scale: 1.0 };
    assert!(rule.is_known(512) && !rule.is_known(513) && !rule.is_known(1), "as many as there are kernels for");
    let grouped = |count, keep| Routing { groups: Some(Groups { count, keep, best: 1 }), ..rule }.is_known(12);
    assert!(grouped(3, 1) && !grouped(5, 2) && !grouped(12, 1) && !grouped(3, 4) && !grouped(0, 0));
}
