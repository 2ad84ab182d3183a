//! Unpacking on any machine; the reference for the other implementations.

use formats::codec::{micro_scale, unpack_codes};
use formats::encoding::Micro;

use super::{Codes, Factors, VectorUnit};
use crate::int8::BLOCK;
use crate::int8::panel_size::HALF;

/// The machine without special instructions.
pub(in crate::int8) struct Portable;

impl VectorUnit for Portable {
    type Codes = [u8; BLOCK];

    fn half(bits: [u8; 2]) -> f32 {
        half::f16::from_le_bytes(bits).to_f32()
    }

    fn halves(bits: [u32; HALF]) -> [f32; HALF] {
        bits.map(|bits| half::f16::from_bits(bits as u16).to_f32())
    }

    fn float16(rows: [&[u8; 16]; HALF], lanes: &mut [[f32; HALF]; HALF]) {
        words(rows, lanes, |bits| half::f16::from_le_bytes(bits).to_f32());
    }

    fn bf16(rows: [&[u8; 16]; HALF], lanes: &mut [[f32; HALF]; HALF]) {
        words(rows, lanes, |bits| half::bf16::from_le_bytes(bits).to_f32());
    }

    fn e4m3(pairs: [u16; HALF]) -> [[f32; HALF]; 2] {
        [0, 8].map(|shift| pairs.map(|pair| micro_scale(Micro::Nvfp4, (pair >> shift) as u8, None)))
    }

    fn six_bits(packed: [&[u8; 12]; HALF], d: &[f32; HALF], m: &[f32; HALF], factors: &mut Factors) {
        for (row, packed) in packed.into_iter().enumerate() {
            for part in 0..4 {
                let [scale, offset, rest] = [packed[part], packed[4 + part], packed[8 + part]];
                let codes = [scale & 63, offset & 63, rest & 15 | scale >> 2 & 0x30, rest >> 4 | offset >> 2 & 0x30];
                let [first, first_offset, second, second_offset] = codes.map(f32::from);
                factors.scales[part][row] = d[row] * first;
                factors.offsets[part][row] = m[row] * first_offset;
                factors.scales[4 + part][row] = d[row] * second;
                factors.offsets[4 + part][row] = m[row] * second_offset;
            }
        }
    }

    fn transpose(rows: &[[f32; HALF]; HALF]) -> [[f32; HALF]; HALF] {
        std::array::from_fn(|at| rows.map(|row| row[at]))
    }

    fn prefetch(_address: *const u8) {}
}

/// Converts eight words of each row, and transposes them to lanes.
fn words(rows: [&[u8; 16]; HALF], lanes: &mut [[f32; HALF]; HALF], number: impl Fn([u8; 2]) -> f32) {
    for (at, lane) in lanes.iter_mut().enumerate() {
        *lane = rows.map(|row| number([row[2 * at], row[2 * at + 1]]));
    }
}

impl Codes for [u8; BLOCK] {
    fn nibbles(packed: &[u8; BLOCK / 2]) -> Self {
        std::array::from_fn(|at| packed[at % (BLOCK / 2)] >> (at / (BLOCK / 2) * 4) & 15)
    }

    fn pairs(packed: &[u8; BLOCK / 2]) -> Self {
        std::array::from_fn(|at| packed[at / 2] >> (at % 2 * 4) & 15)
    }

    fn stream<const BITS: usize>(packed: &[u8]) -> Self {
        let mut codes = [0; BLOCK];
        unpack_codes::<BITS>(packed, &mut codes);
        codes
    }

    fn with_quarters_swapped(self) -> Self {
        std::array::from_fn(|at| self[[0, 2, 1, 3][at / 8] * 8 + at % 8])
    }

    fn spread(bits: [u8; BLOCK / 8]) -> Self {
        std::array::from_fn(|at| bits[at / 8] >> (at % 8) & 1)
    }

    fn bits(self, shift: u8, mask: u8) -> Self {
        self.map(|code| code >> shift & mask)
    }

    fn with(self, more: Self, shift: u8) -> Self {
        std::array::from_fn(|at| self[at] | more[at] << shift)
    }

    fn lookup(self, table: &[u8; 16]) -> Self {
        self.map(|code| table[usize::from(code)])
    }

    fn eights(eights: [u64; BLOCK / 8]) -> Self {
        std::array::from_fn(|at| eights[at / 8].to_le_bytes()[at % 8])
    }

    fn mirrored(self, bits: [u8; BLOCK / 8]) -> Self {
        std::array::from_fn(|at| if bits[at / 8] >> (at % 8) & 1 == 1 { 128 - self[at] } else { self[at] })
    }
}
