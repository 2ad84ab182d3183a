//! Codes of 2 to 8 bits as a bit stream: the first code is in the lowest bits of the first byte.
//!
//! Eight codes fill as many bytes as a code has bits. In little-endian 32-bit words, this is MLX's
//! layout, where codes of 3, 5 and 6 bits cross byte and word boundaries.
#![expect(clippy::inline_always, reason = "what is inlined into vectorized work is compiled for AVX2")]

/// Number of codes that always end at a byte boundary, for any width.
pub(super) const RUN: usize = 8;

/// Packs codes of `BITS` bits. Each code is in a separate byte and below `2^BITS`; their number is
/// a multiple of [`RUN`].
#[inline(always)]
pub(super) fn pack<const BITS: usize>(codes: &[u8], out: &mut [u8]) {
    // The compiler vectorizes loops over pairs, but not over runs.
    match BITS {
        8 => return out.copy_from_slice(codes),
        4 => {
            for ([low, high], out) in codes.as_chunks::<2>().0.iter().zip(out) {
                *out = low | high << 4;
            }
            return;
        }
        _ => {}
    }
    for (codes, out) in codes.as_chunks::<RUN>().0.iter().zip(out.as_chunks_mut::<BITS>().0) {
        let packed = pack_run(BITS, u64::from_le_bytes(*codes)).to_le_bytes();
        *out = *packed.first_chunk().expect("invariant: codes have at most eight bits");
    }
}

/// Unpacks codes of `BITS` bits into one byte each; the length of `out` is a multiple of [`RUN`].
#[inline(always)]
pub(super) fn unpack<const BITS: usize>(packed: &[u8], out: &mut [u8]) {
    match BITS {
        8 => return out.copy_from_slice(packed),
        4 => {
            for (packed, out) in packed.iter().zip(out.as_chunks_mut::<2>().0) {
                *out = [packed & 15, packed >> 4];
            }
            return;
        }
        _ => {}
    }
    for (packed, out) in packed.as_chunks::<BITS>().0.iter().zip(out.as_chunks_mut::<RUN>().0) {
        let mut run = [0; RUN];
        run[..BITS].copy_from_slice(packed);
        *out = unpack_run(BITS, u64::from_le_bytes(run)).to_le_bytes();
    }
}

/// Packs eight bytes into eight adjacent codes: first pairs of codes, then pairs of pairs.
#[inline(always)]
fn pack_run(bits: usize, bytes: u64) -> u64 {
    let gap = 8 - bits;
    let pairs = (bytes & 0x00ff_00ff_00ff_00ff) | ((bytes & 0xff00_ff00_ff00_ff00) >> gap);
    let fours = (pairs & 0x0000_ffff_0000_ffff) | ((pairs & 0xffff_0000_ffff_0000) >> (2 * gap));
    (fours & 0x0000_0000_ffff_ffff) | ((fours & 0xffff_ffff_0000_0000) >> (4 * gap))
}

/// The inverse of [`pack_run`].
#[inline(always)]
fn unpack_run(bits: usize, packed: u64) -> u64 {
    let lowest = |count: usize| u64::MAX >> (64 - count * bits);
    let gap = 8 - bits;
    let fours = (packed & lowest(4)) | ((packed & !lowest(4)) << (4 * gap));
    let two = lowest(2) | (lowest(2) << 32);
    let pairs = (fours & two) | ((fours & !two) << (2 * gap));
    let one = lowest(1) * 0x0001_0001_0001_0001;
    (pairs & one) | ((pairs & !one) << gap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_a_stream_of_bits() {
        check::<2>();
        check::<3>();
        check::<4>();
        check::<5>();
        check::<6>();
        check::<8>();
    }

    fn check<const BITS: usize>() {
        let codes: Vec<u8> = (0..64u32).map(|at| (at * 37 % (1 << BITS)) as u8).collect();
        let mut packed = vec![0; codes.len() * BITS / 8];
        pack::<BITS>(&codes, &mut packed);
        let bit = |at: usize| packed[at / 8] >> (at % 8) & 1;
        for (index, code) in codes.iter().enumerate() {
            let found = (0..BITS).fold(0, |found, at| found | bit(index * BITS + at) << at);
            assert_eq!(found, *code, "{BITS} bits, code {index}");
        }
        let mut back = vec![0; codes.len()];
        unpack::<BITS>(&packed, &mut back);
        assert_eq!(back, codes, "{BITS} bits");
    }

    #[test]
    fn the_example_of_the_reference() {
        let mut packed = [0; 4];
        pack::<4>(&[5, 15, 6, 7, 10, 3, 0, 8], &mut packed);
        assert_eq!(packed, [0xf5, 0x76, 0x3a, 0x80]);
    }
}
