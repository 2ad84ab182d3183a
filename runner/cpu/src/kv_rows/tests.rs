//! Tests of every type with SIMD, without it, and in comparison with double precision.

use super::*;

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i + seed) * 61 % 199) as f32 - 99.0) / 66.0).collect()
}

fn encoded(kv_type: KvType, rows: &[f32], columns: usize) -> Vec<u8> {
    let mut bytes = vec![0xff; rows.len() / columns * row_bytes(kv_type, columns)];
    for (row, out) in rows.chunks_exact(columns).zip(bytes.chunks_exact_mut(row_bytes(kv_type, columns))) {
        encode_row(kv_type, row, out);
    }
    bytes
}

/// Returns the greatest distance between neighbouring values, relative to the largest number.
fn step(kv_type: KvType) -> f32 {
    match kv_type {
        KvType::F32 => 0.0,
        KvType::F16 => 1.0 / 2048.0,
        KvType::Bf16 => 1.0 / 256.0,
        KvType::Q8_0 => 1.0 / 254.0 + 1.0 / 2048.0,
    }
}

#[test]
fn rows_come_back() {
    for columns in [16, 32, 40, 64, 128] {
        let rows = numbers(5 * columns, 3);
        for kv_type in KvType::ALL {
            let bytes = encoded(kv_type, &rows, columns);
            let mut plain = vec![0.0; rows.len()];
            CacheRows::new(kv_type, columns, &bytes).decode(scalar(), &mut plain);
            for instructions in Instructions::available() {
                let mut fast = vec![0.0; rows.len()];
                CacheRows::new(kv_type, columns, &bytes).decode(instructions, &mut fast);
                assert_eq!(fast, plain, "{instructions} {kv_type:?} {columns}");
            }
            for (got, expected) in plain.iter().zip(&rows) {
                assert!((got - expected).abs() <= 1.5 * step(kv_type), "{kv_type:?}: {got} is not {expected}");
            }
        }
    }
}

/// Returns the attention of one query in double precision.
fn exact(query: &[f32], keys: &[f32], values: &[f32]) -> Vec<f64> {
    let columns = query.len();
    let dot = |row: &[f32]| row.iter().zip(query).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let weights: Vec<f64> = keys.chunks_exact(columns).map(|row| dot(row).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mixed = |column: usize| {
        let column = values[column..].iter().step_by(columns);
        weights.iter().zip(column).map(|(weight, value)| weight / sum * f64::from(*value)).sum()
    };
    (0..columns).map(mixed).collect()
}

/// Returns the scalar instructions, the reference for all others.
fn scalar() -> Instructions {
    Instructions::named("scalar").expect("it is everywhere")
}

/// Attention of one query that is already scaled: `softmax(keys · query) · values`.
fn attend(instructions: Instructions, query: &[f32], keys: CacheRows<'_>, values: CacheRows<'_>, out: &mut [f32]) {
    let mut scores = vec![0.0; keys.len()];
    let count = keys.len();
    keys.dots(instructions, query, &mut scores, count);
    let (_, sum) = exponentials_below(instructions, &mut scores, f32::NEG_INFINITY);
    out.fill(0.0);
    let columns = out.len();
    values.mixes(instructions, &scores, count, out, columns);
    for x in out.iter_mut() {
        *x /= sum;
    }
}

#[test]
fn attends_as_double_precision_does() {
    for (columns, count) in [(16, 1), (32, 7), (64, 100), (128, 33), (40, 9)] {
        let (query, keys, values) = (numbers(columns, 1), numbers(columns * count, 2), numbers(columns * count, 5));
        let query: Vec<f32> = query.iter().map(|x| x / (columns as f32).sqrt()).collect();
        let expected = exact(&query, &keys, &values);
        for kv_type in KvType::ALL {
            let (keys, values) = (encoded(kv_type, &keys, columns), encoded(kv_type, &values, columns));
            let (keys, values) = (CacheRows::new(kv_type, columns, &keys), CacheRows::new(kv_type, columns, &values));
            let mut plain = vec![0.0; columns];
            attend(scalar(), &query, keys, values, &mut plain);
            for instructions in Instructions::available() {
                let mut fast = vec![0.0; columns];
                attend(instructions, &query, keys, values, &mut fast);
                for ((fast, plain), expected) in fast.iter().zip(&plain).zip(&expected) {
                    assert!((fast - plain).abs() < 1e-5, "{instructions} {kv_type:?}: {fast} is not {plain}");
                    let bound = 1e-5 + 4.0 * f64::from(step(kv_type));
                    let error = (f64::from(*fast) - expected).abs();
                    assert!(error < bound, "{instructions} {kv_type:?}: {fast} is not {expected}");
                }
            }
        }
    }
}

#[test]
fn exponentials_are_exact_to_the_last_places() {
    let mut x: Vec<f32> = (0..1000).map(|i| -0.08 * i as f32).collect();
    let expected: Vec<f64> = x.iter().map(|x| f64::from(*x).exp()).collect();
    let sum = exponentials(Instructions::best(), &mut x, 0.0);
    for (got, expected) in x.iter().zip(&expected) {
        assert!((f64::from(*got) / expected - 1.0).abs() < 3e-7, "{got} is not {expected}");
    }
    assert!((f64::from(sum) / expected.iter().sum::<f64>() - 1.0).abs() < 1e-6);
}

#[test]
fn what_is_not_a_number_is_not_hidden() {
    for place in [0, 9, 16] {
        let mut x = vec![0.5; 17];
        x[place] = f32::NAN;
        let (_, sum) = exponentials_below(Instructions::best(), &mut x, f32::NEG_INFINITY);
        assert!(sum.is_nan() && x[place].is_nan(), "{x:?}");
        let mut row = vec![0.5; 32];
        row[place] = f32::NAN;
        for kv_type in KvType::ALL {
            let bytes = encoded(kv_type, &row, 32);
            let mut out = vec![0.0; 32];
            CacheRows::new(kv_type, 32, &bytes).decode(Instructions::best(), &mut out);
            assert!(out[place].is_nan(), "{kv_type:?}");
        }
    }
}

#[test]
fn the_first_elements_of_rows_are_read() {
    let rows = numbers(3 * 96, 1);
    for kv_type in KvType::ALL {
        let bytes = encoded(kv_type, &rows, 96);
        for columns in [8, 32, 64] {
            let (mut whole, mut first) = (vec![0.0; 3 * 96], vec![0.0; 3 * columns]);
            CacheRows::new(kv_type, 96, &bytes).decode(Instructions::best(), &mut whole);
            CacheRows::new(kv_type, 96, &bytes).first(columns).decode(Instructions::best(), &mut first);
            for (whole, first) in whole.chunks_exact(96).zip(first.chunks_exact(columns)) {
                assert_eq!(&whole[..columns], first, "{kv_type:?} {columns}");
            }
        }
    }
}

#[test]
fn several_queries_are_computed_as_each_alone() {
    let (columns, count) = (64, 19);
    for queries in [1, 2, 3, 4, 5, 9] {
        let (query, rows) = (numbers(queries * columns, 1), numbers(count * columns, 2));
        for kv_type in KvType::ALL {
            let bytes = encoded(kv_type, &rows, columns);
            let rows = CacheRows::new(kv_type, columns, &bytes);
            for instructions in Instructions::available() {
                let (mut all, mut alone) = (vec![0.0; queries * count], vec![0.0; count]);
                rows.dots(instructions, &query, &mut all, count);
                let (mut mixed, mut one) = (vec![1.0; queries * columns], vec![1.0; columns]);
                rows.mixes(instructions, &all, count, &mut mixed, columns);
                for at in 0..queries {
                    rows.dots(instructions, &query[at * columns..][..columns], &mut alone, count);
                    assert_eq!(alone, all[at * count..][..count], "{instructions} {kv_type:?} {queries}");
                    one.fill(1.0);
                    rows.mixes(instructions, &alone, count, &mut one, columns);
                    assert_eq!(one, mixed[at * columns..][..columns], "{instructions} {kv_type:?} {queries}");
                }
            }
        }
    }
}
