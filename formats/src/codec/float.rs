//! Plain elements.

use crate::Dtype;

pub(super) fn decode(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    unreachable!("not written yet");
}
