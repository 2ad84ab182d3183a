//! Plain elements.

use super::ggml;
use crate::{Dtype, GgmlType};

pub(super) fn decode(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match GgmlType::ALL.iter().find(|kind| kind.dtype() == Some(dtype)) {
        Some(kind) => ggml::decode(*kind, bytes, out),
        None => unreachable!("not written yet"),
    }
}
