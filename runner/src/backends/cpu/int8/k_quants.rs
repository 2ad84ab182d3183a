//! The K types: blocks of 256 weights in sixteen parts, `w = d·q + m` in each.
//!
//! A block is unpacked to signed codes, factors and offsets; then it is multiplied like any other. Layouts are those of
//! ggml's `block_q2_K` … `block_q6_K`.
#![expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]

use half::f16;

use super::{Activations, BLOCK};

/// Weights in a block.
pub(super) const WIDE: usize = 256;
/// Weights that share a factor, at least.
const PART: usize = 16;
/// Parts of a block.
const PARTS: usize = WIDE / PART;

/// A K type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Q2,
    Q3,
    Q4,
    Q5,
    Q6,
}

impl Kind {
    /// Bytes of a block.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::Q2 => 84,
            Self::Q3 => 110,
            Self::Q4 => 144,
            Self::Q5 => 176,
            Self::Q6 => 210,
        }
    }

    /// Whether parts have offsets.
    pub(super) const fn has_offsets(self) -> bool {
        matches!(self, Self::Q2 | Self::Q4 | Self::Q5)
    }
}

/// An unpacked block.
pub(super) struct Unpacked {
    pub(super) codes: [i8; WIDE],
    /// `d` of each part.
    pub(super) scales: [f32; PARTS],
    /// `m` of each part.
    pub(super) offsets: [f32; PARTS],
}

impl Unpacked {
    pub(super) const EMPTY: Self = Self { codes: [0; WIDE], scales: [0.0; PARTS], offsets: [0.0; PARTS] };

    /// Unpacks a block of [`Kind::bytes`].
    #[inline(always)]
    pub(super) fn fill(&mut self, kind: Kind, bytes: &[u8], number: impl Fn(&[u8]) -> f32) {
        assert!(bytes.len() == kind.bytes(), "a whole block");
        match kind {
            Kind::Q2 => self.q2(bytes, number),
            Kind::Q3 => self.q3(bytes, number),
            Kind::Q4 => self.q4_or_q5(bytes, None, &bytes[16..], number),
            Kind::Q5 => self.q4_or_q5(bytes, Some(&bytes[16..48]), &bytes[48..], number),
            Kind::Q6 => self.q6(bytes, number),
        }
    }

    /// `scales[16]` (factor low, offset high), `qs[64]` of two bits, `d`, `dmin`.
    #[inline(always)]
    fn q2(&mut self, bytes: &[u8], number: impl Fn(&[u8]) -> f32) {
        let (d, least) = (number(&bytes[80..]), number(&bytes[82..]));
        for (part, scale) in bytes[..PARTS].iter().enumerate() {
            self.scales[part] = d * f32::from(scale & 15);
            self.offsets[part] = -least * f32::from(scale >> 4);
        }
        self.two_bits(&bytes[16..80]);
    }

    /// Element `l` of run `j` of half `n` is the bits `2j` of byte `32n + l`.
    #[inline(always)]
    fn two_bits(&mut self, packed: &[u8]) {
        for (packed, codes) in packed.chunks_exact(32).zip(self.codes.chunks_exact_mut(128)) {
            for (j, codes) in codes.chunks_exact_mut(32).enumerate() {
                for (code, byte) in codes.iter_mut().zip(packed) {
                    *code = (byte >> (2 * j) & 3).cast_signed();
                }
            }
        }
    }

    /// `hmask[32]`, `qs[64]` of two bits, `scales[12]` of six bits, `d`. A bit of the mask that is not set subtracts 4.
    #[inline(always)]
    fn q3(&mut self, bytes: &[u8], number: impl Fn(&[u8]) -> f32) {
        let (mask, scales, d) = (&bytes[..32], &bytes[96..108], number(&bytes[108..]));
        for part in 0..PARTS {
            let low = if part < 8 { scales[part] & 15 } else { scales[part - 8] >> 4 };
            let high = scales[8 + part % 4] >> (2 * (part / 4)) & 3;
            self.scales[part] = d * (f32::from(low | high << 4) - 32.0);
        }
        self.two_bits(&bytes[32..96]);
        for (run, codes) in self.codes.chunks_exact_mut(32).enumerate() {
            for (code, mask) in codes.iter_mut().zip(mask) {
                *code -= ((!mask >> run & 1) << 2).cast_signed();
            }
        }
    }

    /// `d`, `dmin`, `scales[12]` of six bits, fifth bits where there are some, nibbles.
    #[inline(always)]
    fn q4_or_q5(&mut self, bytes: &[u8], fifth: Option<&[u8]>, nibbles: &[u8], number: impl Fn(&[u8]) -> f32) {
        let (d, least, packed) = (number(bytes), number(&bytes[2..]), &bytes[4..16]);
        for run in 0..8 {
            let (scale, offset) = if run < 4 {
                (packed[run] & 63, packed[run + 4] & 63)
            } else {
                let (scale, offset) = (packed[run + 4] & 15, packed[run + 4] >> 4);
                (scale | packed[run - 4] >> 6 << 4, offset | packed[run] >> 6 << 4)
            };
            for part in [2 * run, 2 * run + 1] {
                self.scales[part] = d * f32::from(scale);
                self.offsets[part] = -least * f32::from(offset);
            }
        }
        for (nibbles, codes) in nibbles.chunks_exact(32).zip(self.codes.chunks_exact_mut(64)) {
            let (low, high) = codes.split_at_mut(32);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(nibbles) {
                *low = (byte & 15).cast_signed();
                *high = (byte >> 4).cast_signed();
            }
        }
        if let Some(fifth) = fifth {
            for (run, codes) in self.codes.chunks_exact_mut(32).enumerate() {
                for (code, bits) in codes.iter_mut().zip(fifth) {
                    *code |= ((bits >> run & 1) << 4).cast_signed();
                }
            }
        }
    }

    /// `ql[128]`, `qh[64]`, `scales[16]` signed, `d`. Codes are 32 too large.
    #[inline(always)]
    fn q6(&mut self, bytes: &[u8], number: impl Fn(&[u8]) -> f32) {
        let d = number(&bytes[208..]);
        for (scale, byte) in self.scales.iter_mut().zip(&bytes[192..208]) {
            *scale = d * f32::from(byte.cast_signed());
        }
        let halves = bytes[..128].chunks_exact(64).zip(bytes[128..192].chunks_exact(32));
        for ((low, high), codes) in halves.zip(self.codes.chunks_exact_mut(128)) {
            for (run, codes) in codes.chunks_exact_mut(32).enumerate() {
                let low = &low[run % 2 * 32..][..32];
                for ((code, low), high) in codes.iter_mut().zip(low).zip(high) {
                    let four = low >> (run / 2 * 4) & 15;
                    let two = high >> (2 * run) & 3;
                    *code = (four | two << 4).cast_signed() - 32;
                }
            }
        }
    }
}

/// The dot product of a row with row `at + i` of x, where N rows lie together: for any machine, and the definition of the
/// others.
pub(super) fn generic<const N: usize>(kind: Kind, row: &[u8], x: &Activations, at: usize, i: usize) -> f32 {
    let mut unpacked = Unpacked::EMPTY;
    let mut total = 0.0;
    for (wide, bytes) in row.chunks_exact(kind.bytes()).enumerate() {
        unpacked.fill(kind, bytes, |bytes| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32());
        for (block, codes) in unpacked.codes.chunks_exact(BLOCK).enumerate() {
            let position = at * x.blocks + (wide * (WIDE / BLOCK) + block) * N + i;
            let quants = &x.quants[position * BLOCK..][..BLOCK];
            for (half, (codes, quants)) in codes.chunks_exact(PART).zip(quants.chunks_exact(PART)).enumerate() {
                let part = 2 * block + half;
                let sum: i32 = codes.iter().zip(quants).map(|(q, p)| i32::from(*q) * i32::from(*p)).sum();
                let quants: i32 = quants.iter().map(|p| i32::from(*p)).sum();
                let product = unpacked.scales[part] * sum as f32 + unpacked.offsets[part] * quants as f32;
                total += x.scales[position] * product;
            }
        }
    }
    total
}
