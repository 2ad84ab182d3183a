//! Products of weights with activations rounded to 8 bits by blocks of 32, as integers.
//!
//! A part of a weight's row, 16 or 32 elements, is `w = d·q + m` with codes `q` from 0 to 255; a block of activations is
//! `x = e·p`. So the dot product is a sum over parts, `e·(d·Σ q·p + m·Σ p)`: one integer sum for each part, and one that
//! depends on x alone.
//!
//! ```text
//! 16 rows of a weight ──unpack──▶ codes, d, m ──▶ panel: a lane for each row ──tile──▶ sums of 8 rows of x at a time
//! (mapped, 256 columns)           (scratch)       (scratch)                            (registers)
//! ```
//!
//! # Invariants
//! - A panel lives for 256 columns of 16 rows, in memory of the thread; nothing is kept of it.
//! - Each result is the same to the bit whatever the instructions and however many rows x has: integer sums are exact, and
//!   every kernel adds the parts of a row up in their order, with the operations of [`tile`]'s definition.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "instructions that were looked for"))]

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod few;
mod panel;
mod tile;
mod unpack;

use formats::encoding::Role;
use formats::weight::Numbers;
use formats::{Dtype, Encoding, Weight};

use super::instructions::{Instructions, Set};
use super::prefetch::prefetch;
pub(super) use activations::Activations;
pub(super) use panel::Panel;
use panel::{DEPTH, LANES};
use unpack::{Format, Source};

/// Rows of x up to which weights are waited for.
const FEW: usize = 16;

/// Elements in a block of activations.
const BLOCK: usize = 32;

/// A matrix that is computed with as integers.
pub(super) struct Matrix<'a> {
    format: Format,
    columns: usize,
    codes: &'a [u8],
    row_bytes: usize,
    /// Scales and biases that lie apart from the codes.
    groups: Option<Groups<'a>>,
}

/// What groups have apart from their codes; a row of each for a row of the weight.
#[derive(Clone, Copy)]
struct Groups<'a> {
    dtype: Dtype,
    scales: &'a [u8],
    biases: &'a [u8],
    row_bytes: usize,
    /// What all numbers are multiplied with.
    global: Option<f32>,
}

/// Whether weights of an encoding are computed with as integers.
pub(super) fn has_kernels(encoding: Encoding) -> bool {
    Format::of(encoding).is_some()
}

impl<'a> Matrix<'a> {
    /// The matrix, where there are kernels for its encoding.
    pub(super) fn new(weight: &Weight<'a>) -> Option<Self> {
        let format = Format::of(weight.encoding())?;
        let (codes, rows) = (weight.array(Role::Weight), weight.rows());
        let groups = match weight.encoding() {
            Encoding::Affine { .. } | Encoding::Micro(_) => {
                let Numbers { dtype, bytes } = weight.scale()?;
                let biases = weight.bias().map_or(&[][..], |biases| biases.bytes);
                let row_bytes = bytes.len().checked_div(rows)?;
                Some(Groups { dtype, scales: bytes, biases, row_bytes, global: weight.global_scale() })
            }
            _ => None,
        };
        Some(Self { format, columns: weight.columns(), codes, row_bytes: codes.len().checked_div(rows)?, groups })
    }

    /// The products of up to 16 rows with all rows of x: `sums` is `[x's rows, 16]`.
    pub(super) fn products(
        &self,
        instructions: Instructions,
        rows: impl ExactSizeIterator<Item = usize>,
        x: &Activations,
        panel: &mut Panel,
        sums: &mut [[f32; LANES]],
    ) {
        let mut sources = [Source::NONE; LANES];
        let count = rows.len().min(LANES);
        for (source, row) in sources.iter_mut().zip(rows) {
            *source = self.source(row);
        }
        sums.fill([0.0; LANES]);
        for first in (0..self.columns).step_by(DEPTH) {
            let columns = DEPTH.min(self.columns - first);
            if sums.len() <= FEW {
                // The rows of the next panel, which are likely to come next.
                let at = |column: usize| self.row_bytes * column / self.columns;
                for source in &sources[..count] {
                    prefetch(&source.codes[at(first)..at(first + columns)], LANES * self.row_bytes);
                }
            }
            let part = Part { format: self.format, sources: &sources[..count], first, columns };
            match instructions.set() {
                // SAFETY: the set exists only where the machine has the instructions.
                #[cfg(target_arch = "x86_64")]
                Set::Avx512Vnni | Set::Avx512Bf16 => unsafe { avx512::vnni(&part, x, panel, sums) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Set::Avx512 => unsafe { avx512::plain(&part, x, panel, sums) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Set::AvxVnni => unsafe { avx2::vnni(&part, x, panel, sums) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Set::Avx2 => unsafe { avx2::plain(&part, x, panel, sums) },
                _ => tile::scalar(&part, x, panel, sums),
            }
        }
    }

    /// Where a row lies.
    fn source(&self, row: usize) -> Source<'a> {
        let of = |bytes: &'a [u8], size: usize| &bytes[row * size..][..size];
        let codes = of(self.codes, self.row_bytes);
        match self.groups {
            None => Source { codes, ..Source::NONE },
            Some(Groups { dtype, scales, biases, row_bytes, global }) => {
                let biases = if biases.is_empty() { biases } else { of(biases, row_bytes) };
                Source { codes, dtype, scales: of(scales, row_bytes), biases, global }
            }
        }
    }
}

/// Columns of rows that make a panel.
struct Part<'a> {
    format: Format,
    sources: &'a [Source<'a>],
    /// The first column.
    first: usize,
    /// How many, [`DEPTH`] at most.
    columns: usize,
}

#[cfg(test)]
mod tests;
