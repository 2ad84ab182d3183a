//! Tests of norms, and of rounding after them.

use architectures::{Activation, NormKind};
use candle_core::Tensor;
use formats::{Dtype, Encoding};

use super::{Random, Sample, alone, check, expected, machine, numbers, product, rounded, tensor};
use crate::{Map, Norm, NormOutput, ProductInput, Purpose, RowBlocks};

#[test]
#[expect(clippy::too_many_lines, reason = "one case after the other")]
fn norms_of_rows_and_of_runs() {
    let Some(machine) = machine(true) else { return };
    let mut random = Random(13);
    for (kind, width, runs, weight_rows, has_bias) in [
        (NormKind::Rms, 320, 1, 1, false),
        (NormKind::Layer, 2080, 1, 1, true),
        (NormKind::Rms, 64, 6, 1, false),
        (NormKind::Layer, 24, 4, 2, false),
        (NormKind::Rms, 7, 1, 1, true),
        (NormKind::Factors, 96, 1, 1, false),
    ] {
        let rows = 3;
        let mut x = random.rows(rows, width * runs);
        for x in &mut x {
            *x += 0.5;
        }
        let (weight, bias) = (random.rows(weight_rows, width), random.rows(1, width));
        let (weight_tensor, bias_tensor) = (tensor(&weight, weight_rows), tensor(&bias, 1));
        let norm = Norm { kind, width, weight: &weight_tensor, bias: has_bias.then_some(&bias_tensor), epsilon: 1e-5 };
        let wanted: Vec<(f64, f64)> = x
            .chunks(width)
            .enumerate()
            .flat_map(|(run, x)| {
                let count = width as f64;
                let mean =
                    if kind == NormKind::Layer { x.iter().map(|x| f64::from(*x)).sum::<f64>() / count } else { 0.0 };
                let square = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
                let factor = if kind == NormKind::Factors { 1.0 } else { 1.0 / (square + f64::from(1e-5f32)).sqrt() };
                let (weight, bias) = (&weight[run % weight_rows * width..][..width], &bias);
                let each = x.iter().zip(weight).zip(bias).map(move |((x, w), b)| {
                    (f64::from(*x) - mean) * factor * f64::from(*w) + if has_bias { f64::from(*b) } else { 0.0 }
                });
                each.collect::<Vec<_>>()
            })
            .map(|y| (y, 1.0))
            .collect();
        let normed = machine.norm(norm, &tensor(&x, rows), None).expect("a norm");
        check(&format!("{kind:?} of {width}"), &numbers(&normed), &wanted, 1e-5);
        let residual = random.rows(rows, width * runs);
        let sum = machine.norm(norm, &tensor(&x, rows), Some((&tensor(&residual, rows), 0.5))).expect("a norm");
        let wanted: Vec<_> = wanted.iter().zip(&residual).map(|((y, _), r)| (f64::from(*r) + 0.5 * y, 1.0)).collect();
        check(&format!("{kind:?} of {width}, added"), &numbers(&sum), &wanted, 1e-5);
    }
    // A residual norm and a norm of its result in one launch.
    for width in [96, 2080] {
        let [x, residual] = [0, 1].map(|_| tensor(&random.rows(3, width), 3));
        let [first, second] = [0, 1].map(|_| tensor(&random.rows(1, width), 1));
        let norm = |weight| Norm { kind: NormKind::Rms, width, weight, bias: None, epsilon: 1e-5 };
        let sum = machine.norm(norm(&first), &x, Some((&residual, 0.5))).expect("a norm");
        let next = numbers(&machine.norm(norm(&second), &sum, None).expect("a norm"));
        let twice = |is_rounded| machine.norm_twice(norm(&first), &x, (&residual, 0.5), norm(&second), is_rounded);
        let (own, NormOutput::Rows(rows)) = twice(false).expect("norms") else { panic!("rows were wanted") };
        let is_close = |found: &[f32], wanted: &[f32]| found.iter().zip(wanted).all(|(a, b)| (a - b).abs() <= 1e-5);
        assert!(numbers(&own) == numbers(&sum) && is_close(&numbers(&rows), &next), "{width}");
        let (own, NormOutput::Rounded(rounded_next)) = twice(true).expect("norms") else { panic!("codes were wanted") };
        let separate = machine.rounded(Some(norm(&second)), &sum).expect("it is rounded");
        let read = |memory| machine.read(memory).expect("memory");
        assert!(numbers(&own) == numbers(&sum) && read(&rounded_next.codes) == read(&separate.codes), "{width}");
    }
    // Rounding after a norm, tested by a product with ones.
    let weight = Sample::new(Encoding::Affine { bits: 8, group: 32 }, [3, 96], Dtype::F32, &mut random);
    let x = tensor(&random.rows(2, 96), 2);
    let ones = tensor(&[1.0; 96], 1);
    let norm = Norm { kind: NormKind::Rms, width: 96, weight: &ones, bias: None, epsilon: 0.0 };
    let normed = numbers(&machine.norm(norm, &x, None).expect("a norm"));
    let rounded_x = machine.rounded(Some(norm), &x).expect("it is rounded");
    let uploaded = weight.upload(&machine, RowBlocks::all(3));
    let found = machine
        .product(product(&alone(&uploaded), Purpose::Write), ProductInput::Rounded(&rounded_x))
        .expect("a product")
        .rows;
    check("rounded after a norm", &numbers(&found[0]), &expected(&weight.numbers(), &rounded(&normed), 96), 1e-4);
    assert!(machine.rounded(None, &tensor(&[0.0; 40], 1)).is_err(), "no whole runs");
}

/// A map, and the same function in float64.
type Case<'a> = (Map<'a, Tensor>, &'a dyn Fn(f64, f64) -> f64);

#[test]
fn elements_are_changed() {
    let Some(machine) = machine(false) else { return };
    let mut random = Random(43);
    let (rows, width) = (3, 130);
    let (x, y, own) = (random.rows(rows, width), random.rows(rows, width), random.rows(rows, 1));
    let (x_at, y_at, own_at) = (tensor(&x, rows), tensor(&y, rows), tensor(&own, rows));
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let cases: [Case<'_>; 13] = [
        (Map::Add(&y_at, 0.5), &|x, y| x + 0.5 * y),
        (Map::Scale(-3.0), &|x, _| -3.0 * x),
        (Map::Clamp { low: -0.25, high: 0.5 }, &|x, _| x.clamp(-0.25, 0.5)),
        (Map::SoftCap(0.5), &|x, _| 0.5 * (x / 0.5).tanh()),
        (Map::Times(&y_at), &|x, y| x * y),
        (Map::Silu(&y_at), &|x, y| x * y * sigmoid(y)),
        (Map::Softplus(&y_at), &|x, y| x * y.exp().ln_1p()),
        (Map::Xielu { positive: 0.8, negative: 1.2 }, &|x, _| {
            let curve = if x > 0.0 { 0.8 * x * x } else { 1.2 * (x.min(-1e-6).exp_m1() - x) };
            curve + 0.5 * x
        }),
        (Map::SignedRoot(0.3), &|x, _| x.signum() * x.abs().max(0.3).sqrt()),
        (Map::Activate(Activation::Relu), &|x, _| x.max(0.0)),
        (Map::Activate(Activation::ReluSquared), &|x, _| x.max(0.0).powi(2)),
        (Map::Gate(Activation::ClampedSilu { limit: 0.5 }, &y_at), &|x, y| {
            let x = x.min(0.5);
            x * sigmoid(1.702 * x) * (y.clamp(-0.5, 0.5) + 1.0)
        }),
        (Map::Gate(Activation::BoundedSilu { limit: 0.5 }, &y_at), &|x, y| {
            x.min(0.5) * sigmoid(x.min(0.5)) * y.clamp(-0.5, 0.5)
        }),
    ];
    for (map, expected) in cases {
        let wanted: Vec<_> = x.iter().zip(&y).map(|(x, y)| (expected(f64::from(*x), f64::from(*y)), 1.0)).collect();
        check(&format!("{map:?}"), &numbers(&machine.map_rows(&x_at, map).expect("rows")), &wanted, 1e-6);
    }
    for (map, y) in [(Map::Sigmoid(&own_at), &own), (Map::Sigmoid(&y_at), &y)] {
        let shared = x.len() / y.len();
        let gated = |(at, x): (usize, &f32)| (f64::from(*x) * sigmoid(f64::from(y[at / shared])), 1.0);
        let wanted: Vec<_> = x.iter().enumerate().map(gated).collect();
        check("a gate", &numbers(&machine.map_rows(&x_at, map).expect("rows")), &wanted, 1e-6);
    }
    assert!(machine.map_rows(&x_at, Map::Times(&own_at)).is_ok(), "an element for each row");
    assert!(machine.map_rows(&own_at, Map::Times(&x_at)).is_err(), "other rows");
    let broken = machine.map_rows(&tensor(&[f32::NAN; 2], 1), Map::Clamp { low: -1.0, high: 1.0 }).expect("rows");
    assert!(numbers(&broken).iter().all(|x| x.is_nan()));
}
