//! Runs of rows, each by projections of its own, against each run alone.

use std::sync::Arc;

use protocol::Array;

use super::*;
use crate::backend::{Backend, MatrixSource};
use crate::mapped::{self, Blobs, Mapper};
use crate::pool::Pool;

const ROWS: usize = 37;
const COLUMNS: usize = 96;

/// Bytes of a weight whose numbers are small, and the name of their type with the elements of a block.
fn weights(seed: usize) -> [(Vec<u8>, &'static str, u64); 4] {
    let number = |at: usize| ((at * 37 + seed * 11) % 97) as f32 / 97.0 - 0.5;
    let numbers = (0..ROWS * COLUMNS).map(number);
    let blocks = (0..ROWS * COLUMNS / 32).flat_map(|block| {
        let mut bytes = [0; 18];
        bytes[..2].copy_from_slice(&half::f16::from_f32(number(block) * 0.1).to_le_bytes());
        bytes[2..].iter_mut().enumerate().for_each(|(at, byte)| *byte = (block * 29 + at * 83 + seed) as u8);
        bytes
    });
    [
        (numbers.clone().flat_map(f32::to_le_bytes).collect(), "F32", 0),
        (numbers.clone().flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect(), "F16", 0),
        (numbers.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(), "BF16", 0),
        (blocks.collect(), "q4_0", 32),
    ]
}

fn matrix(bytes: &[u8], dtype: &str, group: u64, bias: bool) -> Matrix {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), bytes).expect("written");
    let blobs = Blobs::of_files(&[file.path().to_owned()]).expect("mapped");
    let weight = Array { blob: 0, offset: 0, size: bytes.len() as u64, dtype: dtype.to_owned() };
    let plan = protocol::Tensor {
        name: "w".to_owned(),
        dtype: dtype.to_owned(),
        group,
        shape: vec![ROWS as u64, COLUMNS as u64],
        weight,
        scale: None,
        bias: None,
        global_scale: None,
    };
    let encoding = mapped::encoding(&plan).expect("an encoding");
    let tensor = Mapper(&blobs).tensor(&plan, encoding).expect("a tensor");
    let weight = WeightSource::Mapped { tensor, rows: None };
    let bias = bias.then(|| (0..ROWS).map(|row| row as f32 * 0.25).collect());
    Matrix::new(MatrixSource { weight, bias, adapters: Vec::new() }, Instructions::best())
}

fn cpu(threads: usize) -> Cpu {
    Cpu::new(Arc::new(Pool::new(threads).expect("threads")), Instructions::best())
}

/// All kinds of weights, runs of one row and of many, matrices whose rows are no whole groups.
#[test]
fn runs_are_computed_as_if_alone() {
    let ranges = [0..1, 1..21, 21..21, 21..26, 26..27];
    let runs: Vec<Run> = ranges.into_iter().enumerate().map(|(by, rows)| Run { by, rows }).collect();
    let x: Vec<f32> = (0..27 * COLUMNS).map(|at| ((at * 53) % 101) as f32 / 50.0 - 1.0).collect();
    for kind in 0..4 {
        let pair = |seed: usize| {
            [false, true].map(|bias| {
                let (bytes, dtype, group) = &weights(2 * seed + usize::from(bias))[kind];
                matrix(bytes, dtype, *group, bias)
            })
        };
        let matrices: Vec<[Matrix; 2]> = (0..runs.len()).map(pair).collect();
        for threads in [1, 3] {
            let cpu = cpu(threads);
            let all = cpu.run_products(&runs, |by| matrices[by].each_ref(), &x);
            for run in &runs {
                let own = &x[run.rows.start * COLUMNS..run.rows.end * COLUMNS];
                let alone = cpu.products(matrices[run.by].each_ref(), own);
                for (all, alone) in all.iter().zip(&alone) {
                    let here = &all[run.rows.start * ROWS..run.rows.end * ROWS];
                    assert!(here.iter().all(|x| x.is_finite()) && **alone == *here, "kind {kind}, {run:?}");
                }
            }
        }
    }
}

#[test]
fn runs_that_are_not_all_rows_are_refused() {
    let (bytes, dtype, group) = &weights(0)[0];
    let matrix = matrix(bytes, dtype, *group, false);
    let cpu = cpu(2);
    let x = cpu.rows(8, COLUMNS, |_| Ok(())).expect("rows");
    let all: [&[(usize, usize)]; 7] =
        [&[], &[(0, 5)], &[(0, 5), (4, 8)], &[(0, 5), (6, 8)], &[(1, 8)], &[(0, 9)], &[(0, 5), (5, 3), (3, 8)]];
    for ranges in all {
        let runs: Vec<Run> = ranges.iter().map(|(begin, end)| Run { by: 0, rows: *begin..*end }).collect();
        assert!(cpu.project_runs(&runs, |_| [&matrix], &x).is_err(), "{ranges:?}");
    }
}
