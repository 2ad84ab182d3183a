//! A panel: 1024 columns of 16 rows as kernels want them, a lane for each row.

use super::{BLOCK, Part};
use super::unpack::Machine;

/// Rows of a panel.
pub(super) const LANES: usize = 16;
/// Columns of a panel.
pub(super) const DEPTH: usize = 1024;
/// Elements of the largest blocks.
pub(super) const SUPER: usize = 256;
/// Elements that share a scale, at least.
pub(super) const PART: usize = 16;
/// Codes of a row that lie together.
pub(super) const RUN: usize = 4;

/// Memory of a panel.
#[repr(C, align(64))]
pub(in crate::backends::cpu) struct Panel {
    /// For each run of columns the codes of all rows: `[columns / 4, rows, 4]`.
    pub(super) codes: [[u8; LANES * RUN]; DEPTH / RUN],
    /// `d` of each part, `[parts, rows]`.
    pub(super) scales: [[f32; LANES]; DEPTH / PART],
    /// `m` of each part, `[parts, rows]`.
    pub(super) offsets: [[f32; LANES]; DEPTH / PART],
    /// Codes row by row.
    pub(super) rows: [[u8; DEPTH]; LANES],
    /// `d` and `m` of large blocks, row by row.
    pub(super) row_scales: [[[f32; SUPER / PART]; LANES]; DEPTH / SUPER],
    pub(super) row_offsets: [[[f32; SUPER / PART]; LANES]; DEPTH / SUPER],
    /// The same of small blocks, as they are stored.
    pub(super) bits: [[[[u8; 2]; LANES]; 2]; DEPTH / BLOCK],
}

impl Panel {
    /// Memory for one, which is written before it is read.
    pub(in crate::backends::cpu) fn new() -> Box<Self> {
        Box::new(Self {
            codes: [[0; LANES * RUN]; DEPTH / RUN],
            scales: [[0.0; LANES]; DEPTH / PART],
            offsets: [[0.0; LANES]; DEPTH / PART],
            rows: [[0; DEPTH]; LANES],
            row_scales: [[[0.0; SUPER / PART]; LANES]; DEPTH / SUPER],
            row_offsets: [[[0.0; SUPER / PART]; LANES]; DEPTH / SUPER],
            bits: [[[[0; 2]; LANES]; 2]; DEPTH / BLOCK],
        })
    }

    /// Unpacks columns of rows; [`interleave`](Self::interleave) is next. Lanes without a row count nothing.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]
    pub(super) fn unpack<M: Machine>(&mut self, part: &Part<'_>) {
        if part.sources.len() < LANES {
            self.scales.as_flattened_mut().fill(0.0);
            self.offsets.as_flattened_mut().fill(0.0);
        }
        super::unpack::unpack::<M>(part, self);
    }

    /// Puts codes side by side, for any machine.
    pub(super) fn interleave(&mut self) {
        for (at, run) in self.codes.iter_mut().enumerate() {
            for (row, codes) in self.rows.iter().zip(run.as_chunks_mut::<RUN>().0) {
                codes.copy_from_slice(&row[at * RUN..][..RUN]);
            }
        }
    }
}
