//! Integer products of weights with activations that are rounded to 8 bits in blocks of 32.
//!
//! A part of a weight's row, 16 or 32 elements, is `w = d·q + m` with codes `q` from 0 to 255. A
//! block of activations is `x = e·p`. So the dot product is a sum over parts,
//! `e·(d·Σ q·p + m·Σ p)`: one integer sum for each part, and one that depends on x alone.
//!
//! ```text
//! 16 rows of a weight ──unpack──▶ codes, d, m ──▶ panel: a lane for each row ──tile──▶ sums of 8
//! (mapped, 256 columns)           (scratch)       (scratch)                            rows of x
//!                                                                                      (registers)
//! ```
//!
//! # Invariants
//! - A panel holds 256 columns of 16 rows in scratch memory of the thread; it is not kept.
//! - Each result has the same bits with any instruction set and for any number of rows of x.
//!   Integer sums are exact, and every kernel adds the parts of a row in order, with the operations
//!   of [`tile`].
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "instructions that were looked for"))]

mod activation_rows;
mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod few;
mod panel;
mod panel_size;
mod tile;
mod unpack;

use formats::encoding::Role;
use formats::weight::Numbers;
use formats::{Encoding, Weight};

use super::instructions::{Instructions, Set};
pub use activation_rows::ActivationRows;
pub use activations::Activations;
pub use panel::Panel;
use panel_size::{DEPTH, LANES};
use unpack::format::{CodeFormat, with_layout};
use unpack::{Groups, RowLayout, WeightLocation};

/// Number of elements in a block of activations.
const BLOCK: usize = 32;

/// A matrix for integer products.
pub struct IntegerMatrix<'a> {
    format: CodeFormat,
    columns: usize,
    place: WeightLocation<'a>,
}

/// Returns whether there are integer kernels for weights of this encoding.
pub fn has_kernels(encoding: Encoding) -> bool {
    CodeFormat::of(encoding).is_some()
}

impl<'a> IntegerMatrix<'a> {
    /// Creates the matrix; `None` if there are no kernels for its encoding.
    pub fn new(weight: &Weight<'a>) -> Option<Self> {
        let format = CodeFormat::of(weight.encoding())?;
        let (codes, rows) = (weight.array(Role::Weight), weight.rows());
        let groups = match weight.encoding() {
            encoding @ (Encoding::Affine { .. } | Encoding::Micro(_)) => {
                let Numbers { dtype, bytes: scales } = weight.scale()?;
                let biases = weight.bias().map_or(&[][..], |biases| biases.bytes);
                let size = encoding.group_size() as usize;
                let (units, count) = ((size / BLOCK).max(1), weight.columns() / size);
                Groups { units, dtype, scales, biases, count, global: weight.global_scale() }
            }
            _ => Groups::NONE,
        };
        let place = WeightLocation { codes, row_bytes: codes.len().checked_div(rows)?, groups };
        Some(Self { format, columns: weight.columns(), place })
    }

    /// Multiplies up to 16 rows with all rows of x; `sums` is `[x's rows, 16]`.
    pub fn products(
        &self,
        instructions: Instructions,
        rows: impl ExactSizeIterator<Item = usize>,
        x: ActivationRows<'_>,
        panel: &mut Panel,
        sums: &mut [[f32; LANES]],
    ) {
        let mut own = [0; LANES];
        let count = rows.len().min(LANES);
        for (own, row) in own.iter_mut().zip(rows) {
            *own = row;
        }
        if count == 0 || sums.is_empty() {
            return;
        }
        sums.fill([0.0; LANES]);
        with_layout!(self.format, Own => self.of_layout::<Own>(instructions, &own[..count], x, panel, sums));
    }

    fn of_layout<L: RowLayout>(
        &self,
        instructions: Instructions,
        rows: &[usize],
        x: ActivationRows<'_>,
        panel: &mut Panel,
        sums: &mut [[f32; LANES]],
    ) {
        #[cfg(target_arch = "x86_64")]
        if sums.len() <= few::FEW && instructions.has_avx2() {
            let whole = few::Whole { place: &self.place, rows, columns: self.columns };
            // SAFETY: the set exists only if the machine has the instructions.
            return unsafe {
                match instructions.set() {
                    Set::Avx512Vnni | Set::Avx512Bf16 => avx512::few_vnni::<L>(whole, x, sums),
                    Set::AvxVnni => avx2::few_vnni::<L>(whole, x, sums),
                    _ => avx2::few::<L>(whole, x, sums),
                }
            };
        }
        for first in (0..self.columns).step_by(DEPTH) {
            let part = PanelColumns { place: &self.place, rows, first, columns: DEPTH.min(self.columns - first) };
            match instructions.set() {
                // SAFETY: the set exists only if the machine has the instructions.
                #[cfg(target_arch = "x86_64")]
                Set::Avx512Vnni | Set::Avx512Bf16 => unsafe { avx512::vnni::<L>(&part, x, panel, sums) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Set::Avx512 => unsafe { avx512::plain::<L>(&part, x, panel, sums) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Set::AvxVnni => unsafe { avx2::vnni::<L>(&part, x, panel, sums) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Set::Avx2 => unsafe { avx2::plain::<L>(&part, x, panel, sums) },
                _ => tile::scalar::<L>(&part, x, panel, sums),
            }
        }
    }
}

/// Columns of rows that make up a panel.
struct PanelColumns<'a> {
    place: &'a WeightLocation<'a>,
    /// Numbers of the rows, at most 16.
    rows: &'a [usize],
    /// First column.
    first: usize,
    /// Number of columns, at most [`DEPTH`].
    columns: usize,
}

#[cfg(test)]
mod tests;
