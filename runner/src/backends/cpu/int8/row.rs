//! A row of codes: its dot products, for any machine and by the best instructions that there are.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "SIMD"))]

use half::f16;

use super::{Activations, BLOCK, Format, TILE, k_quants};
#[cfg(target_arch = "x86_64")]
use crate::backends::cpu::instructions::has_avx2;

/// Rounds a block to 8 bits; gives `e` and `e·Σ p`.
pub(super) fn round(x: &[f32; BLOCK], quants: &mut [i8]) -> (f32, f32) {
    #[cfg(target_arch = "x86_64")]
    if has_avx2() {
        // SAFETY: the features were detected.
        return unsafe { super::avx2::round(x, quants) };
    }
    round_with(x, quants)
}

/// The same for any machine, and the definition of the others.
#[inline(always)]
#[expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]
pub(super) fn round_with(x: &[f32; BLOCK], quants: &mut [i8]) -> (f32, f32) {
    let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    // Codes have no word for what is not a number; the scale has, and it is in all sums of the block.
    let scale = if x.iter().any(|x| x.is_nan()) { f32::NAN } else { largest / 127.0 };
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut sum = 0i32;
    for (quant, x) in quants.iter_mut().zip(x) {
        *quant = (x * inverse).round_ties_even() as i8;
        sum += i32::from(*quant);
    }
    (scale, scale * sum as f32)
}

/// A row of a weight.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) format: Format,
    /// Codes; GGML's blocks with all that is in them.
    pub(super) codes: &'a [u8],
    /// `d` of each affine group.
    pub(super) scales: &'a [f32],
    /// `m` of each affine group.
    pub(super) offsets: &'a [f32],
    /// Blocks of activations in an affine group.
    pub(super) blocks: usize,
}

/// A block of 32 weights, `d·q + m`.
struct Block {
    scale: f32,
    offset: f32,
    codes: [i8; BLOCK],
}

impl Row<'_> {
    /// The dot products with all rows of x.
    pub(super) fn dot(self, x: &Activations, sums: &mut [f32]) {
        let mut at = 0;
        while at < sums.len() {
            if sums.len() - at >= TILE {
                sums[at..at + TILE].copy_from_slice(&self.tile::<TILE>(x, at));
                at += TILE;
            } else {
                sums[at] = self.tile::<1>(x, at)[0];
                at += 1;
            }
        }
    }

    /// The dot products with N rows of x from row `at` on, which lie together.
    fn tile<const N: usize>(self, x: &Activations, at: usize) -> [f32; N] {
        #[cfg(target_arch = "x86_64")]
        if has_avx2() {
            // SAFETY: the features were detected.
            return unsafe { super::avx2::tile(self, x, at) };
        }
        std::array::from_fn(|i| self.generic::<N>(x, at, i))
    }

    /// The same for any machine, and the definition of the others.
    fn generic<const N: usize>(self, x: &Activations, at: usize, i: usize) -> f32 {
        if let Format::Wide(kind) = self.format {
            return k_quants::generic::<N>(kind, self.codes, x, at, i);
        }
        let mut total = 0.0;
        for index in 0..x.blocks {
            let position = at * x.blocks + index * N + i;
            let block = self.block(index);
            let quants = &x.quants[position * BLOCK..][..BLOCK];
            let sum: i32 = block.codes.iter().zip(quants).map(|(q, p)| i32::from(*q) * i32::from(*p)).sum();
            total += block.scale * x.scales[position] * sum as f32 + block.offset * x.sums[position];
        }
        total
    }

    fn block(self, index: usize) -> Block {
        let number = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
        let bytes = |size: usize| &self.codes[index * size..][..size];
        let group = index / self.blocks;
        match self.format {
            Format::Q4_0 => {
                let block = bytes(18);
                Block { scale: number(block), offset: -8.0 * number(block), codes: halves(&block[2..], 0) }
            }
            Format::Q4_1 => {
                let block = bytes(20);
                Block { scale: number(block), offset: number(&block[2..]), codes: halves(&block[4..], 0) }
            }
            Format::Q5_0 => {
                let block = bytes(22);
                let codes = halves(&block[6..], fifth_bits(&block[2..]));
                Block { scale: number(block), offset: -16.0 * number(block), codes }
            }
            Format::Q5_1 => {
                let block = bytes(24);
                let codes = halves(&block[8..], fifth_bits(&block[4..]));
                Block { scale: number(block), offset: number(&block[2..]), codes }
            }
            Format::Q8_0 => {
                let block = bytes(34);
                let codes = std::array::from_fn(|i| block[2 + i].cast_signed());
                Block { scale: number(block), offset: 0.0, codes }
            }
            Format::Int4 => {
                let packed = bytes(BLOCK / 2);
                let codes = std::array::from_fn(|i| (packed[i / 2] >> (i % 2 * 4) & 15).cast_signed());
                Block { scale: self.scales[group], offset: self.offsets[group], codes }
            }
            Format::Int8 => {
                let packed = bytes(BLOCK);
                let codes = std::array::from_fn(|i| (packed[i] ^ 128).cast_signed());
                Block { scale: self.scales[group], offset: self.offsets[group], codes }
            }
            Format::Wide(_) => unreachable!("invariant: wide blocks have a definition of their own"),
        }
    }
}

/// Codes of which the low bits of all bytes come first, each with a fifth bit.
fn halves(packed: &[u8], fifth: u32) -> [i8; BLOCK] {
    std::array::from_fn(|i| {
        let four = packed[i % (BLOCK / 2)] >> (i / (BLOCK / 2) * 4) & 15;
        (four | ((fifth >> i & 1) << 4) as u8).cast_signed()
    })
}

fn fifth_bits(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
