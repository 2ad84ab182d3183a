//! Microscaled groups with AVX2: the same bits as the portable code, with the scales of eight
//! groups in parallel.
#![expect(unsafe_code, reason = "functions compiled for AVX2 are called where AVX2 was detected")]

use std::arch::x86_64::{
    __m256, __m256i, _CMP_GE_OQ, _CMP_LE_OQ, _mm256_add_epi32, _mm256_add_ps, _mm256_and_ps, _mm256_and_si256,
    _mm256_andnot_ps, _mm256_andnot_si256, _mm256_blendv_epi8, _mm256_broadcastsi128_si256, _mm256_castps_si256,
    _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cmpeq_epi8, _mm256_cmpgt_epi8, _mm256_cmpgt_epi32, _mm256_div_ps,
    _mm256_max_epi32, _mm256_max_epu8, _mm256_max_ps, _mm256_min_epi8, _mm256_min_epi32, _mm256_movemask_epi8,
    _mm256_movemask_ps, _mm256_mul_ps, _mm256_or_si256, _mm256_packs_epi32, _mm256_packus_epi16, _mm256_set1_epi8,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi32,
    _mm256_srai_epi32, _mm256_srli_epi32, _mm256_sub_epi32,
};

use super::super::bits;
use super::super::simd::avx2::{
    LANES, RUN, available, bytes, greatest, in_order, load, load_bytes, load_run, numbers, round, signed_bytes, store,
    unsigned_bytes, write_nibbles,
};
use super::super::small_float::{E2M1_DISTINCT, E4M3, power_of_two, to_e2m1};
use super::super::target::{EncodedBuffers, EncodingTarget};
use super::{Scaling, encode_group, factor, limit, scaling};
use crate::Dtype;
use crate::encoding::Micro;

/// Powers of two between this and its reciprocal have exact reciprocals.
const LEAST_STEP: f32 = power_of_two(-126);

/// Encodes whole groups.
///
/// # Panics
/// If the CPU lacks the features, see [`available`].
pub(super) fn encode(values: &[f32], micro: Micro, target: EncodingTarget, out: EncodedBuffers<'_>) {
    assert!(available(), "invariant: the caller has checked for AVX2");
    // SAFETY: the CPU has the features, see the assertion.
    unsafe {
        match micro {
            Micro::Nvfp4 => encode_groups::<16, 8>(values, micro, target, out),
            Micro::Mxfp4 => encode_groups::<32, 16>(values, micro, target, out),
            Micro::Mxfp8 => encode_groups::<32, 32>(values, micro, target, out),
        }
    }
}

/// Scaling of the elements of eight groups.
struct Scalings {
    /// Divisors of the values.
    step: [f32; LANES],
    /// Exact reciprocals of the steps, if all have one.
    inverse: Option<[f32; LANES]>,
    /// Codes of the scales.
    code: [u8; LANES],
}

/// Encodes groups of `ELEMENTS` elements and `BYTES` bytes.
#[target_feature(enable = "avx2,f16c")]
fn encode_groups<const ELEMENTS: usize, const BYTES: usize>(
    values: &[f32],
    micro: Micro,
    target: EncodingTarget,
    out: EncodedBuffers<'_>,
) {
    let EncodedBuffers { data, scale, .. } = out;
    let codes = data.chunks_mut(LANES * BYTES);
    for ((values, codes), scales) in values.chunks(LANES * ELEMENTS).zip(codes).zip(scale.chunks_mut(LANES)) {
        let scalings = scalings(largest(values.as_chunks::<ELEMENTS>().0), micro, target);
        scales.copy_from_slice(&scalings.code[..scales.len()]);
        let (runs, rest) = values.as_chunks::<RUN>();
        let (codes, rest_codes) = codes.split_at_mut(runs.len() * RUN / ELEMENTS * BYTES);
        for ((at, values), codes) in runs.iter().enumerate().zip(codes.chunks_exact_mut(RUN / ELEMENTS * BYTES)) {
            let (front, back) = (at * RUN / ELEMENTS, (at * RUN + RUN / 2) / ELEMENTS);
            let elements = elements(load_run(values), &scalings, [front, back], target);
            if let Ok(codes) = <&mut [u8; RUN]>::try_from(&mut *codes) {
                *codes = bytes(e4m3_codes(elements));
            } else {
                write_e2m1(elements, codes);
            }
        }
        // A single group of sixteen elements is left.
        let last = values.len() / ELEMENTS - 1;
        if let (Ok(values), Ok(codes)) = (<&[f32; ELEMENTS]>::try_from(rest), <&mut [u8; BYTES]>::try_from(rest_codes))
        {
            let scaling = Scaling { step: scalings.step[last], factor: factor(target), code: scalings.code[last] };
            encode_group(values, micro, target.float, scaling, codes);
        }
    }
}

/// Returns the largest magnitude of up to eight groups; NaN is ignored.
#[inline]
#[target_feature(enable = "avx2")]
fn largest<const ELEMENTS: usize>(groups: &[[f32; ELEMENTS]]) -> __m256 {
    let mut largest = [_mm256_setzero_ps(); LANES];
    for (largest, values) in largest.iter_mut().zip(groups) {
        for values in values.as_chunks::<LANES>().0 {
            // The instruction returns the second operand if the first is NaN.
            *largest = _mm256_max_ps(magnitude(load(values)), *largest);
        }
    }
    greatest(largest)
}

#[inline]
#[target_feature(enable = "avx2")]
fn magnitude(vector: __m256) -> __m256 {
    _mm256_andnot_ps(_mm256_set1_ps(-0.0), vector)
}

/// Returns the scalings of groups with the given largest magnitudes.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn scalings(largest: __m256, micro: Micro, target: EncodingTarget) -> Scalings {
    let wanted = round(target.float, _mm256_div_ps(largest, _mm256_set1_ps(limit(micro))));
    if micro == Micro::Nvfp4 {
        return nvfp4_scalings(_mm256_mul_ps(wanted, _mm256_set1_ps(factor(target))));
    }
    // For normal numbers, the step is the number with its exponent rounded up.
    let normal = within(wanted, f32::MIN_POSITIVE, power_of_two(126));
    if _mm256_movemask_ps(normal) != 0xff {
        let scalings = numbers(largest).map(|largest| scaling(largest, micro, target));
        return Scalings {
            step: scalings.map(|scaling| scaling.step),
            inverse: None,
            code: scalings.map(|scaling| scaling.code),
        };
    }
    let exponents = _mm256_add_epi32(_mm256_castps_si256(wanted), _mm256_set1_epi32(0x007f_ffff));
    let exponents = _mm256_srli_epi32::<23>(exponents);
    let step = round(target.float, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponents)));
    let exact = within(step, LEAST_STEP, 1.0 / LEAST_STEP);
    let inverse = numbers(_mm256_div_ps(_mm256_set1_ps(1.0), step));
    Scalings {
        step: numbers(step),
        inverse: (_mm256_movemask_ps(exact) == 0xff).then_some(inverse),
        code: low_bytes(exponents),
    }
}

/// Mask of lanes between `least` and `most`, inclusive.
#[inline]
#[target_feature(enable = "avx2")]
fn within(vector: __m256, least: f32, most: f32) -> __m256 {
    _mm256_and_ps(
        _mm256_cmp_ps::<_CMP_GE_OQ>(vector, _mm256_set1_ps(least)),
        _mm256_cmp_ps::<_CMP_LE_OQ>(vector, _mm256_set1_ps(most)),
    )
}

/// Returns scalings with the nearest E4M3 scales.
#[inline]
#[target_feature(enable = "avx2")]
fn nvfp4_scalings(wanted: __m256) -> Scalings {
    let codes = e4m3_codes([wanted; 4]);
    let mut code = [0; LANES];
    code.copy_from_slice(&bytes(codes)[..LANES]);
    Scalings { step: code.map(|code| E4M3[usize::from(code)]), inverse: None, code }
}

/// Converts integers below 256 to bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn low_bytes(words: __m256i) -> [u8; LANES] {
    let mut low = [0; LANES];
    low.copy_from_slice(&bytes(unsigned_bytes([words; 4]))[..LANES]);
    low
}

/// Returns the scaled elements of a run before rounding. The two halves of the run belong to two
/// groups.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn elements(
    values: [__m256; 4],
    scalings: &Scalings,
    [front, back]: [usize; 2],
    target: EncodingTarget,
) -> [__m256; 4] {
    let mut elements = values;
    if let Some(inverse) = &scalings.inverse {
        let (front, back) = (_mm256_set1_ps(inverse[front]), _mm256_set1_ps(inverse[back]));
        for (element, inverse) in elements.iter_mut().zip([front, front, back, back]) {
            *element = _mm256_mul_ps(*element, inverse);
        }
    } else {
        let (front, back) = (_mm256_set1_ps(scalings.step[front]), _mm256_set1_ps(scalings.step[back]));
        for (element, step) in elements.iter_mut().zip([front, front, back, back]) {
            *element = _mm256_div_ps(*element, step);
        }
    }
    if target.float != Dtype::F32 {
        for element in &mut elements {
            *element = round(target.float, *element);
        }
    }
    if target.global_scale.is_some() {
        for element in &mut elements {
            *element = _mm256_mul_ps(*element, _mm256_set1_ps(factor(target)));
        }
    }
    elements
}

/// Writes the nearest E2M1 code of each element.
#[inline]
#[target_feature(enable = "avx2")]
fn write_e2m1(elements: [__m256; 4], out: &mut [u8]) {
    let Ok(out) = <&mut [u8; RUN / 2]>::try_from(out) else { unreachable!("invariant: a run is sixteen bytes") };
    let mut largest = _mm256_setzero_si256();
    for element in elements {
        largest = _mm256_max_epi32(largest, _mm256_castps_si256(magnitude(element)));
    }
    let distinct = _mm256_set1_epi32(E2M1_DISTINCT.to_bits().cast_signed());
    if _mm256_movemask_epi8(_mm256_cmpgt_epi32(largest, distinct)) == 0 {
        return write_nibbles(e2m1_codes(elements), out);
    }
    // NaN and values far out of range are rare, and take a slower path.
    let mut apart = [0.0; RUN];
    for (apart, element) in apart.as_chunks_mut().0.iter_mut().zip(elements) {
        store(element, apart);
    }
    bits::pack::<4>(&apart.map(to_e2m1), out);
}

/// Returns the nearest E2M1 codes of numbers up to [`E2M1_DISTINCT`].
///
/// The midpoints between E2M1 values have two mantissa bits. After one unit in the last place is
/// subtracted, a number above a midpoint still has at least the exponent and mantissa bits of this
/// midpoint. These bits are the index into the table.
#[inline]
#[target_feature(enable = "avx2")]
fn e2m1_codes(elements: [__m256; 4]) -> __m256i {
    /// Exponent and two mantissa bits of 0.5: the first index of the table.
    const FIRST: i32 = 126 << 2;
    /// Codes of numbers above 0.5, 0.625, 0.75 and so on up to 7.
    const CODES: [u8; 16] = [1, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 7];
    let mut places = [_mm256_setzero_si256(); 4];
    for (place, element) in places.iter_mut().zip(elements) {
        let bits = _mm256_castps_si256(magnitude(element));
        *place = _mm256_srai_epi32::<21>(_mm256_sub_epi32(bits, _mm256_set1_epi32((FIRST << 21) + 1)));
    }
    let places = signed_bytes(places);
    let table = _mm256_broadcastsi128_si256(load_bytes(&CODES));
    // Numbers below the table give 0, or 1 if they are above 0.25.
    let looked_up = _mm256_shuffle_epi8(table, _mm256_min_epi8(places, _mm256_set1_epi8(15)));
    let above_quarter = _mm256_cmpgt_epi8(places, _mm256_set1_epi8(-5));
    let one = _mm256_and_si256(above_quarter, _mm256_set1_epi8(1));
    let codes = _mm256_max_epu8(looked_up, one);
    let negative = _mm256_and_si256(signs(elements), _mm256_set1_epi8(8));
    let zero = _mm256_cmpeq_epi8(codes, _mm256_setzero_si256());
    in_order(_mm256_or_si256(codes, _mm256_andnot_si256(zero, negative)))
}

/// Returns a byte mask of the negative elements, in packed order; [`in_order`] restores the order.
#[inline]
#[target_feature(enable = "avx2")]
fn signs(elements: [__m256; 4]) -> __m256i {
    let mut bits = [_mm256_setzero_si256(); 4];
    for (bits, element) in bits.iter_mut().zip(elements) {
        *bits = _mm256_castps_si256(element);
    }
    _mm256_cmpgt_epi8(_mm256_setzero_si256(), signed_bytes(bits))
}

/// Returns the nearest E4M3 code of each element: [`super::to_e4m3`].
#[inline]
#[target_feature(enable = "avx2")]
fn e4m3_codes(elements: [__m256; 4]) -> __m256i {
    let mut codes = [_mm256_setzero_si256(); 4];
    for (code, element) in codes.iter_mut().zip(elements) {
        *code = e4m3_magnitude(element);
    }
    let [a, b, c, d] = codes;
    let codes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    let negative = _mm256_and_si256(signs(elements), _mm256_set1_epi8(i8::MIN));
    in_order(_mm256_or_si256(codes, negative))
}

/// Returns the codes without signs.
#[inline]
#[target_feature(enable = "avx2")]
fn e4m3_magnitude(element: __m256) -> __m256i {
    // NaN compares above all numbers here, and becomes the largest code.
    let bits = _mm256_castps_si256(magnitude(element));
    let bits = _mm256_min_epi32(bits, _mm256_set1_epi32(448f32.to_bits().cast_signed()));
    let odd = _mm256_and_si256(_mm256_srli_epi32::<20>(bits), _mm256_set1_epi32(1));
    let nearest = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x0007_ffff - (120 << 23))), odd);
    let normal = _mm256_srli_epi32::<20>(nearest);
    // The last bit of numbers from 2^14 is worth 2^-9, the step of subnormal E4M3.
    let offset = _mm256_set1_ps(16384.0);
    let sum = _mm256_add_ps(_mm256_castsi256_ps(bits), offset);
    let subnormal = _mm256_sub_epi32(_mm256_castps_si256(sum), _mm256_castps_si256(offset));
    let small = _mm256_cmpgt_epi32(_mm256_set1_epi32(power_of_two(-6).to_bits().cast_signed()), bits);
    _mm256_blendv_epi8(normal, subnormal, small)
}
