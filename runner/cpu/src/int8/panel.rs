//! Panel: 256 columns of 16 rows in the order of tiles, with a lane for each row.
#![expect(unsafe_code, reason = "the units of rows are looked up without a check each")]

use std::mem::offset_of;

use super::panel_size::{DEPTH, HALF, LANES, PART, RUN};
use super::unpack::{Factors, RowLayout, UnpackedRows, VectorUnit};
use super::{BLOCK, PanelColumns};

/// Memory of a panel.
#[repr(C, align(64))]
pub struct Panel {
    /// The codes of all rows for each run of columns, `[columns / 4, rows, 4]`.
    pub(super) codes: [[u8; LANES * RUN]; DEPTH / RUN],
    /// `d` of each part, `[parts, rows]`.
    pub(super) scales: [[f32; LANES]; DEPTH / PART],
    /// `m` of each part, `[parts, rows]`.
    pub(super) offsets: [[f32; LANES]; DEPTH / PART],
    /// Codes by rows.
    pub(super) rows: [[u8; DEPTH]; LANES],
}

/// Runs, scales, offsets and rows are aligned to 64 bytes, as kernels with 512-bit vectors require.
const _: () = {
    let vector = LANES * RUN;
    assert!(align_of::<Panel>() == vector && vector == 64 && DEPTH.is_multiple_of(vector));
    assert!(offset_of!(Panel, codes).is_multiple_of(vector) && offset_of!(Panel, scales).is_multiple_of(vector));
    assert!(offset_of!(Panel, offsets).is_multiple_of(vector) && offset_of!(Panel, rows).is_multiple_of(vector));
};

impl Panel {
    /// Allocates a panel. It is written before it is read.
    pub fn new() -> Box<Self> {
        Box::new(Self {
            codes: [[0; LANES * RUN]; DEPTH / RUN],
            scales: [[0.0; LANES]; DEPTH / PART],
            offsets: [[0.0; LANES]; DEPTH / PART],
            rows: [[0; DEPTH]; LANES],
        })
    }

    /// Unpacks columns of rows into [`rows`](Self::rows), scales and offsets. The caller
    /// interleaves the codes afterwards, see [`interleave`](Self::interleave).
    ///
    /// # Safety
    /// The CPU has the instructions of the machine `M`.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]
    pub(super) unsafe fn unpack<M: VectorUnit, L: RowLayout>(&mut self, part: &PanelColumns<'_>) {
        const {
            let units = DEPTH / (L::RUNS * BLOCK);
            assert!(
                units.is_multiple_of(L::TOGETHER),
                "panels begin where units begin whose factors are made together"
            );
            assert!(L::TOGETHER * L::PARTS <= DEPTH / PART, "there is room for them");
        }
        let elements = L::RUNS * BLOCK;
        assert!((part.first + part.columns) / elements * L::BYTES <= part.place.row_bytes, "columns of the rows");
        let mut factors = Factors::ZERO;
        for lane in [0, HALF] {
            let rows = UnpackedRows::new(part.place, part.rows, lane);
            for at in 0..part.columns / elements {
                let unit = part.first / elements + at;
                rows.prefetch::<M, L>(unit);
                // SAFETY: the columns of the part are within the rows, as was asserted.
                let units = unsafe { rows.units::<L>(unit) };
                let nth = unit % L::TOGETHER;
                if nth == 0 {
                    L::factors::<M>(&rows, unit, &units, &mut factors);
                }
                let own = factors.of::<L>(nth);
                for index in 0..L::PARTS {
                    let [scales, offsets] = own.part(index);
                    self.scales[at * L::PARTS + index][lane..lane + HALF].copy_from_slice(scales);
                    self.offsets[at * L::PARTS + index][lane..lane + HALF].copy_from_slice(offsets);
                }
                for (row, bytes) in units.into_iter().enumerate() {
                    let codes = &mut self.rows[lane + row][at * elements..][..elements];
                    unpack_unit::<M, L>(bytes, codes.as_chunks_mut::<BLOCK>().0);
                }
            }
        }
    }

    /// Interleaves the codes of all rows, on any machine.
    pub(super) fn interleave(&mut self) {
        for (at, run) in self.codes.iter_mut().enumerate() {
            for (row, codes) in self.rows.iter().zip(run.as_chunks_mut::<RUN>().0) {
                codes.copy_from_slice(&row[at * RUN..][..RUN]);
            }
        }
    }
}

/// Passes run numbers as constants, so that each run is compiled separately.
#[inline(always)]
#[expect(clippy::inline_always, reason = "what is inlined into a function for AVX2 is compiled for AVX2")]
fn unpack_unit<M: VectorUnit, L: RowLayout>(unit: &[u8], codes: &mut [[u8; BLOCK]]) {
    const { assert!(matches!(L::RUNS, 1 | 2 | 8), "those are written out below") };
    codes[0] = L::codes::<M>(unit, 0).into();
    if L::RUNS > 1 {
        codes[1] = L::codes::<M>(unit, 1).into();
    }
    if L::RUNS == 8 {
        codes[2] = L::codes::<M>(unit, 2).into();
        codes[3] = L::codes::<M>(unit, 3).into();
        codes[4] = L::codes::<M>(unit, 4).into();
        codes[5] = L::codes::<M>(unit, 5).into();
        codes[6] = L::codes::<M>(unit, 6).into();
        codes[7] = L::codes::<M>(unit, 7).into();
    }
}
