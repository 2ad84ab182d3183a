//! Norms, and rounding behind them.

use architectures::NormKind;
use formats::{Dtype, Encoding};

use super::{Random, Sample, alone, check, expected, machine, numbers, product, rounded, tensor};
use crate::{Input, Norm, Purpose, RowBlocks};

#[test]
fn norms_of_rows_and_of_runs() {
    let Some(machine) = machine(true) else { return };
    let mut random = Random(13);
    for (kind, width, runs, turns, has_bias) in [
        (NormKind::Rms, 320, 1, 1, false),
        (NormKind::Layer, 2080, 1, 1, true),
        (NormKind::Rms, 64, 6, 1, false),
        (NormKind::Layer, 24, 4, 2, false),
        (NormKind::Rms, 7, 1, 1, true),
    ] {
        let rows = 3;
        let mut x = random.rows(rows, width * runs);
        for x in &mut x {
            *x += 0.5;
        }
        let (weight, bias) = (random.rows(turns, width), random.rows(1, width));
        let (weight_tensor, bias_tensor) = (tensor(&weight, turns), tensor(&bias, 1));
        let norm = Norm { kind, width, weight: &weight_tensor, bias: has_bias.then_some(&bias_tensor), epsilon: 1e-5 };
        let wanted: Vec<(f64, f64)> = x
            .chunks(width)
            .enumerate()
            .flat_map(|(run, x)| {
                let count = width as f64;
                let mean =
                    if kind == NormKind::Layer { x.iter().map(|x| f64::from(*x)).sum::<f64>() / count } else { 0.0 };
                let square = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
                let factor = 1.0 / (square + f64::from(1e-5f32)).sqrt();
                let (weight, bias) = (&weight[run % turns * width..][..width], &bias);
                let each = x.iter().zip(weight).zip(bias).map(move |((x, w), b)| {
                    (f64::from(*x) - mean) * factor * f64::from(*w) + if has_bias { f64::from(*b) } else { 0.0 }
                });
                each.collect::<Vec<_>>()
            })
            .map(|y| (y, 1.0))
            .collect();
        let normed = machine.norm(norm, &tensor(&x, rows)).expect("a norm");
        check(&format!("{kind:?} of {width}"), &numbers(&normed), &wanted, 1e-5);
    }
    // Rounding after a norm, by a product with ones.
    let weight = Sample::new(Encoding::Affine { bits: 8, group: 32 }, [3, 96], Dtype::F32, &mut random);
    let x = tensor(&random.rows(2, 96), 2);
    let ones = tensor(&[1.0; 96], 1);
    let norm = Norm { kind: NormKind::Rms, width: 96, weight: &ones, bias: None, epsilon: 0.0 };
    let normed = numbers(&machine.norm(norm, &x).expect("a norm"));
    let rounded_x = machine.rounded(Some(norm), &x).expect("it is rounded");
    let uploaded = weight.upload(&machine, RowBlocks::all(3));
    let found = machine
        .product(product(&alone(&uploaded), Purpose::Write), Input::Rounded(&rounded_x))
        .expect("a product")
        .rows;
    check("rounded after a norm", &numbers(&found[0]), &expected(&weight.numbers(), &rounded(&normed), 96), 1e-4);
    assert!(machine.rounded(None, &tensor(&[0.0; 40], 1)).is_err(), "no whole runs");
}
