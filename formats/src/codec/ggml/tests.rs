//! Tests of every type on random blocks.

use std::fs;
use std::path::Path;

use super::encode::{Portable, encode_with};
use super::{avx2, can_encode, decode_with};
use crate::GgmlType;

/// Returns pseudo-random bytes (xorshift), the same in every run.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[test]
fn decoding_is_the_same_with_and_without_avx2() {
    for kind in GgmlType::ALL {
        let elements = 4096;
        let bytes = noise(kind.row_bytes(elements).expect("whole blocks") as usize);
        let mut portable = vec![0.0; elements as usize];
        let mut fast = portable.clone();
        decode_with(*kind, &bytes, &mut portable);
        avx2::decode(*kind, &bytes, &mut fast);
        for (i, (portable, fast)) in portable.iter().zip(&fast).enumerate() {
            // The signs of NaNs may differ.
            let same = portable.to_bits() == fast.to_bits() || portable.is_nan() && fast.is_nan();
            assert!(same, "{kind}, element {i}: {portable} and {fast}");
        }
        let distinct: std::collections::BTreeSet<u32> = fast.iter().map(|number| number.to_bits()).collect();
        assert!(distinct.len() > 32, "{kind}: only {} different numbers", distinct.len());
    }
}

/// Columns of the source rows for the encoders' golden bytes, see `tests/fixtures/ggml/README.md`.
const COLUMNS: usize = 512;

/// Checks the encoders' golden data in a folder: the source, and the bytes that each type encodes
/// it to.
fn check_golden(folder: &Path) {
    let read = |name: String| {
        let path = folder.join(name);
        fs::read(&path).unwrap_or_else(|e| panic!("cannot read `{}`: {e}", path.display()))
    };
    let source: Vec<f32> =
        read("source.f32".to_owned()).as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect();
    let mut wrong = Vec::new();
    for kind in GgmlType::ALL.iter().copied().filter(|kind| can_encode(*kind)) {
        let golden = read(format!("{}.bin", kind.quant_name()));
        let size = kind.row_bytes(COLUMNS as u64).expect("whole blocks") as usize;
        assert_eq!(golden.len(), source.len() / COLUMNS * size, "{kind}");
        for (row, numbers) in source.chunks(COLUMNS).enumerate() {
            let golden = &golden[row * size..][..size];
            let mut fast = vec![0xa5; size];
            avx2::encode(kind, numbers, &mut fast);
            let mut portable = vec![0x5a; size];
            encode_with::<Portable>(kind, numbers, &mut portable);
            for (way, found) in [("fast", &fast), ("portable", &portable)] {
                if let Some(at) = (0..size).find(|at| found[*at] != golden[*at]) {
                    let (block, byte) = (at / kind.block_bytes() as usize, at % kind.block_bytes() as usize);
                    let (found, golden) = (found[at], golden[at]);
                    wrong.push(format!("{kind}, {way}, row {row}, block {block}, byte {byte}: {found} not {golden}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} rows differ from the reference: {wrong:#?}", wrong.len());
}

#[test]
fn encoders_agree_with_the_reference() {
    check_golden(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/ggml"));
}
