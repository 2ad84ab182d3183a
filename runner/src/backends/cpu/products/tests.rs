//! Tests of runs of rows with projections of their own, compared with each run alone.

use std::sync::Arc;

use protocol::Array;

use super::*;
use crate::backend::{Backend, MatrixSource};
use crate::mapped::{self, Blobs, Mapper};
use kernels::pool::Pool;

const ROWS: usize = 37;
const COLUMNS: usize = 96;

/// A weight with small values.
struct Source {
    dtype: &'static str,
    /// Number of elements in a block or quantization group.
    group: u64,
    data: Vec<u8>,
    /// Scales and biases of groups, and their type.
    numbers: Option<(&'static str, [Vec<u8>; 2])>,
}

/// Returns one weight for each kind of kernel.
fn sources(seed: usize) -> [Source; 7] {
    let number = |at: usize| ((at * 37 + seed * 11) % 97) as f32 / 97.0 - 0.5;
    let code = |at: usize| (at * 83 + at / 29 + seed) as u8;
    let numbers = (0..ROWS * COLUMNS).map(number);
    let blocks = (0..ROWS * COLUMNS / 32).flat_map(|block| {
        let mut bytes = [0; 18];
        bytes[..2].copy_from_slice(&half::f16::from_f32(number(block) * 0.1).to_le_bytes());
        bytes[2..].iter_mut().enumerate().for_each(|(at, byte)| *byte = code(16 * block + at));
        bytes
    });
    let plain = |dtype, data| Source { dtype, group: 0, data, numbers: None };
    // Powers of two around 1/32.
    let powers = (0..ROWS * COLUMNS / 32).map(|at| 120 + code(at) % 5).collect();
    let fp8: Vec<u8> = (0..ROWS * COLUMNS).map(code).map(|code| if code & 0x7f == 0x7f { 0 } else { code }).collect();
    let of_groups = |scale: f32| {
        (0..ROWS * COLUMNS / 32).flat_map(|at| half::bf16::from_f32(number(at) * scale).to_le_bytes()).collect()
    };
    let of_blocks = (0..ROWS.div_ceil(64) * COLUMNS.div_ceil(64)).flat_map(|at| (0.01 * number(at)).to_le_bytes());
    [
        plain("F32", numbers.clone().flat_map(f32::to_le_bytes).collect()),
        plain("F16", numbers.clone().flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect()),
        plain("BF16", numbers.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect()),
        Source { dtype: "q4_0", group: 32, data: blocks.collect(), numbers: None },
        Source {
            dtype: "int4",
            group: 32,
            data: (0..ROWS * COLUMNS / 2).map(code).collect(),
            numbers: Some(("BF16", [of_groups(0.1), of_groups(0.7)])),
        },
        Source { dtype: "mxfp8", group: 32, data: fp8.clone(), numbers: Some(("U8", [powers, Vec::new()])) },
        Source { dtype: "fp8_64x64", group: 0, data: fp8, numbers: Some(("F32", [of_blocks.collect(), Vec::new()])) },
    ]
}

/// Creates a matrix of all rows, or of some.
fn matrix(source: &Source, bias: bool, rows: Option<Rows>) -> Matrix {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let (mut bytes, mut arrays) = (source.data.clone(), Vec::new());
    for numbers in source.numbers.iter().flat_map(|(_, numbers)| numbers) {
        arrays.push((bytes.len() as u64, numbers.len() as u64));
        bytes.extend(numbers);
    }
    std::fs::write(file.path(), &bytes).expect("written");
    let blobs = Blobs::of_files(&[file.path().to_owned()]).expect("mapped");
    let array = |(offset, size), dtype: &str| Array { blob: 0, offset, size, dtype: dtype.to_owned() };
    let of_groups = |at: usize| {
        let (offset, size) = arrays.get(at).copied().filter(|(_, size)| *size > 0)?;
        Some(array((offset, size), source.numbers.as_ref()?.0))
    };
    let plan = protocol::Tensor {
        name: "w".to_owned(),
        dtype: source.dtype.to_owned(),
        group: source.group,
        shape: vec![ROWS as u64, COLUMNS as u64],
        weight: array((0, source.data.len() as u64), if source.numbers.is_some() { "U8" } else { source.dtype }),
        scale: of_groups(0),
        bias: of_groups(1),
        global_scale: None,
    };
    let encoding = mapped::encoding(&plan).expect("an encoding");
    let tensor = Mapper(&blobs).tensor(&plan, encoding).expect("a tensor");
    let weight = WeightSource::Mapped { tensor, rows };
    let bias = bias.then(|| (0..ROWS).map(|row| row as f32 * 0.25).collect());
    Matrix::new(MatrixSource { weight, bias, adapters: Vec::new() }, Instructions::best())
}

fn cpu(threads: usize) -> Cpu {
    Cpu::new(Arc::new(Pool::new(threads).expect("threads")), Instructions::best())
}

/// Covers all kinds of weights, runs of one row and of many, and matrices whose rows are not a
/// multiple of the group size.
#[test]
fn runs_are_computed_as_if_alone() {
    let ranges = [0..1, 1..21, 21..21, 21..26, 26..27];
    let runs: Vec<Run> = ranges.into_iter().enumerate().map(|(by, rows)| Run { by, rows }).collect();
    let x: Vec<f32> = (0..27 * COLUMNS).map(|at| ((at * 53) % 101) as f32 / 50.0 - 1.0).collect();
    for kind in 0..sources(0).len() {
        let pair =
            |seed: usize| [false, true].map(|bias| matrix(&sources(2 * seed + usize::from(bias))[kind], bias, None));
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
    let matrix = matrix(&sources(0)[0], false, None);
    let cpu = cpu(2);
    let x = cpu.rows(8, COLUMNS, |_| Ok(())).expect("rows");
    let all: [&[(usize, usize)]; 7] =
        [&[], &[(0, 5)], &[(0, 5), (4, 8)], &[(0, 5), (6, 8)], &[(1, 8)], &[(0, 9)], &[(0, 5), (5, 3), (3, 8)]];
    for ranges in all {
        let runs: Vec<Run> = ranges.iter().map(|(begin, end)| Run { by: 0, rows: *begin..*end }).collect();
        assert!(cpu.project_runs(&runs, |_| [&matrix], &x).is_err(), "{ranges:?}");
    }
}

/// Compares products with those of decoded weights, within the rounding of activations, for all
/// rows and for some.
#[test]
fn products_are_those_of_what_codecs_decode() {
    let part = Rows { first: 3, count: 18, block: 6, stride: 8 };
    for m in [1, 5, 19] {
        let x: Vec<f32> = (0..m * COLUMNS).map(|at| ((at * 53) % 101) as f32 / 50.0 - 1.0).collect();
        for (source, rows) in sources(5).iter().flat_map(|source| [(source, None), (source, Some(part))]) {
            let matrix = matrix(source, false, rows);
            let [products] = cpu(2).products([&matrix], &x);
            let mut own = vec![0.0; COLUMNS];
            for row in 0..matrix.rows() {
                matrix.decode_row(row, &mut own);
                for (x, products) in x.chunks_exact(COLUMNS).zip(products.chunks_exact(matrix.rows())) {
                    let exact: f32 = own.iter().zip(x).map(|(a, b)| a * b).sum();
                    let size: f32 = own.iter().zip(x).map(|(a, b)| (a * b).abs()).sum();
                    let dtype = source.dtype;
                    assert!((products[row] - exact).abs() <= 0.01 * size + 1e-4, "{dtype} {m} {row}: not {exact}");
                }
            }
        }
    }
}
