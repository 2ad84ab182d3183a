//! Sizes of resized pictures. All are functions of transformers, with its roundings.
#![expect(clippy::cast_sign_loss, reason = "sides are not negative")]

use architectures::PictureResize;

use crate::picture::PictureSize;

/// Largest ratio of the sides of a picture for [`PictureResize::Area`].
const MAX_RATIO: f64 = 200.0;

/// Largest number of pixels of a resized picture, before its middle is cut out: more than any
/// model takes, but a narrow picture whose shorter side has a given length could have more.
const MAX_RESIZED: usize = 1 << 28;

/// The reason why a picture has no size for a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// One side is too long for the other.
    #[error("the picture is {} x {} pixels, which is too narrow for this model", .0.width, .0.height)]
    Narrow(PictureSize),
}

/// Sizes of a picture on its way to a tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TargetSize {
    /// Size to which the whole picture is resized.
    pub(crate) resized: PictureSize,
    /// Size of the middle that is cut out of it; the same size if nothing is cut.
    pub(crate) cut: PictureSize,
}

/// Returns the sizes for a picture.
///
/// # Errors
/// The picture is too narrow.
pub(crate) fn target_size(from: PictureSize, resize: PictureResize) -> Result<TargetSize, SizeError> {
    let target = of_rule(from, resize)?;
    if target.resized.pixels() > MAX_RESIZED { Err(SizeError::Narrow(from)) } else { Ok(target) }
}

fn of_rule(from: PictureSize, resize: PictureResize) -> Result<TargetSize, SizeError> {
    let whole = |resized| TargetSize { resized, cut: resized };
    Ok(match resize {
        PictureResize::Fixed { width, height } => whole(PictureSize::new(width as usize, height as usize)),
        PictureResize::Cropped { shorter, width, height } => {
            TargetSize { resized: of_shorter(from, shorter), cut: PictureSize::new(width as usize, height as usize) }
        }
        PictureResize::Area { multiple, least, most } => whole(of_area(from, multiple, [least, most])?),
        PictureResize::Longest { longest, multiple } => whole(of_longest(from, longest, multiple)),
        PictureResize::Largest { multiple, most } => whole(largest(from, multiple, most)?),
    })
}

/// `get_resize_output_image_size` of `image_transforms.py`: the shorter side has a given length.
fn of_shorter(from: PictureSize, shorter: u64) -> PictureSize {
    let (short, long) = (from.width.min(from.height), from.width.max(from.height));
    let longer = (shorter as f64 * long as f64 / short as f64) as usize;
    if from.width <= from.height {
        PictureSize::new(shorter as usize, longer)
    } else {
        PictureSize::new(longer, shorter as usize)
    }
}

/// `smart_resize` of Qwen2-VL's processor.
fn of_area(from: PictureSize, multiple: u64, [least, most]: [u64; 2]) -> Result<PictureSize, SizeError> {
    let (width, height, unit) = (from.width as f64, from.height as f64, multiple as f64);
    if width.max(height) / width.min(height) > MAX_RATIO {
        return Err(SizeError::Narrow(from));
    }
    // Python rounds halves to even numbers.
    let near = |side: f64| (side / unit).round_ties_even() * unit;
    let pixels = near(width) * near(height);
    let sides = if pixels > most as f64 {
        let shrink = (height * width / most as f64).sqrt();
        [width, height].map(|side| (side / shrink / unit).floor().max(1.0) * unit)
    } else if pixels < least as f64 {
        let grow = (least as f64 / (height * width)).sqrt();
        [width, height].map(|side| (side * grow / unit).ceil() * unit)
    } else {
        [near(width), near(height)]
    };
    Ok(PictureSize::new(sides[0] as usize, sides[1] as usize))
}

/// `get_resize_output_image_size` of Pixtral's processor.
fn of_longest(from: PictureSize, longest: u64, multiple: u64) -> PictureSize {
    let ratio = from.width.max(from.height) as f64 / longest as f64;
    let side = |side: usize| {
        let side = if ratio > 1.0 { (side as f64 / ratio).floor() as usize } else { side };
        // The class rounds a side of no pixels to one of no patches; such a picture has one here.
        side.max(1).next_multiple_of(multiple as usize)
    };
    PictureSize::new(side(from.width), side(from.height))
}

/// `get_aspect_ratio_preserving_size` of Gemma 4's processor.
fn largest(from: PictureSize, multiple: u64, most: u64) -> Result<PictureSize, SizeError> {
    let (width, height, unit) = (from.width as f64, from.height as f64, multiple as usize);
    let factor = (most as f64 / (width * height)).sqrt();
    let units = |side: f64| (factor * side / multiple as f64).floor() as usize;
    let longest = most as usize / unit / unit;
    let sides = match (units(width), units(height)) {
        (0, 0) => return Err(SizeError::Narrow(from)),
        (_, 0) => [((width / height).floor() as usize).min(longest), 1],
        (0, _) => [1, ((height / width).floor() as usize).min(longest)],
        (columns, rows) => [columns, rows],
    };
    Ok(PictureSize::new(sides[0] * unit, sides[1] * unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_pictures_are_refused() {
        let narrow = PictureSize::new(20_000, 1);
        for resize in [
            PictureResize::Area { multiple: 28, least: 3136, most: 100_352 },
            PictureResize::Cropped { shorter: 224, width: 224, height: 224 },
        ] {
            let error = target_size(narrow, resize).expect_err("refused").to_string();
            assert_eq!(error, "the picture is 20000 x 1 pixels, which is too narrow for this model");
        }
        let fixed = target_size(narrow, PictureResize::Fixed { width: 64, height: 64 }).expect("a size");
        assert_eq!(fixed.resized, PictureSize::new(64, 64));
    }

    #[test]
    fn every_side_has_a_pixel() {
        let longest = PictureResize::Longest { longest: 128, multiple: 16 };
        for (from, to) in [((1000, 1), (128, 16)), ((1, 1), (16, 16)), ((129, 128), (128, 128)), ((17, 16), (32, 16))] {
            let resized = target_size(PictureSize::new(from.0, from.1), longest).expect("a size").resized;
            assert_eq!((resized.width, resized.height), to, "{from:?}");
        }
        let largest = PictureResize::Largest { multiple: 48, most: 70 * 48 * 48 };
        let wide = target_size(PictureSize::new(10_000, 20), largest).expect("a size").resized;
        assert_eq!((wide.width, wide.height), (70 * 48, 48));
    }
}
