//! Resizing with the results of Pillow, byte for byte.
//!
//! Models were trained on pictures that Pillow resized. Other libraries use other supports,
//! roundings or orders of the two passes, and differ by up to 43 of 255.
//!
//! A filter of support `s` is stretched by the factor by which the picture shrinks, at least 1. An
//! output pixel is the weighted sum of the input pixels within its support, in fixed-point numbers.
//! Rows and columns are resized one after the other, and the first results are rounded to bytes. A
//! side that keeps its length is not resampled.
//!
//! Source: `src/libImaging/Resample.c` of Pillow 13.

use std::borrow::Cow;

use architectures::PictureFilter;

use crate::picture::{CHANNELS, Picture, PictureSize};

/// Bits behind the point of a weight. The sum of the weighted bytes of a pixel has 8 bits more, and
/// one for its sign and one as reserve.
const PRECISION: u32 = 32 - 8 - 2;
/// Half of a weight of 1, which rounds a sum to the nearest byte.
const HALF: i32 = 1 << (PRECISION - 1);

/// Distance, in pixels, beyond which a filter is zero.
fn support(filter: PictureFilter) -> f64 {
    match filter {
        PictureFilter::Box => 0.5,
        PictureFilter::Bilinear | PictureFilter::Hamming => 1.0,
        PictureFilter::Bicubic => 2.0,
        PictureFilter::Lanczos => 3.0,
    }
}

/// Returns the weight of a filter at a distance in pixels.
fn weight(filter: PictureFilter, x: f64) -> f64 {
    match filter {
        // The bounds are not symmetric, so that a pixel on the edge of two has one weight.
        PictureFilter::Box => f64::from(u8::from(x > -0.5 && x <= 0.5)),
        PictureFilter::Bilinear => (1.0 - x.abs()).max(0.0),
        PictureFilter::Hamming => hamming(x.abs()),
        PictureFilter::Bicubic => bicubic(x.abs()),
        PictureFilter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
        PictureFilter::Lanczos => 0.0,
    }
}

fn hamming(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    if x >= 1.0 {
        return 0.0;
    }
    let x = x * std::f64::consts::PI;
    // Pillow has these factors in single precision.
    x.sin() / x * (f64::from(0.54_f32) + f64::from(0.46_f32) * x.cos())
}

fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

/// The weights of one output pixel.
#[derive(Debug)]
struct PixelWeights {
    /// First input pixel.
    first: usize,
    /// One weight for each input pixel, in fixed-point numbers.
    weights: Vec<i32>,
}

/// Returns the weights of each output pixel of a side.
#[expect(clippy::cast_sign_loss, reason = "positions before the first pixel become 0")]
fn side(input: usize, output: usize, filter: PictureFilter) -> Vec<PixelWeights> {
    let scale = input as f64 / output as f64;
    let stretch = scale.max(1.0);
    let reach = support(filter) * stretch;
    let of_pixel = |pixel: usize| {
        let center = (pixel as f64 + 0.5) * scale;
        let first = (center - reach + 0.5) as usize;
        let end = ((center + reach + 0.5) as usize).min(input);
        let of_input = |at: usize| weight(filter, (at as f64 - center + 0.5) * (1.0 / stretch));
        let weights: Vec<f64> = (first..end).map(of_input).collect();
        let sum: f64 = weights.iter().sum();
        let normal = |weight: f64| if sum == 0.0 { weight } else { weight / sum };
        PixelWeights { first, weights: weights.into_iter().map(|weight| fixed(normal(weight))).collect() }
    };
    (0..output).map(of_pixel).collect()
}

/// Converts a weight to a fixed-point number, rounded to the nearest.
fn fixed(weight: f64) -> i32 {
    let scaled = weight * f64::from(1 << PRECISION);
    (scaled + 0.5_f64.copysign(weight)) as i32
}

/// Rounds the sum of weighted bytes to a byte.
fn byte(sum: i32) -> u8 {
    u8::try_from((sum >> PRECISION).clamp(0, 255)).unwrap_or(u8::MAX)
}

/// Resizes a picture.
///
/// # Panics
/// If a side of the picture or of the new size is 0.
#[must_use]
pub fn resize(picture: &Picture, to: PictureSize, filter: PictureFilter) -> Picture {
    let from = picture.size();
    assert!(from.pixels() > 0 && to.pixels() > 0, "invariant: {from:?} and {to:?} have pixels");
    let passes = if columns_come_first(from, to) { [Pass::Height, Pass::Width] } else { [Pass::Width, Pass::Height] };
    let mut resized = Cow::Borrowed(picture);
    for pass in passes {
        match pass {
            Pass::Width if from.width != to.width => {
                resized = Cow::Owned(resize_rows(&resized, &side(from.width, to.width, filter)));
            }
            Pass::Height if from.height != to.height => {
                resized = Cow::Owned(resize_columns(&resized, &side(from.height, to.height, filter)));
            }
            Pass::Width | Pass::Height => {}
        }
    }
    resized.into_owned()
}

/// A pass over the picture.
#[derive(Clone, Copy)]
enum Pass {
    Width,
    Height,
}

/// Whether the height is resized before the width: if it loses more than twice as many pixels
/// (`ImagingResampleInner`).
fn columns_come_first(from: PictureSize, to: PictureSize) -> bool {
    let lost_rows = from.height.saturating_sub(to.height);
    lost_rows > 0 && lost_rows > 2 * from.width.saturating_sub(to.width)
}

/// Resizes every row.
fn resize_rows(picture: &Picture, columns: &[PixelWeights]) -> Picture {
    let size = PictureSize::new(columns.len(), picture.size().height);
    let mut pixels = Vec::with_capacity(size.pixels() * CHANNELS);
    for row in 0..size.height {
        let row = picture.row(row);
        for PixelWeights { first, weights } in columns {
            let mut sums = [HALF; CHANNELS];
            for (weight, pixel) in weights.iter().zip(row[first * CHANNELS..].chunks_exact(CHANNELS)) {
                for (sum, value) in sums.iter_mut().zip(pixel) {
                    *sum += weight * i32::from(*value);
                }
            }
            pixels.extend(sums.map(byte));
        }
    }
    Picture::new(size, pixels)
}

/// Resizes every column.
fn resize_columns(picture: &Picture, rows: &[PixelWeights]) -> Picture {
    let size = PictureSize::new(picture.size().width, rows.len());
    let mut pixels = Vec::with_capacity(size.pixels() * CHANNELS);
    let mut sums = vec![HALF; size.width * CHANNELS];
    for PixelWeights { first, weights } in rows {
        sums.fill(HALF);
        for (at, weight) in weights.iter().enumerate() {
            for (sum, value) in sums.iter_mut().zip(picture.row(first + at)) {
                *sum += weight * i32::from(*value);
            }
        }
        pixels.extend(sums.iter().copied().map(byte));
    }
    Picture::new(size, pixels)
}

#[cfg(test)]
mod tests {
    use content::Digest;
    use serde_json::Value;

    use super::*;
    use crate::made::made;

    #[test]
    fn bytes_are_those_of_pillow() {
        let golden: Value =
            serde_json::from_str(include_str!("../../../tests/pictures/resampled.json")).expect("golden digests");
        let cases = golden.as_array().expect("cases");
        assert!(cases.len() > 50);
        for case in cases {
            let size = |key: &str| {
                let side = |at: usize| case[key][at].as_u64().expect("a number") as usize;
                PictureSize::new(side(0), side(1))
            };
            let filter = match case["filter"].as_str().expect("a filter") {
                "box" => PictureFilter::Box,
                "bilinear" => PictureFilter::Bilinear,
                "hamming" => PictureFilter::Hamming,
                "bicubic" => PictureFilter::Bicubic,
                "lanczos" => PictureFilter::Lanczos,
                other => panic!("the filter {other}"),
            };
            let resized = resize(&made(case["rule"].as_str().expect("a rule"), size("from")), size("to"), filter);
            assert_eq!(resized.size(), size("to"), "{case}");
            assert_eq!(Digest::of(resized.pixels()).hex(), case["sha256"].as_str().expect("a digest"), "{case}");
        }
    }

    #[test]
    fn a_picture_of_one_color_keeps_it() {
        let white = Picture::new(PictureSize::new(7, 5), vec![255; 105]);
        for filter in [
            PictureFilter::Box,
            PictureFilter::Bilinear,
            PictureFilter::Hamming,
            PictureFilter::Bicubic,
            PictureFilter::Lanczos,
        ] {
            let resized = resize(&white, PictureSize::new(13, 2), filter);
            assert!(resized.pixels().iter().all(|byte| *byte == 255), "{filter:?}");
        }
    }
}
