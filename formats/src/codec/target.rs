//! Targets of encoders: the encoding, and the buffers for the results.

use crate::encoding::Role;
use crate::{Dtype, Encoding};

/// The largest product of an element and a scale of nvfp4: 6 · 448.
pub(super) const NVFP4_LARGEST: f32 = 2688.0;

/// Target of an encoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncodingTarget {
    /// Encoding of the result.
    pub encoding: Encoding,
    /// Element type of the source: F32, F16 or BF16. Affine scales and biases are stored in it, and
    /// microscaled scales are rounded to it first.
    pub float: Dtype,
    /// Largest magnitude of the whole tensor, if it gets a global scale (nvfp4 only); the same as
    /// MLX's argument of this name. The multiplier of decoders is a different number:
    /// [`EncodingTarget::multiplier`].
    pub global_scale: Option<f32>,
}

impl EncodingTarget {
    /// Returns the global scale that is stored with a weight: the largest magnitude divided by
    /// 2688.
    pub fn multiplier(&self) -> Option<f32> {
        self.global_scale.map(|largest| largest / NVFP4_LARGEST)
    }

    /// Returns the bytes of `columns` elements in each array: codes, scales, biases.
    pub(super) fn bytes(&self, columns: usize) -> Result<Bytes, String> {
        let parts = self.encoding.parts(&[1, columns as u64], self.float)?;
        let bytes = |role| parts.iter().find(|part| part.role == role).map_or(0, |part| part.size() as usize);
        Ok(Bytes { data: bytes(Role::Weight), scale: bytes(Role::Scale), bias: bytes(Role::Bias) })
    }
}

/// Number of bytes in each array.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes {
    pub(super) data: usize,
    pub(super) scale: usize,
    pub(super) bias: usize,
}

/// Buffers for encoded rows.
#[derive(Debug)]
pub struct EncodedBuffers<'a> {
    /// Codes.
    pub data: &'a mut [u8],
    /// Scales; empty if they are inside the codes.
    pub scale: &'a mut [u8],
    /// Biases; empty if there are none.
    pub bias: &'a mut [u8],
}

impl EncodedBuffers<'_> {
    pub(super) fn split_at(self, bytes: Bytes) -> (Self, Self) {
        let (data, scale, bias) = (
            self.data.split_at_mut(bytes.data),
            self.scale.split_at_mut(bytes.scale),
            self.bias.split_at_mut(bytes.bias),
        );
        (Self { data: data.0, scale: scale.0, bias: bias.0 }, Self { data: data.1, scale: scale.1, bias: bias.1 })
    }
}
