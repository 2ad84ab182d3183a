//! Tests of every kind of plain weight with every instruction set.

use formats::weight::{Arrays, Numbers};

use super::*;
use crate::pool::Pool;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i + seed) * 37 % 101) as f32 - 50.0) / 17.0).collect()
}

/// Returns the encoding, the bytes and the decoded values of numbers in a kind.
fn encoded(kind: NumberFormat, numbers: &[f32]) -> (Encoding, Vec<u8>, Vec<f32>) {
    match kind {
        NumberFormat::F32 => {
            (Encoding::Plain(Dtype::F32), numbers.iter().flat_map(|x| x.to_le_bytes()).collect(), numbers.to_vec())
        }
        NumberFormat::F16 => {
            let halves: Vec<f16> = numbers.iter().map(|x| f16::from_f32(*x)).collect();
            let bytes = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
            (Encoding::Plain(Dtype::F16), bytes, halves.iter().map(|x| x.to_f32()).collect())
        }
        NumberFormat::Bf16 => {
            let halves: Vec<bf16> = numbers.iter().map(|x| bf16::from_f32(*x)).collect();
            let bytes = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
            (Encoding::Plain(Dtype::Bf16), bytes, halves.iter().map(|x| x.to_f32()).collect())
        }
        NumberFormat::E4m3 => unreachable!("it has scales"),
    }
}

/// Compares all sets with double precision. Sets with fused multiply-add must agree bit for bit.
#[test]
fn every_set_agrees_with_double_precision() {
    for kind in [NumberFormat::F32, NumberFormat::F16, NumberFormat::Bf16] {
        for (rows, columns, m) in [(1, 1, 1), (16, 16, 6), (5, 33, 3), (16, 576, 9), (3, 100, 40), (16, 47, 13)] {
            let (encoding, bytes, own) = encoded(kind, &numbers(rows * columns, 3));
            let x = numbers(m * columns, 11);
            let arrays = Arrays { data: &bytes, ..Arrays::default() };
            let weight = Weight::new(encoding, &[rows as u64, columns as u64], arrays).expect("a weight");
            let mut fused: Option<Vec<[f32; GROUP]>> = None;
            for instructions in Instructions::available() {
                let mut sums = vec![[0.0; GROUP]; m];
                products(instructions, &weight, 0..rows, &x, &mut Vec::new(), &mut sums);
                for (token, sums) in sums.iter().enumerate() {
                    for (row, sum) in sums[..rows].iter().enumerate() {
                        let pairs = || own[row * columns..][..columns].iter().zip(&x[token * columns..]);
                        let exact: f64 = pairs().map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                        let size: f64 = pairs().map(|(a, b)| f64::from((a * b).abs())).sum();
                        let bound = columns as f64 * size * 2f64.powi(-24) + 1e-9;
                        let error = (f64::from(*sum) - exact).abs();
                        assert!(error <= bound, "{instructions} {kind:?} {rows} {columns}: {sum} is not {exact}");
                    }
                }
                if instructions.set() != Set::Scalar {
                    let rows_of = |sums: &[[f32; GROUP]]| sums.iter().map(|s| s[..rows].to_vec()).collect::<Vec<_>>();
                    let first = fused.get_or_insert_with(|| sums.clone());
                    assert_eq!(rows_of(first), rows_of(&sums), "{instructions} {kind:?} {rows} {columns}");
                }
            }
        }
    }
}

/// A result does not depend on the number of rows of x.
#[test]
fn a_row_is_computed_alike_alone_and_with_others() {
    for (kind, columns) in
        [NumberFormat::F32, NumberFormat::F16, NumberFormat::Bf16].into_iter().flat_map(|kind| [(kind, 96), (kind, 47)])
    {
        let (encoding, bytes, _) = encoded(kind, &numbers(16 * columns, 1));
        let arrays = Arrays { data: &bytes, ..Arrays::default() };
        let weight = Weight::new(encoding, &[16, columns as u64], arrays).expect("a weight");
        let x = numbers(40 * columns, 5);
        for instructions in Instructions::available() {
            let mut all = vec![[0.0; GROUP]; 40];
            products(instructions, &weight, 0..16, &x, &mut Vec::new(), &mut all);
            for (x, all) in x.chunks_exact(columns).zip(all) {
                let mut alone = [[0.0; GROUP]];
                products(instructions, &weight, 0..16, x, &mut Vec::new(), &mut alone);
                assert_eq!(alone[0].map(f32::to_bits), all.map(f32::to_bits), "{instructions} {kind:?} {columns}");
            }
        }
    }
}

/// FP8 with scales, decoded on the fly for few rows of x and expanded for many: the results agree,
/// and are within the rounding error.
#[test]
fn fp8_is_read_as_it_lies() {
    for (columns, m) in [(160, 1), (160, 2), (160, 3), (160, 6), (160, 7), (160, 9), (75, 1), (75, 5), (75, 9)] {
        check_fp8(columns, m);
    }
}

fn check_fp8(columns: usize, m: usize) {
    let rows = 13;
    of_fp8(rows, columns, |weight| {
        let x = numbers(m * columns, 11);
        let mut own = vec![0.0; columns];
        for instructions in Instructions::available() {
            let (mut room, mut many) = (Vec::new(), vec![[0.0; GROUP]; m]);
            products(instructions, weight, 0..rows, &x, &mut room, &mut many);
            for (x, many) in x.chunks_exact(columns).zip(&many) {
                let mut alone = [[0.0; GROUP]];
                products(instructions, weight, 0..rows, x, &mut room, &mut alone);
                let encoding = weight.encoding();
                assert_eq!(alone[0][..rows], many[..rows], "{instructions} {encoding}");
                for (row, sum) in many[..rows].iter().enumerate() {
                    weight.decode_row(row, &mut own);
                    let exact: f64 = own.iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    let size: f64 = own.iter().zip(x).map(|(a, b)| f64::from((a * b).abs())).sum();
                    let bound = columns as f64 * size * 2f64.powi(-24) + 1e-9;
                    assert!(
                        (f64::from(*sum) - exact).abs() <= bound,
                        "{instructions} {encoding}: {sum} is not {exact}"
                    );
                }
            }
        }
    });
}

/// Calls `check` with FP8 weights that have rows of `columns` elements: `mxfp8`, and blocks of
/// three rows and several widths.
fn of_fp8(rows: usize, columns: usize, mut check: impl FnMut(&Weight<'_>)) {
    let code = |at: usize| (at * 89 % 251) as u8;
    let data: Vec<u8> = (0..rows * columns).map(code).map(|code| if code == 0x7f { 1 } else { code }).collect();
    let mut check = |encoding, dtype, scales: &[u8]| {
        let scale = Some(Numbers { dtype, bytes: scales });
        let arrays = Arrays { data: &data, scale, ..Arrays::default() };
        check(&Weight::new(encoding, &[rows as u64, columns as u64], arrays).expect("a weight"));
    };
    if columns.is_multiple_of(32) {
        let powers: Vec<u8> = (0..rows * columns / 32).map(|at| 120 + (at * 7 % 12) as u8).collect();
        check(Encoding::Micro(Micro::Mxfp8), Dtype::U8, &powers);
    }
    for width in [16, 32, 64, 96, 4096] {
        let count = rows.div_ceil(3) * columns.div_ceil(width);
        let scales: Vec<u8> = (0..count).flat_map(|at| (0.01f32 * at as f32 - 0.05).to_le_bytes()).collect();
        let encoding = Encoding::BlockFp8 { rows: 3, columns: width as u32 };
        check(encoding, Dtype::F32, &scales);
        let powers: Vec<u8> = (0..count).map(|at| 122 + (at * 5 % 9) as u8).collect();
        check(encoding, Dtype::F8_E8M0, &powers);
    }
}

/// NaN in FP8 stays NaN in the result.
#[test]
fn what_is_no_number_is_not_hidden() {
    let scale = Some(Numbers { dtype: Dtype::U8, bytes: &[127] });
    for code in [0x7f, 0xff] {
        let mut data = [0x38; 32];
        data[17] = code;
        let arrays = Arrays { data: &data, scale, ..Arrays::default() };
        let weight = Weight::new(Encoding::Micro(Micro::Mxfp8), &[1, 32], arrays).expect("a weight");
        for instructions in Instructions::available() {
            let mut sums = [[0.0; GROUP]];
            products(instructions, &weight, 0..1, &[1.0; 32], &mut Vec::new(), &mut sums);
            assert!(sums[0][0].is_nan(), "{instructions}");
        }
    }
}

/// Both factors are rounded to BF16; each element adds a small error to the sum.
#[test]
#[cfg(target_arch = "x86_64")]
fn bf16_instructions_agree_with_double_precision() {
    let Some(pool) = pool_for_bf16() else { return };
    for (rows, columns, m) in
        [(1, 32, 1), (16, 64, 6), (5, 96, 3), (16, 576, 29), (3, 2048, 9), (7, 160, 8), (13, 96, 130)]
    {
        let (encoding, bytes, _) = encoded(NumberFormat::Bf16, &numbers(rows * columns, 3));
        let arrays = Arrays { data: &bytes, ..Arrays::default() };
        let weight = Weight::new(encoding, &[rows as u64, columns as u64], arrays).expect("a weight");
        check_bf16(&weight, m, &pool);
        of_fp8(rows, columns, |weight| {
            let group = weight.encoding().group_size();
            let is_taken = bf16_rows::takes(weight.encoding(), columns);
            assert_eq!(is_taken, group >= 32 && group.is_power_of_two(), "{}", weight.encoding());
            if is_taken {
                check_bf16(weight, m, &pool);
            }
        });
    }
}

/// Returns a thread pool if the machine has BF16 kernels.
#[cfg(target_arch = "x86_64")]
fn pool_for_bf16() -> Option<Pool> {
    if Instructions::best().set() != Set::Avx512Bf16 {
        crate::skipped::skipped("kernels of BF16: this machine does not have avx512-bf16");
        return None;
    }
    Some(Pool::new(2).expect("threads"))
}

#[cfg(target_arch = "x86_64")]
fn with_bf16(weight: &Weight<'_>, x: &[f32], pool: &Pool) -> Vec<[f32; GROUP]> {
    let columns = weight.columns();
    let (mut rounded, mut room) = (bf16_rows::Bf16Rows::EMPTY, bf16_rows::RowScratch::EMPTY);
    let mut sums = vec![[0.0; GROUP]; x.len() / columns];
    // SAFETY: the caller has checked for the instructions.
    unsafe {
        rounded.fill(pool, x, columns);
        bf16_rows::products(weight, 0..weight.rows(), rounded.after(0, columns), &mut room, &mut sums);
    }
    sums
}

#[cfg(target_arch = "x86_64")]
fn check_bf16(weight: &Weight<'_>, m: usize, pool: &Pool) {
    let (rows, columns, encoding) = (weight.rows(), weight.columns(), weight.encoding());
    let x = numbers(m * columns, 11);
    let mut own = vec![0.0; columns];
    for (x, sums) in x.chunks_exact(columns).zip(with_bf16(weight, &x, pool)) {
        assert_eq!(with_bf16(weight, x, pool)[0][..rows], sums[..rows], "{encoding}: a row alone and with others");
        for (row, sum) in sums[..rows].iter().enumerate() {
            weight.decode_row(row, &mut own);
            let pairs = || own.iter().zip(x);
            let exact: f64 = pairs().map(|(a, b)| f64::from(*a) * f64::from(bf16::from_f32(*b).to_f32())).sum();
            let size: f64 = pairs().map(|(a, b)| f64::from((a * b).abs())).sum();
            let error = (f64::from(*sum) - exact).abs();
            let bound = columns as f64 * size * 2f64.powi(-23);
            assert!(error <= bound, "{encoding} {rows} {columns}: {sum} is not {exact}");
        }
    }
}

/// Multiplies each code with 1: the result is the number that the codec decodes, or NaN.
#[test]
#[cfg(target_arch = "x86_64")]
fn each_number_of_fp8_is_one_of_bf16() {
    let Some(pool) = pool_for_bf16() else { return };
    for code in 0..=u8::MAX {
        for place in [0, 1, 17, 40, 63, 64, 95] {
            let mut data = [0; 96];
            data[place] = code;
            let scale = Some(Numbers { dtype: Dtype::U8, bytes: &[127; 3] });
            let arrays = Arrays { data: &data, scale, ..Arrays::default() };
            let weight = Weight::new(Encoding::Micro(Micro::Mxfp8), &[1, 96], arrays).expect("a weight");
            for m in [1, 9] {
                for sums in with_bf16(&weight, &vec![1.0; m * 96], &pool) {
                    let (found, expected) = (sums[0], e4m3(code));
                    assert!(
                        (found - expected).abs() <= 0.0 || (found.is_nan() && expected.is_nan()),
                        "{code}: {found}"
                    );
                }
            }
        }
    }
}
