//! GGML's blocks of 256: the K types, `IQ4_XS`, and the types of three values.

use super::blocks::STEPS;
use super::{Codes, Machine, field};
use crate::backends::cpu::int8::panel::{LANES, PART, Panel, SUPER};
use crate::backends::cpu::int8::{BLOCK, Part};

/// What a block has apart from its codes: `d` and `m` of each part, of 16 or of 32.
pub(super) struct Numbers<'a> {
    pub(super) scales: &'a mut [f32; PARTS],
    pub(super) offsets: &'a mut [f32; PARTS],
}

/// Parts of a block, at most.
const PARTS: usize = SUPER / PART;

/// Unpacks a block of each row by the function of that name. It is a macro because functions that are passed are not compiled
/// for the instructions of who calls them.
macro_rules! each_super_block {
    ($machine:ident, $part:ident, $panel:ident, $bytes:literal, $unpack:ident) => {{
        let (first, count) = ($part.first / SUPER, $part.columns / SUPER);
        for (lane, source) in $part.sources.iter().enumerate() {
            let blocks = &source.codes.as_chunks::<$bytes>().0[first..first + count];
            let numbers = $panel.row_scales.iter_mut().zip(&mut $panel.row_offsets);
            let codes = $panel.rows[lane].as_chunks_mut::<SUPER>().0;
            for ((block, codes), (scales, offsets)) in blocks.iter().zip(codes).zip(numbers) {
                let (scales, offsets) = (&mut scales[lane], &mut offsets[lane]);
                super_blocks::$unpack::<$machine>(block, codes, super_blocks::Numbers { scales, offsets });
            }
        }
        super_blocks::numbers::<$machine>($part, $panel);
    }};
}

pub(super) use each_super_block;

/// Makes numbers of lanes of those of rows.
#[inline(always)]
pub(super) fn numbers<M: Machine>(part: &Part<'_>, panel: &mut Panel) {
    let parts = if part.format.has_halves() { PARTS } else { PARTS / 2 };
    for block in 0..part.columns / SUPER {
        for lane in part.sources.len()..LANES {
            (panel.row_scales[block][lane], panel.row_offsets[block][lane]) = ([0.0; PARTS], [0.0; PARTS]);
        }
        // The numbers of the blocks lie one after the other; what is too much of a block, the next one writes anew.
        let own = block * parts..block * parts + PARTS;
        M::transpose(&panel.row_scales[block], first_lanes(&mut panel.scales[own.clone()]));
        M::transpose(&panel.row_offsets[block], first_lanes(&mut panel.offsets[own]));
    }
}

fn first_lanes(numbers: &mut [[f32; LANES]]) -> &mut [[f32; LANES]; LANES] {
    numbers.first_chunk_mut().expect("invariant: room for the numbers of a block")
}

/// Each 32 codes of a block.
type Runs = [[u8; BLOCK]; SUPER / BLOCK];

fn runs(codes: &mut [u8; SUPER]) -> &mut Runs {
    codes.as_chunks_mut().0.first_chunk_mut().expect("invariant: eight times 32 codes")
}

/// Element `l` of run `j` of half `n` is the bits `2j` of byte `32n + l`.
#[inline(always)]
fn two_bits<M: Machine>(packed: [&[u8; BLOCK]; 2]) -> [M::Codes; 8] {
    let (a, b) = (M::Codes::from(*packed[0]), M::Codes::from(*packed[1]));
    [
        a.bits::<0>(3),
        a.bits::<2>(3),
        a.bits::<4>(3),
        a.bits::<6>(3),
        b.bits::<0>(3),
        b.bits::<2>(3),
        b.bits::<4>(3),
        b.bits::<6>(3),
    ]
}

/// A bit more for each code: bit `run` of byte `l` belongs to element `l` of that run of 32.
#[inline(always)]
fn with_bit<M: Machine, const PLACE: i32>(codes: [M::Codes; 8], bits: &[u8; BLOCK]) -> [M::Codes; 8] {
    let bits = M::Codes::from(*bits);
    [
        codes[0].with::<PLACE>(bits.bits::<0>(1)),
        codes[1].with::<PLACE>(bits.bits::<1>(1)),
        codes[2].with::<PLACE>(bits.bits::<2>(1)),
        codes[3].with::<PLACE>(bits.bits::<3>(1)),
        codes[4].with::<PLACE>(bits.bits::<4>(1)),
        codes[5].with::<PLACE>(bits.bits::<5>(1)),
        codes[6].with::<PLACE>(bits.bits::<6>(1)),
        codes[7].with::<PLACE>(bits.bits::<7>(1)),
    ]
}

/// Of each 32 bytes the low nibbles are 32 elements, the high ones the next 32.
#[inline(always)]
fn four_bits<M: Machine>(nibbles: &[u8; 4 * BLOCK]) -> [M::Codes; 8] {
    let (a, b) = (M::Codes::from(*field(nibbles, 0)), M::Codes::from(*field(nibbles, BLOCK)));
    let (c, d) = (M::Codes::from(*field(nibbles, 2 * BLOCK)), M::Codes::from(*field(nibbles, 3 * BLOCK)));
    [
        a.bits::<0>(15),
        a.bits::<4>(15),
        b.bits::<0>(15),
        b.bits::<4>(15),
        c.bits::<0>(15),
        c.bits::<4>(15),
        d.bits::<0>(15),
        d.bits::<4>(15),
    ]
}

#[inline(always)]
fn put<C: Codes>(own: [C; 8], codes: &mut [u8; SUPER]) {
    for (run, own) in runs(codes).iter_mut().zip(own) {
        *run = own.into();
    }
}

/// `scales[16]` (factor low, offset high), `qs[64]` of two bits, `d`, `dmin`.
#[inline(always)]
pub(super) fn q2_k<M: Machine>(block: &[u8; 84], codes: &mut [u8; SUPER], numbers: Numbers<'_>) {
    let (d, least) = (M::half(*field(block, 80)), M::half(*field(block, 82)));
    let packed: [u8; PARTS] = *field(block, 0);
    *numbers.scales = packed.map(|scale| d * f32::from(scale & 15));
    *numbers.offsets = packed.map(|scale| -least * f32::from(scale >> 4));
    put(two_bits::<M>([field(block, 16), field(block, 48)]), codes);
}

/// `hmask[32]`, `qs[64]` of two bits, `scales[12]` of six bits, `d`.
#[inline(always)]
pub(super) fn q3_k<M: Machine>(block: &[u8; 110], codes: &mut [u8; SUPER], numbers: Numbers<'_>) {
    let d = M::half(*field(block, 108));
    let word = |at: usize| u32::from_le_bytes(*field(block, 96 + at));
    let [first, second, high] = [word(0), word(4), word(8)];
    let low = |word: u32, shift: u32| word >> shift & 0x0f0f_0f0f;
    let scales = [low(first, 0), low(second, 0), low(first, 4), low(second, 4)];
    let mut bytes = [0; PARTS];
    for (at, (bytes, low)) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(scales).enumerate() {
        *bytes = (low | (high >> (2 * at) & 0x0303_0303) << 4).to_le_bytes();
    }
    *numbers.scales = bytes.map(|scale| d * (f32::from(scale) - 32.0));
    *numbers.offsets = numbers.scales.map(|scale| -4.0 * scale);
    put(with_bit::<M, 2>(two_bits::<M>([field(block, 32), field(block, 64)]), field(block, 0)), codes);
}

/// `d`, `dmin`, `scales[12]` of six bits, nibbles.
#[inline(always)]
pub(super) fn q4_k<M: Machine>(block: &[u8; 144], codes: &mut [u8; SUPER], numbers: Numbers<'_>) {
    six_bits::<M>(field(block, 0), numbers);
    put(four_bits::<M>(field(block, 16)), codes);
}

/// The same with fifth bits before the nibbles.
#[inline(always)]
pub(super) fn q5_k<M: Machine>(block: &[u8; 176], codes: &mut [u8; SUPER], numbers: Numbers<'_>) {
    six_bits::<M>(field(block, 0), numbers);
    put(with_bit::<M, 4>(four_bits::<M>(field(block, 48)), field(block, 16)), codes);
}

/// `d`, `dmin`, and eight scales and offsets of six bits: the low four or six in the first eight bytes, the rest of the
/// last four in what is left of them.
#[inline(always)]
fn six_bits<M: Machine>(head: &[u8; 16], numbers: Numbers<'_>) {
    let (d, least) = (M::half(*field(head, 0)), M::half(*field(head, 2)));
    let word = |at: usize| u32::from_le_bytes(*field(head, at));
    let [first, second, third] = [word(4), word(8), word(12)];
    let scales = [first & 0x3f3f_3f3f, third & 0x0f0f_0f0f | first >> 2 & 0x3030_3030];
    let offsets = [second & 0x3f3f_3f3f, third >> 4 & 0x0f0f_0f0f | second >> 2 & 0x3030_3030];
    let bytes = |[low, high]: [u32; 2]| (u64::from(low) | u64::from(high) << 32).to_le_bytes();
    numbers.scales[..8].copy_from_slice(&bytes(scales).map(|scale| d * f32::from(scale)));
    numbers.offsets[..8].copy_from_slice(&bytes(offsets).map(|offset| -least * f32::from(offset)));
}

/// `ql[128]`, `qh[64]`, `scales[16]` signed, `d`.
#[inline(always)]
pub(super) fn q6_k<M: Machine>(block: &[u8; 210], codes: &mut [u8; SUPER], numbers: Numbers<'_>) {
    let d = M::half(*field(block, 208));
    let packed: [u8; PARTS] = *field(block, 192);
    *numbers.scales = packed.map(|scale| d * f32::from(scale.cast_signed()));
    *numbers.offsets = numbers.scales.map(|scale| -32.0 * scale);
    for (half, runs) in runs(codes).as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let (a, b) = (M::Codes::from(*field(block, 64 * half)), M::Codes::from(*field(block, 64 * half + 32)));
        let high = M::Codes::from(*field(block, 128 + 32 * half));
        *runs = [
            a.bits::<0>(15).with::<4>(high.bits::<0>(3)).into(),
            b.bits::<0>(15).with::<4>(high.bits::<2>(3)).into(),
            a.bits::<4>(15).with::<4>(high.bits::<4>(3)).into(),
            b.bits::<4>(15).with::<4>(high.bits::<6>(3)).into(),
        ];
    }
}

/// Half `d`, 8 scales of 6 bits (their high 2 bits in a 16-bit word, then their low nibbles); nibbles that name steps.
#[inline(always)]
pub(super) fn iq4_xs<M: Machine>(block: &[u8; 136], codes: &mut [u8; SUPER], numbers: Numbers<'_>) {
    let (d, high) = (M::half(*field(block, 0)), u16::from_le_bytes(*field(block, 2)));
    for (at, run) in runs(codes).iter_mut().enumerate() {
        let scale = u16::from(block[4 + at / 2] >> (at % 2 * 4) & 15) | (high >> (2 * at) & 3) << 4;
        numbers.scales[at] = d * (f32::from(scale) - 32.0);
        numbers.offsets[at] = -128.0 * numbers.scales[at];
        *run = M::Codes::nibbles(field(block, 8 + 16 * at)).lookup(&STEPS).into();
    }
}

/// Base 3 numbers, scaled so that the digits come out at the top; half `d`.
#[inline(always)]
pub(super) fn tq1_0<M: Machine>(block: &[u8; 54], codes: &mut [u8; SUPER], numbers: Numbers<'_>) {
    let d = M::half(*field(block, 52));
    (*numbers.scales, *numbers.offsets) = ([d; PARTS], [-d; PARTS]);
    let (first, rest) = codes.split_at_mut(160);
    let (second, third) = rest.split_at_mut(80);
    digits::<32>(field(block, 0), first);
    digits::<16>(field(block, 32), second);
    digits::<4>(field(block, 48), third);
}

#[inline(always)]
fn digits<const BYTES: usize>(bytes: &[u8; BYTES], codes: &mut [u8]) {
    let mut power = 1u8;
    for codes in codes.as_chunks_mut::<BYTES>().0 {
        *codes = bytes.map(|byte| ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8);
        power *= 3;
    }
}

/// Codes of two bits; half `d`.
#[inline(always)]
pub(super) fn tq2_0<M: Machine>(block: &[u8; 66], codes: &mut [u8; SUPER], numbers: Numbers<'_>) {
    let d = M::half(*field(block, 64));
    (*numbers.scales, *numbers.offsets) = ([d; PARTS], [-d; PARTS]);
    put(two_bits::<M>([field(block, 0), field(block, 32)]), codes);
}
