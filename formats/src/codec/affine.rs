//! affine.

use crate::Weight;

pub(super) fn decode_row(weight: &Weight<'_>, bits: u8, group: usize, row: usize, out: &mut [f32]) {
    unreachable!("not written yet");
}
