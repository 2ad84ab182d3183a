//! Tests of products of every encoding, and of the operations on their results.

use architectures::Activation;
use formats::{Dtype, Encoding, GgmlType};

use super::{
    Random, Sample, alone, check, encodings, expected, machine, numbers, product, rounded, run, tensor, tolerance,
};
use crate::{DeviceWeight, ExpertRows, GpuRuntime, Product, ProductInput, Purpose, RowBlocks, WeightSet};

#[test]
fn products_of_every_encoding() {
    let Some(machine) = machine(false) else { return };
    // Numbers of rows that are not a multiple of a tile; one row of x, a few, and more than a tile.
    every_encoding(&machine, [70, 512], &[1, 3, 9, 67]);
}

/// A missing barrier shows up with another order of threads.
#[test]
fn the_order_of_threads_does_not_matter() {
    let Some(machine) = machine(true) else { return };
    every_encoding(&machine, [20, 512], &[2, 17]);
}

fn every_encoding(machine: &GpuRuntime, shape: [usize; 2], tokens: &[usize]) {
    let mut random = Random(7);
    for (encoding, float) in encodings() {
        let sample = Sample::new(encoding, shape, float, &mut random);
        let weight = sample.upload(machine, RowBlocks::all(shape[0]));
        let w = sample.numbers();
        for tokens in tokens.iter().copied() {
            let x = random.rows(tokens, shape[1]);
            let seen = if weight.rounds() { rounded(&x) } else { x.clone() };
            let found = run(machine, product(&alone(&weight), Purpose::Write), &tensor(&x, tokens));
            let what = format!("{encoding} of {tokens} rows");
            check(&what, &numbers(&found[0]), &expected(&w, &seen, shape[1]), tolerance(encoding, tokens > 8));
        }
    }
}

/// Tests widths that are not a multiple of any unit, and exact sums.
#[test]
fn plain_rows_of_any_width() {
    let Some(machine) = machine(false) else { return };
    let mut random = Random(3);
    for (dtype, columns) in [(Dtype::F32, 1), (Dtype::F16, 7), (Dtype::Bf16, 30), (Dtype::Bf16, 100), (Dtype::F32, 264)]
    {
        let encoding = Encoding::Plain(dtype);
        let sample = Sample::new(encoding, [9, columns], Dtype::F32, &mut random);
        let weight = sample.upload(&machine, RowBlocks::all(9));
        for (tokens, is_exact) in [(1, false), (20, false), (20, true)] {
            let x = random.rows(tokens, columns);
            let weights = alone(&weight);
            let asked = Product { is_exact, ..product(&weights, Purpose::Write) };
            let found = run(&machine, asked, &tensor(&x, tokens));
            let is_tile = tokens > 8 && !is_exact;
            let what = format!("{encoding} of {columns} columns");
            check(&what, &numbers(&found[0]), &expected(&sample.numbers(), &x, columns), tolerance(encoding, is_tile));
        }
    }
}

/// Tests several products at once, biases, gates and sums, for few rows and tiles, rounded and not.
#[test]
fn purposes_of_products() {
    let Some(machine) = machine(false) else { return };
    let mut random = Random(11);
    let columns = 256;
    for encoding in [Encoding::Plain(Dtype::F32), Encoding::Affine { bits: 4, group: 64 }] {
        let samples = [50, 50, 19].map(|rows| Sample::new(encoding, [rows, columns], Dtype::F32, &mut random));
        let weights = samples.each_ref().map(|own| own.upload(&machine, RowBlocks::all(own.shape[0])));
        let biases = samples.each_ref().map(|own| random.rows(1, own.shape[0]));
        let bias_tensors = biases.each_ref().map(|own| tensor(own, 1));
        for tokens in [1, 5, 33] {
            let x = random.rows(tokens, columns);
            let seen = if weights[0].rounds() { rounded(&x) } else { x.clone() };
            let tolerance = tolerance(encoding, tokens > 8);
            // `y + bias` of each weight.
            let each = |at: usize| -> Vec<(f64, f64)> {
                let all = expected(&samples[at].numbers(), &seen, columns);
                let rows = samples[at].shape[0];
                all.iter()
                    .zip(0..)
                    .map(|((y, size), at_y)| (y + f64::from(biases[at][at_y % rows]), size + 1.0))
                    .collect()
            };
            let all: WeightSet<'_> = weights.iter().zip(bias_tensors.iter().map(Some)).collect();
            let [one, two] = [[all[..1].to_vec()], [all[..2].to_vec()]];
            let found = run(&machine, product(std::slice::from_ref(&all), Purpose::Write), &tensor(&x, tokens));
            for (at, found) in found.iter().enumerate() {
                check(&format!("{encoding}, weight {at}"), &numbers(found), &each(at), tolerance);
            }
            for activation in [
                Activation::Silu,
                Activation::GeluTanh,
                Activation::Gelu,
                Activation::GeluQuick,
                Activation::Relu,
                Activation::ReluSquared,
            ] {
                let one = run(&machine, product(&one, Purpose::Activate(activation)), &tensor(&x, tokens));
                let wanted: Vec<_> =
                    each(0).iter().map(|(y, size)| (activated(activation, *y), size * (2.0 + 2.0 * y.abs()))).collect();
                check(&format!("{encoding}, {activation:?}"), &numbers(&one[0]), &wanted, tolerance);
            }
            let clamped = [Activation::ClampedSilu { limit: 7.0 }, Activation::BoundedSilu { limit: 7.0 }];
            for activation in [Activation::Gelu].into_iter().chain(clamped) {
                let gated = run(&machine, product(&two, Purpose::Gate(activation)), &tensor(&x, tokens));
                let pairs = each(0).into_iter().zip(each(1));
                let wanted: Vec<_> = pairs
                    .map(|((g, g_size), (u, u_size))| {
                        (gated_by(activation, g, u), g_size * (u.abs() + 2.0) * 2.0 + u_size * (g.abs() + 2.0) * 2.0)
                    })
                    .collect();
                check(&format!("{encoding}, {activation:?}"), &numbers(&gated[0]), &wanted, tolerance);
            }
            let residual = random.rows(tokens, samples[0].shape[0]);
            let sum = Purpose::Add(&tensor(&residual, tokens), 0.5);
            let found = run(&machine, product(&one, sum), &tensor(&x, tokens));
            let wanted: Vec<_> =
                each(0).iter().zip(&residual).map(|((y, size), r)| (f64::from(*r) + 0.5 * y, *size + 1.0)).collect();
            check(&format!("{encoding}, a sum"), &numbers(&found[0]), &wanted, tolerance);
        }
    }
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
        Activation::GeluQuick => x / (1.0 + (-1.702 * x).exp()),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Silu | Activation::ClampedSilu { .. } | Activation::BoundedSilu { .. } => x / (1.0 + (-x).exp()),
    }
}

fn gated_by(activation: Activation, gate: f64, up: f64) -> f64 {
    match activation {
        Activation::ClampedSilu { limit } => {
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            gate / (1.0 + (-1.702 * gate).exp()) * (up + 1.0)
        }
        Activation::BoundedSilu { limit } => activated(activation, gate.min(limit)) * up.clamp(-limit, limit),
        other => activated(other, gate) * up,
    }
}

/// Returns the error function: its series, or ±1 where the series would lose precision.
fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

#[test]
fn rows_of_a_weight_that_lie_apart() {
    let Some(machine) = machine(false) else { return };
    let mut random = Random(5);
    let sample = Sample::new(Encoding::Plain(Dtype::Bf16), [60, 64], Dtype::F32, &mut random);
    // The last four of each ten rows.
    let part = RowBlocks { first: 6, count: 24, block: 4, stride: 10 };
    let weight = sample.upload(&machine, part);
    let all = sample.numbers();
    let w: Vec<f32> = (0..24).flat_map(|row| all[(6 + row / 4 * 10 + row % 4) * 64..][..64].to_vec()).collect();
    for tokens in [2, 12] {
        let x = random.rows(tokens, 64);
        let found = run(&machine, product(&alone(&weight), Purpose::Write), &tensor(&x, tokens));
        let tolerance = tolerance(sample.encoding, tokens > 8);
        check("rows apart", &numbers(&found[0]), &expected(&w, &x, 64), tolerance);
    }
    let arrays = || sample.arrays(&machine);
    for wrong in [
        RowBlocks { first: 14, count: 9, block: 8, stride: 1 },
        RowBlocks { count: 61, ..RowBlocks::all(60) },
        RowBlocks { first: 31, ..part },
        RowBlocks { block: 0, ..part },
    ] {
        assert!(DeviceWeight::new(sample.encoding, [60, 64], arrays(), wrong).is_err(), "{wrong:?}");
    }
    assert!(DeviceWeight::new(sample.encoding, [61, 64], arrays(), RowBlocks::all(61)).is_err(), "other lengths");
}

#[test]
fn experts_have_rows_of_their_own() {
    let Some(machine) = machine(false) else { return };
    let mut random = Random(9);
    for encoding in [Encoding::Plain(Dtype::Bf16), Encoding::Blocks(GgmlType::Q4_0)] {
        let samples: Vec<Sample> = (0..4).map(|_| Sample::new(encoding, [40, 64], Dtype::F32, &mut random)).collect();
        let weights: Vec<_> = samples.iter().map(|own| own.upload(&machine, RowBlocks::all(40))).collect();
        let sets: Vec<WeightSet<'_>> =
            weights.chunks(2).map(|own| own.iter().map(|weight| (weight, None)).collect()).collect();
        let run = |expert, first, count| ExpertRows { expert, first, count };
        for runs in [vec![run(1, 0, 1), run(0, 1, 3)], vec![run(0, 0, 13), run(1, 13, 2)]] {
            let tokens = runs.iter().map(|run| run.count).sum();
            let x = random.rows(tokens, 64);
            let x_tensor = tensor(&x, tokens);
            let found =
                super::run(&machine, Product { runs: Some(&runs), ..product(&sets, Purpose::Write) }, &x_tensor);
            let seen = if weights[0].rounds() { rounded(&x) } else { x.clone() };
            for (at, found) in found.iter().enumerate() {
                let own = |run: &ExpertRows| {
                    let rows = &seen[run.first * 64..(run.first + run.count) * 64];
                    expected(&samples[2 * run.expert + at].numbers(), rows, 64)
                };
                let wanted: Vec<_> = runs.iter().flat_map(own).collect();
                check(&format!("{encoding}, {runs:?}"), &numbers(found), &wanted, tolerance(encoding, tokens > 8));
            }
        }
        let x = tensor(&random.rows(2, 64), 2);
        let beyond = Product { runs: Some(&[run(0, 1, 2)]), ..product(&sets, Purpose::Write) };
        let beyond = machine.product(beyond, ProductInput::Rows(&x));
        assert!(beyond.is_err(), "rows that there are not");
    }
}

/// Gated and attention results are rounded in the kernel just as in a separate launch.
#[test]
fn results_are_rounded_for_the_next_product() {
    let Some(machine) = machine(false) else { return };
    let mut random = Random(19);
    let encoding = Encoding::Affine { bits: 4, group: 32 };
    let [gate, up] =
        [0, 1].map(|_| Sample::new(encoding, [96, 64], Dtype::F32, &mut random).upload(&machine, RowBlocks::all(96)));
    let next = Sample::new(encoding, [5, 96], Dtype::F32, &mut random).upload(&machine, RowBlocks::all(5));
    let both = [vec![(&gate, None), (&up, None)]];
    for tokens in [1, 8] {
        let x = machine.rounded(None, &tensor(&random.rows(tokens, 64), tokens)).expect("it is rounded");
        let gates = product(&both, Purpose::Gate(Activation::Silu));
        let made = machine.product(gates, ProductInput::Rounded(&x)).expect("a product");
        let apart = machine.rounded(None, &made.rows[0]).expect("it is rounded");
        let on_the_way = made.rounded.expect("few rows of integers");
        for rounded in [(&on_the_way.codes, &apart.codes), (&on_the_way.factors, &apart.factors)] {
            assert_eq!(machine.read(rounded.0).expect("bytes"), machine.read(rounded.1).expect("bytes"));
        }
        let again = machine.product(product(&alone(&next), Purpose::Write), ProductInput::Rounded(&on_the_way));
        assert_eq!(again.expect("a product").rows[0].dims(), [tokens, 5]);
    }
}

/// NaN stays NaN, and nothing else becomes NaN.
#[test]
fn what_is_not_a_number_is_told() {
    let Some(machine) = machine(false) else { return };
    let sample = Sample::new(Encoding::Affine { bits: 4, group: 32 }, [5, 64], Dtype::F32, &mut Random(1));
    let weight = sample.upload(&machine, RowBlocks::all(5));
    let mut x = vec![0.25; 64];
    x[40] = f32::NAN;
    let found = run(&machine, product(&alone(&weight), Purpose::Write), &tensor(&x, 1));
    assert!(numbers(&found[0]).iter().all(|y| y.is_nan()));
    // The same in tiles, with any NaN bits.
    let floats = Sample::new(Encoding::Plain(Dtype::F32), [5, 64], Dtype::F32, &mut Random(1));
    let floats = floats.upload(&machine, RowBlocks::all(5));
    let long = [f32::from_bits(0x7fff_ffff); 64 * 20];
    let found = run(&machine, product(&alone(&floats), Purpose::Write), &tensor(&long, 20));
    assert!(numbers(&found[0]).iter().all(|y| y.is_nan()));
    let found = run(&machine, product(&alone(&weight), Purpose::Write), &tensor(&[0.0; 64], 1));
    assert!(numbers(&found[0]).iter().all(|y| *y == 0.0), "{found:?}");
}
