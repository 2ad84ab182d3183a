//! The memory of a tower, and of the pictures that a runner reads and keeps.

use architectures::{PatchPositions, Tower};
use protocol::limits::ENCODED_PICTURES;

use super::FLOAT;
use super::widths::{ffn_width, mixer_width, widest_of};
use crate::amount::Amount;

/// Bytes while the largest picture is decoded, turned and resized. Measured with a PNG file of 50
/// million pixels with transparency, which takes more than a turned JPEG file.
const DECODING: u64 = 352 << 20;

/// Returns the bytes of activations while the CPU computes the largest picture: its patches twice,
/// as the tower gets them and as rows of activations; the residual stream, its norm, the output of
/// a part and the positions; the widest mixer and network; and the rows before and behind the
/// projectors.
pub(super) fn cpu_activations(own: &Tower) -> Amount {
    let (mixer, ffn) = widths(own);
    let widest = own.layers.iter().map(|layer| widest_of(&layer.ffn, own.hidden)).max().unwrap_or_default();
    let patch = Amount(own.input.patch_width());
    let rounded = 5 * (patches(own) * widest.max(patch)) / 4;
    FLOAT * (patches(own) * (2 * patch + 4 * Amount(own.hidden) + mixer + ffn) + projected(own)) + rounded
}

/// Returns the bytes of activations while our kernels compute the largest picture on a device.
pub(super) fn device_activations(own: &Tower) -> Amount {
    let (mixer, ffn) = widths(own);
    let patch = Amount(own.input.patch_width());
    let largest = mixer.max(ffn).max(patch);
    FLOAT * (patches(own) * (4 * Amount(own.hidden) + largest) + projected(own))
}

/// Returns the bytes for pictures in the runner's process, besides those of the tower. The rows of
/// the largest picture are in them twice while its parts are joined.
pub(super) fn pictures(own: &Tower) -> Amount {
    let rows = FLOAT * (2 * (Amount(own.most_rows()) * Amount(own.projector.width())));
    Amount(DECODING) + Amount(ENCODED_PICTURES as u64) + positions(own) + rows
}

/// Returns the bytes of the positions of patches, which are read as float32.
fn positions(own: &Tower) -> Amount {
    let rows = match &own.positions {
        Some(PatchPositions::Square { side, .. }) => Amount(*side) * Amount(*side),
        Some(PatchPositions::Axes { count, .. }) => 2 * Amount(*count),
        None => Amount(0),
    };
    FLOAT * (rows * Amount(own.hidden))
}

fn patches(own: &Tower) -> Amount {
    Amount(own.input.most_patches())
}

/// Returns the elements per patch in the widest mixer and in the widest network.
fn widths(own: &Tower) -> (Amount, Amount) {
    let mixer = own.layers.iter().map(|layer| mixer_width(&layer.mixer)).max().unwrap_or_default();
    (mixer, own.layers.iter().map(|layer| ffn_width(&layer.ffn, own.hidden)).max().unwrap_or_default())
}

/// Returns the elements of a projector: the joined rows on both sides of their copy, and those of
/// its layers.
fn projected(own: &Tower) -> Amount {
    let rows = Amount(own.input.most_patches() / own.joined().max(1));
    let of = |projector: &architectures::Projector| {
        projector.layers.iter().map(|layer| Amount(layer.width)).fold(Amount(0), |a, b| a + b)
    };
    let widest = own.projectors().map(of).max().unwrap_or_default();
    2 * (patches(own) * Amount(own.hidden)) + rows * widest
}
