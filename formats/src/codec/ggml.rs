//! GGML blocks.

use crate::GgmlType;

pub(super) fn decode(kind: GgmlType, bytes: &[u8], out: &mut [f32]) {
    unreachable!("not written yet");
}
