//! Pictures whose bytes follow the rules of the golden scripts in `tests/pictures`.

use crate::picture::{CHANNELS, Picture, PictureSize};

/// Returns a picture whose bytes follow a rule of `make_resampled.py`: `noise` or `waves`.
///
/// # Panics
/// There is no such rule.
pub fn made(rule: &str, size: PictureSize) -> Picture {
    let byte = |at: usize| {
        let (x, y, channel) = (at / CHANNELS % size.width, at / CHANNELS / size.width, at % CHANNELS);
        match rule {
            "noise" => ((at as u32).wrapping_mul(2_654_435_761) >> 24) as u8,
            "waves" => ((x * 7 + y * 13 + channel * 101) ^ (x * y / 5)) as u8,
            other => panic!("the rule {other}"),
        }
    };
    Picture::new(size, (0..size.pixels() * CHANNELS).map(byte).collect())
}
