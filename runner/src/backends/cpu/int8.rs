//! Integer dot products of weights with activations rounded to 8 bits by blocks of 32.
//!
//! A block of weights is `w = d·q + m`: of GGML's types `Q4_0` has `m = -8·d`, `Q5_0` `m = -16·d`, `Q8_0` none; affine
//! groups have `d` and `m` apart from the codes. A block of activations is `x = e·p`. So the dot product is
//! `d·e·Σ q·p + m·e·Σ p`: one integer sum for each pair of blocks, and one that depends on x alone.
//!
//! Codes of 8 bits are computed with as signed ones, `q - 128` with `m + 128·d`: two products of unsigned ones would not
//! fit into the 16 bits that the instructions add them in.
#![expect(unsafe_code, reason = "threads round rows of x into one slice")]

#[cfg(target_arch = "x86_64")]
mod avx2;
mod k_quants;
mod row;

use formats::encoding::Role;
use formats::weight::{Arrays, Numbers};
use formats::{Encoding, GgmlType, Weight};

use super::float::with_buffer;
use crate::pool::{Pool, SharedSlice};
use k_quants::Kind;
use row::Row;

/// Elements in a block of activations.
const BLOCK: usize = 32;
/// Rows of x that share the unpacking of a weight block.
const TILE: usize = 4;
/// Elements of x below which it is rounded by one thread.
const PARALLEL_FROM: usize = 1 << 14;

/// Rows of x, rounded to 8 bits by blocks of 32.
///
/// Rows that are computed with together lie together: of each [`TILE`] rows the first blocks, then the second ones, and so
/// on. The rows that are left lie one after the other.
#[derive(Debug)]
pub(super) struct Activations {
    /// `p`, 32 for each block.
    quants: Vec<i8>,
    /// `e`, one for each block.
    scales: Vec<f32>,
    /// `e·Σ p`, one for each block.
    sums: Vec<f32>,
    /// Blocks in a row.
    blocks: usize,
}

impl Activations {
    /// None.
    pub(super) const EMPTY: Self = Self { quants: Vec::new(), scales: Vec::new(), sums: Vec::new(), blocks: 0 };

    /// Whether rows of so many elements can be rounded: whole blocks.
    pub(super) fn fits(columns: usize) -> bool {
        columns > 0 && columns.is_multiple_of(BLOCK)
    }

    /// Rounds `x` of `[m, columns]` in the place of what is here.
    pub(super) fn fill(&mut self, pool: &Pool, x: &[f32], columns: usize) {
        assert!(Self::fits(columns), "whole blocks");
        let (blocks, rows) = (columns / BLOCK, x.len() / columns);
        // Room is only added: what is not written here is not read.
        grow(&mut self.quants, x.len());
        grow(&mut self.scales, rows * blocks);
        grow(&mut self.sums, rows * blocks);
        self.blocks = blocks;
        let tiled = rows / TILE * TILE;
        let quants = SharedSlice::new(&mut self.quants);
        let (scales, sums) = (SharedSlice::new(&mut self.scales), SharedSlice::new(&mut self.sums));
        let round = |rows: std::ops::Range<usize>| {
            for row in rows {
                for (index, x) in x[row * columns..][..columns].as_chunks::<BLOCK>().0.iter().enumerate() {
                    let position = if row < tiled {
                        row / TILE * TILE * blocks + index * TILE + row % TILE
                    } else {
                        row * blocks + index
                    };
                    // SAFETY: a position belongs to one block of one row, and a region hands out each row once.
                    let (quants, scale, sum) = unsafe {
                        (
                            quants.range(position * BLOCK..(position + 1) * BLOCK),
                            scales.range(position..position + 1),
                            sums.range(position..position + 1),
                        )
                    };
                    (scale[0], sum[0]) = row::round(x, quants);
                }
            }
        };
        if x.len() < PARALLEL_FROM { round(0..rows) } else { pool.run(rows, round) }
    }
}

fn grow<T: Copy + Default>(numbers: &mut Vec<T>, length: usize) {
    if numbers.len() < length {
        numbers.resize(length, T::default());
    }
}

/// How the codes of a row lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    /// Affine, 4 bits: two codes a byte, the earlier one in the low bits.
    Int4,
    /// Affine, 8 bits.
    Int8,
    /// A K type.
    Wide(Kind),
}

impl Format {
    fn of(encoding: Encoding) -> Option<Self> {
        match encoding {
            Encoding::Blocks(GgmlType::Q4_0) => Some(Self::Q4_0),
            Encoding::Blocks(GgmlType::Q4_1) => Some(Self::Q4_1),
            Encoding::Blocks(GgmlType::Q5_0) => Some(Self::Q5_0),
            Encoding::Blocks(GgmlType::Q5_1) => Some(Self::Q5_1),
            Encoding::Blocks(GgmlType::Q8_0) => Some(Self::Q8_0),
            Encoding::Blocks(GgmlType::Q2_K) => Some(Self::Wide(Kind::Q2)),
            Encoding::Blocks(GgmlType::Q3_K) => Some(Self::Wide(Kind::Q3)),
            Encoding::Blocks(GgmlType::Q4_K) => Some(Self::Wide(Kind::Q4)),
            Encoding::Blocks(GgmlType::Q5_K) => Some(Self::Wide(Kind::Q5)),
            Encoding::Blocks(GgmlType::Q6_K) => Some(Self::Wide(Kind::Q6)),
            Encoding::Affine { bits: 4, .. } => Some(Self::Int4),
            Encoding::Affine { bits: 8, .. } => Some(Self::Int8),
            _ => None,
        }
    }
}

/// A matrix that is computed with as integers.
pub(super) struct Matrix<'a> {
    format: Format,
    codes: &'a [u8],
    row_bytes: usize,
    affine: Option<Affine<'a>>,
}

/// What affine groups have apart from their codes; a row of each for a row of the weight.
struct Affine<'a> {
    scales: Weight<'a>,
    biases: Weight<'a>,
    /// Blocks of activations in a group.
    blocks: usize,
}

/// Whether weights of an encoding are computed with as integers.
pub(super) fn has_kernels(encoding: Encoding) -> bool {
    Format::of(encoding).is_some()
}

impl<'a> Matrix<'a> {
    /// The matrix, where there are kernels for its encoding.
    pub(super) fn new(weight: &Weight<'a>) -> Option<Self> {
        let format = Format::of(weight.encoding())?;
        let codes = weight.array(Role::Weight);
        let affine = match weight.encoding() {
            Encoding::Affine { group, .. } => Some(Affine {
                scales: per_group(weight, weight.scale()?),
                biases: per_group(weight, weight.bias()?),
                blocks: group as usize / BLOCK,
            }),
            _ => None,
        };
        Some(Self { format, codes, row_bytes: codes.len().checked_div(weight.rows())?, affine })
    }

    /// A row's dot products with all rows of x.
    pub(super) fn dot(&self, row: usize, x: &Activations, sums: &mut [f32]) {
        let codes = &self.codes[row * self.row_bytes..][..self.row_bytes];
        let Some(affine) = &self.affine else {
            return Row { format: self.format, codes, scales: &[], offsets: &[], blocks: 1 }.dot(x, sums);
        };
        let groups = affine.scales.columns();
        with_buffer(2 * groups, |numbers| {
            let (scales, offsets) = numbers.split_at_mut(groups);
            affine.scales.decode_row(row, scales);
            affine.biases.decode_row(row, offsets);
            if self.format == Format::Int8 {
                for (offset, scale) in offsets.iter_mut().zip(scales.iter()) {
                    *offset += 128.0 * scale;
                }
            }
            Row { format: self.format, codes, scales, offsets, blocks: affine.blocks }.dot(x, sums);
        });
    }
}

/// Scales or biases as a matrix of plain numbers.
fn per_group<'a>(weight: &Weight<'a>, numbers: Numbers<'a>) -> Weight<'a> {
    let groups = weight.columns() as u64 / weight.encoding().group_size();
    let arrays = Arrays { data: numbers.bytes, ..Arrays::default() };
    Weight::again(Encoding::Plain(numbers.dtype), &[weight.rows() as u64, groups], arrays)
}

#[cfg(test)]
mod tests {
    use formats::Dtype;
    use half::{bf16, f16};

    use super::*;
    use crate::backends::cpu::instructions::generically;

    const COLUMNS: usize = 18 * 64;
    const WIDE_COLUMNS: usize = 5 * 256;
    const ROWS: usize = 3;

    fn rounded(x: &[f32], columns: usize) -> Activations {
        let mut activations = Activations::EMPTY;
        activations.fill(&Pool::new(2).expect("threads"), x, columns);
        activations
    }

    /// Blocks of a K type with plausible scales and arbitrary codes.
    fn wide_blocks(kind: GgmlType) -> Vec<u8> {
        let bytes = kind.block_bytes() as usize;
        // Where `d` and `dmin` are.
        let numbers: &[usize] = match kind {
            GgmlType::Q2_K => &[80, 82],
            GgmlType::Q3_K => &[108],
            GgmlType::Q6_K => &[208],
            _ => &[0, 2],
        };
        let mut all: Vec<u8> = (0..ROWS * WIDE_COLUMNS / 256 * bytes).map(|i| (i * 89 % 251) as u8).collect();
        for (index, block) in all.chunks_exact_mut(bytes).enumerate() {
            for (at, place) in numbers.iter().enumerate() {
                let number = f16::from_f32(0.001 + (index + at) as f32 * 0.0003);
                block[*place..place + 2].copy_from_slice(&number.to_le_bytes());
            }
        }
        all
    }

    /// GGML blocks with plausible scales and arbitrary codes.
    fn blocks(kind: GgmlType) -> Vec<u8> {
        let mut bytes = Vec::new();
        for block in 0..ROWS * COLUMNS / BLOCK {
            let start = bytes.len();
            bytes.extend((0..kind.block_bytes()).map(|i| ((i * 89 + block as u64 * 31) % 256) as u8));
            bytes[start..start + 2].copy_from_slice(&f16::from_f32(0.01 + block as f32 * 0.0003).to_le_bytes());
            if matches!(kind, GgmlType::Q4_1 | GgmlType::Q5_1) {
                bytes[start + 2..start + 4].copy_from_slice(&f16::from_f32(-0.07).to_le_bytes());
            }
        }
        bytes
    }

    /// Arbitrary codes; scales of both signs.
    fn affine(bits: usize, group: usize) -> [Vec<u8>; 3] {
        let codes = (0..ROWS * COLUMNS * bits / 8).map(|i| (i * 89 % 251) as u8).collect();
        let each = |number: fn(usize) -> f32| {
            let numbers = (0..ROWS * COLUMNS / group).map(|at| bf16::from_f32(number(at)));
            numbers.flat_map(bf16::to_le_bytes).collect()
        };
        [codes, each(|at| ((at * 7 % 13) as f32 - 6.0) / 100.0), each(|at| ((at * 5 % 11) as f32 - 5.0) / 9.0)]
    }

    fn check(weight: &Weight<'_>) {
        let (encoding, m) = (weight.encoding(), 7);
        let columns = weight.columns();
        let x: Vec<f32> = (0..m * columns).map(|i| ((i * 61 % 199) as f32 - 99.0) / 33.0).collect();
        let activations = rounded(&x, columns);
        let matrix = Matrix::new(weight).expect("an encoding with kernels");
        let (mut expanded, mut sums, mut plain) = (vec![0.0; columns], vec![0.0; m], vec![0.0; m]);
        for row in 0..ROWS {
            weight.decode_row(row, &mut expanded);
            matrix.dot(row, &activations, &mut sums);
            generically(|| matrix.dot(row, &activations, &mut plain));
            // Each x is off by half a step at most.
            let step = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs())) / 127.0;
            let bound = expanded.iter().map(|w| w.abs()).sum::<f32>() * step / 2.0;
            for (i, (sum, plain)) in sums.iter().zip(&plain).enumerate() {
                let exact: f32 = expanded.iter().zip(&x[i * columns..]).map(|(w, x)| w * x).sum();
                assert!((sum - plain).abs() < 1e-3 * plain.abs().max(1.0), "{encoding} {i}: {sum} is not {plain}");
                assert!((sum - exact).abs() < bound, "{encoding} {i}: {sum} is more than {bound} from {exact}");
            }
        }
    }

    #[test]
    fn blocks_agree_with_expanded_weights() {
        for kind in [GgmlType::Q4_0, GgmlType::Q4_1, GgmlType::Q5_0, GgmlType::Q5_1, GgmlType::Q8_0] {
            let data = blocks(kind);
            let arrays = Arrays { data: &data, ..Arrays::default() };
            let shape = [ROWS as u64, COLUMNS as u64];
            check(&Weight::new(Encoding::Blocks(kind), &shape, arrays).expect("a weight"));
        }
    }

    #[test]
    fn wide_blocks_agree_with_expanded_weights() {
        for kind in [GgmlType::Q2_K, GgmlType::Q3_K, GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::Q6_K] {
            let data = wide_blocks(kind);
            let arrays = Arrays { data: &data, ..Arrays::default() };
            let shape = [ROWS as u64, WIDE_COLUMNS as u64];
            check(&Weight::new(Encoding::Blocks(kind), &shape, arrays).expect("a weight"));
        }
    }

    #[test]
    fn affine_groups_agree_with_expanded_weights() {
        for (bits, group) in [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128)] {
            let [data, scale, bias] = affine(usize::from(bits), group as usize);
            let numbers = |bytes| Some(Numbers { dtype: Dtype::Bf16, bytes });
            let arrays = Arrays { data: &data, scale: numbers(&scale), bias: numbers(&bias), global_scale: None };
            let shape = [ROWS as u64, COLUMNS as u64];
            check(&Weight::new(Encoding::Affine { bits, group }, &shape, arrays).expect("a weight"));
        }
    }

    /// The dot product of 32 codes with a scale of 1 and a bias of 0.
    fn dot_of_codes(code: u8, x: &[f32; BLOCK]) -> [f32; 2] {
        let data = vec![code; BLOCK];
        let ones = 1.0f32.to_le_bytes();
        let zeros = [0; 4];
        let numbers = |bytes| Some(Numbers { dtype: Dtype::F32, bytes });
        let arrays = Arrays { data: &data, scale: numbers(&ones), bias: numbers(&zeros), global_scale: None };
        let weight = Weight::new(Encoding::Affine { bits: 8, group: 32 }, &[1, 32], arrays).expect("a weight");
        let matrix = Matrix::new(&weight).expect("an encoding with kernels");
        let activations = rounded(x, BLOCK);
        let (mut sum, mut plain) = ([0.0], [0.0]);
        matrix.dot(0, &activations, &mut sum);
        generically(|| matrix.dot(0, &activations, &mut plain));
        [sum[0], plain[0]]
    }

    #[test]
    fn the_largest_products_do_not_overflow() {
        // Code 0 is computed with as -128, whose product with ±127 is the largest.
        for (code, x) in [(255, 127.0), (255, -127.0), (0, 127.0), (0, -127.0)] {
            for sum in dot_of_codes(code, &[x; BLOCK]) {
                let expected = f32::from(code) * x * BLOCK as f32;
                assert!((sum - expected).abs() < 1.0, "{code} · {x}: {sum} is not {expected}");
            }
        }
    }

    #[test]
    fn what_is_not_a_number_is_not_hidden() {
        for place in [0, 17, BLOCK - 1] {
            let mut x = [1.0; BLOCK];
            x[place] = f32::NAN;
            assert!(dot_of_codes(3, &x).iter().all(|sum| sum.is_nan()), "at {place}");
        }
    }
}
