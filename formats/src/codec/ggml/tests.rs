//! Every type, on made-up blocks.

use super::{avx2, decode_with};
use crate::GgmlType;

/// Random bytes (xorshift), the same in every run.
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
            // Signs of NaNs are nobody's business.
            let same = portable.to_bits() == fast.to_bits() || portable.is_nan() && fast.is_nan();
            assert!(same, "{kind}, element {i}: {portable} and {fast}");
        }
        let distinct: std::collections::BTreeSet<u32> = fast.iter().map(|number| number.to_bits()).collect();
        assert!(distinct.len() > 32, "{kind}: only {} different numbers", distinct.len());
    }
}
