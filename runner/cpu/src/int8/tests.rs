//! Tests of every format with every instruction set. Results must equal those of the scalar code
//! bit for bit, and those of decoded weights within the rounding of activations.

use formats::weight::Arrays;
use formats::{Dtype, GgmlType, WeightKernels};
use proptest::prelude::*;

use super::*;
use crate::pool::Pool;

fn rounded(instructions: Instructions, x: &[f32], columns: usize) -> Activations {
    let mut activations = Activations::EMPTY;
    activations.fill(&Pool::new(2).expect("threads"), instructions, x, columns);
    activations
}

fn scalar() -> Instructions {
    Instructions::named("scalar").expect("it is everywhere")
}

/// Multiplies all rows with all rows of x: `[x's rows][rows]`.
fn products(instructions: Instructions, weight: &Weight<'_>, x: &[f32]) -> Vec<Vec<f32>> {
    let columns = weight.columns();
    let activations = rounded(instructions, x, columns);
    let matrix = IntegerMatrix::new(weight).expect("an encoding with kernels");
    let (mut panel, mut sums) = (Panel::new(), vec![[f32::NAN; LANES]; x.len() / columns]);
    matrix.products(instructions, 0..weight.rows(), activations.after(0), &mut panel, &mut sums);
    sums.iter().map(|sums| sums[..weight.rows()].to_vec()).collect()
}

fn check(weight: &Weight<'_>, x: &[f32]) {
    let (encoding, columns) = (weight.encoding(), weight.columns());
    let definition = products(scalar(), weight, x);
    for instructions in Instructions::available() {
        assert_eq!(products(instructions, weight, x), definition, "{instructions}: {encoding}");
        // The result of a row of x does not depend on the other rows.
        let last = &x[x.len() - columns..];
        assert_eq!(
            products(instructions, weight, last)[0],
            definition[definition.len() - 1],
            "{instructions}: {encoding}"
        );
    }
    let mut expanded = vec![0.0; columns];
    for row in 0..weight.rows() {
        weight.decode_row(row, &mut expanded);
        for (x, sums) in x.chunks_exact(columns).zip(&definition) {
            let exact: f64 = expanded.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            // Each x is off by at most half a step, and the offsets of codes are rounded a few
            // times.
            let largest = |x: &[f32]| x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            let blocks = expanded.chunks(BLOCK).zip(x.chunks(BLOCK));
            let bound: f32 = blocks
                .map(|(w, x)| {
                    let step = largest(x) / 127.0;
                    w.iter().map(|w| w.abs()).sum::<f32>() * step * 0.502 + largest(w) * largest(x) * 1e-3
                })
                .sum();
            let error = (f64::from(sums[row]) - exact).abs();
            assert!(error <= f64::from(bound) + 1e-6, "{encoding}: {} is more than {bound} from {exact}", sums[row]);
        }
    }
}

/// Returns pseudo-random bytes with a long period.
fn bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Returns numbers between -3 and 3, with some outliers.
fn activations(count: usize, seed: u64) -> Vec<f32> {
    let noise = bytes(2 * count, seed);
    let number = |pair: &[u8; 2]| {
        let far = if pair[1].is_multiple_of(61) { 20.0 } else { 1.0 };
        far * (f32::from(i16::from_le_bytes(*pair)) / 11_000.0)
    };
    noise.as_chunks().0.iter().map(number).collect()
}

/// Returns the types with integer kernels.
fn kinds() -> Vec<GgmlType> {
    let all = GgmlType::ALL.iter().copied();
    all.filter(|kind| matches!(kind.kernels(), WeightKernels::Integer(_))).collect()
}

/// Returns blocks of arbitrary codes with plausible scales: the 16-bit numbers of a block are
/// small.
fn blocks(kind: GgmlType, rows: usize, columns: usize, seed: u64) -> Vec<u8> {
    let numbers: &[usize] = match kind {
        GgmlType::Q2_K => &[80, 82],
        GgmlType::Q3_K => &[108],
        GgmlType::Q6_K => &[208],
        GgmlType::TQ1_0 => &[52],
        GgmlType::TQ2_0 => &[64],
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => &[0, 2],
        GgmlType::MXFP4 | GgmlType::NVFP4 | GgmlType::IQ1_M => &[],
        _ => &[0],
    };
    let size = kind.block_bytes() as usize;
    let mut all = bytes(rows * columns / kind.block_elements() as usize * size, seed);
    for (index, block) in all.chunks_exact_mut(size).enumerate() {
        for (at, place) in numbers.iter().enumerate() {
            let sign = if (index + at) % 3 == 0 { -1.0 } else { 1.0 };
            let number = half::f16::from_f32(sign * (0.001 + ((index + at) % 50) as f32 * 0.0003));
            block[*place..place + 2].copy_from_slice(&number.to_le_bytes());
        }
        if kind == GgmlType::MXFP4 {
            block[0] = 120 + block[0] % 12;
        }
        if kind == GgmlType::IQ1_M {
            // The top nibbles of the last four words are `d`: about 0.0012.
            for (word, nibble) in [0x0, 0xf, 0x4, 0x1].into_iter().enumerate() {
                let top = &mut block[48 + 2 * word + 1];
                *top = *top & 15 | nibble << 4;
            }
        }
        if kind == GgmlType::TQ1_0 {
            // Bytes as the encoder writes them: five base-3 digits each, four in the last four
            // bytes.
            for byte in &mut block[..52] {
                *byte = (u16::from(*byte % 243) * 256).div_ceil(243) as u8;
            }
        }
        if kind == GgmlType::TQ2_0 {
            // Codes are 0, 1 and 2.
            for byte in &mut block[..64] {
                *byte &= !(*byte << 1 & 0xaa);
            }
        }
    }
    all
}

fn shapes(kind: GgmlType) -> [(usize, usize); 3] {
    let block = kind.block_elements() as usize;
    [(1, block), (16, block.max(64) * 5), (11, block.max(96) * 4)]
}

#[test]
fn blocks_agree_with_the_definition_and_the_codecs() {
    for kind in kinds() {
        for (at, (rows, columns)) in shapes(kind).into_iter().enumerate() {
            let data = blocks(kind, rows, columns, 7 + at as u64);
            let arrays = Arrays { data: &data, ..Arrays::default() };
            let weight = Weight::new(Encoding::Blocks(kind), &[rows as u64, columns as u64], arrays);
            check(&weight.expect("a weight"), &activations(19 * columns, 3));
        }
    }
}

#[test]
fn groups_agree_with_the_definition_and_the_codecs() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                let (rows, columns) = (13, 3 * 128);
                let data = bytes(rows * columns * bits / 8, 5);
                let numbers = |scale: f32| -> Vec<u8> {
                    let number = |at: usize| ((at * 7 % 13) as f32 - 6.0) * scale;
                    let all = (0..rows * columns / group as usize).map(number);
                    match dtype {
                        Dtype::F32 => all.flat_map(f32::to_le_bytes).collect(),
                        Dtype::F16 => all.flat_map(|x| half::f16::from_f32(x).to_le_bytes()).collect(),
                        _ => all.flat_map(|x| half::bf16::from_f32(x).to_le_bytes()).collect(),
                    }
                };
                let (scales, biases) = (numbers(0.01), numbers(-0.07));
                let of = |bytes| Some(Numbers { dtype, bytes });
                let arrays = Arrays { data: &data, scale: of(&scales), bias: of(&biases), global_scale: None };
                let encoding = Encoding::Affine { bits: bits as u8, group };
                let weight = Weight::new(encoding, &[rows as u64, columns as u64], arrays).expect("a weight");
                check(&weight, &activations(5 * columns, 9));
            }
        }
    }
}

#[test]
fn microscaled_groups_agree_with_the_definition_and_the_codecs() {
    use formats::encoding::Micro;
    for (micro, global) in [(Micro::Mxfp4, None), (Micro::Nvfp4, None), (Micro::Nvfp4, Some(0.37))] {
        let (rows, columns) = (13, 9 * 32);
        let data = bytes(rows * columns / 2, 5);
        let codes = bytes(rows * columns / micro.group() as usize, 2);
        let scales: Vec<u8> =
            codes.iter().map(|x| if micro == Micro::Mxfp4 { 120 + x % 12 } else { x % 120 }).collect();
        let scale = Some(Numbers { dtype: Dtype::U8, bytes: &scales });
        let arrays = Arrays { data: &data, scale, bias: None, global_scale: global };
        let weight = Weight::new(Encoding::Micro(micro), &[rows as u64, columns as u64], arrays).expect("a weight");
        check(&weight, &activations(4 * columns, 1));
    }
}

/// Returns whether both have the same bits, where NaNs with different bits are equal.
fn are_alike(a: &[Vec<f32>], b: &[Vec<f32>]) -> bool {
    let is_alike = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    a.len() == b.len() && a.iter().flatten().zip(b.iter().flatten()).all(is_alike)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Tests arbitrary codes and rows of x, with plausible scales or with arbitrary bits in their
    /// place: subnormal, infinite, NaN.
    #[test]
    fn every_set_equals_the_definition(
        kind in prop::sample::select(kinds()),
        seed: u64,
        any_bits: bool,
        m in 0usize..21,
        rows in 1usize..=16,
    ) {
        check_any(kind, seed, any_bits, m, rows);
    }
}

/// Scales of NVFP4 that gave different results once.
#[test]
fn cases_that_failed_once() {
    check_any(GgmlType::NVFP4, 1_864_583_435_865_498_010, false, 1, 2);
    check_any(GgmlType::NVFP4, 1_864_583_435_865_498_010, true, 1, 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Tests separate scales of arbitrary bits, and rows that end within a loaded window.
    #[test]
    fn every_set_equals_the_definition_of_what_lies_apart(
        encoding in prop::sample::select(apart()),
        dtype in prop::sample::select(vec![Dtype::F32, Dtype::F16, Dtype::Bf16]),
        seed: u64,
        groups in 1usize..12,
        m in 1usize..7,
        rows in 1usize..=16,
    ) {
        let group = encoding.group_size() as usize;
        let columns = groups * group.max(BLOCK);
        let count = rows * columns / group;
        let of = |dtype, size: usize, seed| (dtype, bytes(count * size, seed));
        let (data, scale, bias) = match encoding {
            Encoding::Affine { bits, .. } => {
                let size = if dtype == Dtype::F32 { 4 } else { 2 };
                let numbers = [of(dtype, size, seed ^ 1), of(dtype, size, seed ^ 2)];
                (bytes(rows * columns * usize::from(bits) / 8, seed), numbers[0].clone(), Some(numbers[1].clone()))
            }
            _ => (bytes(rows * columns / 2, seed), of(Dtype::U8, 1, seed ^ 1), None),
        };
        let arrays =
            Arrays { data: &data, scale: Some(of_type(&scale)), bias: bias.as_ref().map(of_type), global_scale: None };
        let weight = Weight::new(encoding, &[rows as u64, columns as u64], arrays).expect("a weight");
        check_sets(&weight, &activations(m * columns, seed.rotate_left(9)));
    }
}

fn of_type((dtype, bytes): &(Dtype, Vec<u8>)) -> Numbers<'_> {
    Numbers { dtype: *dtype, bytes }
}

/// Returns all encodings with separate scales.
fn apart() -> Vec<Encoding> {
    use formats::encoding::Micro;
    let affine = |bits| [32, 64, 128].map(|group| Encoding::Affine { bits, group });
    let mut all: Vec<Encoding> = [2, 3, 4, 5, 6, 8].into_iter().flat_map(affine).collect();
    all.extend([Micro::Mxfp4, Micro::Nvfp4].map(Encoding::Micro));
    all
}

fn check_any(kind: GgmlType, seed: u64, any_bits: bool, m: usize, rows: usize) {
    let columns = 256 + kind.block_elements() as usize;
    let data = if any_bits {
        bytes(rows * columns / kind.block_elements() as usize * kind.block_bytes() as usize, seed)
    } else {
        blocks(kind, rows, columns, seed)
    };
    let arrays = Arrays { data: &data, ..Arrays::default() };
    let weight = Weight::new(Encoding::Blocks(kind), &[rows as u64, columns as u64], arrays).expect("a weight");
    check_sets(&weight, &activations(m * columns, seed.rotate_left(9)));
}

fn check_sets(weight: &Weight<'_>, x: &[f32]) {
    let definition = products(scalar(), weight, x);
    for instructions in Instructions::available() {
        let found = products(instructions, weight, x);
        assert!(are_alike(&found, &definition), "{instructions}: {found:?}, not {definition:?}");
    }
}

/// A row index beyond the weight panics before memory is read.
#[test]
#[should_panic(expected = "rows of the weight")]
fn a_row_that_is_not_there_is_not_read() {
    let data = blocks(GgmlType::Q4_0, 4, 64, 1);
    let arrays = Arrays { data: &data, ..Arrays::default() };
    let weight = Weight::new(Encoding::Blocks(GgmlType::Q4_0), &[4, 64], arrays).expect("a weight");
    let activations = rounded(Instructions::best(), &activations(64, 1), 64);
    let matrix = IntegerMatrix::new(&weight).expect("an encoding with kernels");
    matrix.products(Instructions::best(), 3..5, activations.after(0), &mut Panel::new(), &mut [[0.0; LANES]]);
}

/// Returns the dot product of 32 codes with scale 1 and bias 0, for every set.
fn dots_of_codes(code: u8, x: &[f32; BLOCK]) -> Vec<f32> {
    let data = vec![code; BLOCK];
    let (ones, zeros) = (1.0f32.to_le_bytes(), [0; 4]);
    let numbers = |bytes| Some(Numbers { dtype: Dtype::F32, bytes });
    let arrays = Arrays { data: &data, scale: numbers(&ones), bias: numbers(&zeros), global_scale: None };
    let weight = Weight::new(Encoding::Affine { bits: 8, group: 32 }, &[1, 32], arrays).expect("a weight");
    Instructions::available().map(|instructions| products(instructions, &weight, x)[0][0]).collect()
}

#[test]
fn the_largest_products_do_not_overflow() {
    for (code, x) in [(255, 127.0), (255, -127.0), (128, -127.0), (127, 127.0)] {
        for sum in dots_of_codes(code, &[x; BLOCK]) {
            let expected = f32::from(code) * x * BLOCK as f32;
            assert!((sum - expected).abs() < 1.0, "{code} · {x}: {sum} is not {expected}");
        }
    }
}

#[test]
fn what_is_not_a_number_is_not_hidden() {
    for place in [0, 17, BLOCK - 1] {
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut x = [1.0; BLOCK];
            x[place] = wrong;
            assert!(dots_of_codes(3, &x).iter().all(|sum| !sum.is_finite()), "{wrong} at {place}");
        }
    }
}
