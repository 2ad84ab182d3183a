//! micro.

use crate::Weight;
use crate::encoding::Micro;

pub(super) fn decode_row(weight: &Weight<'_>, micro: Micro, row: usize, out: &mut [f32]) {
    unreachable!("not written yet");
}
