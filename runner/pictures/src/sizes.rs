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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetSizes {
    /// Sizes to which the whole picture is resized, one after the other.
    pub(crate) resized: Vec<PictureSize>,
    /// Size of the part of which the tower gets the patches: the middle of the resized picture, or
    /// a tile.
    pub(crate) part: PictureSize,
    /// Tiles of that size; `None` if the picture is not cut.
    pub(crate) tiles: Option<Tiles>,
    /// Size to which the resized picture is padded with black, if it is.
    pub(crate) canvas: Option<PictureSize>,
}

/// Tiles of a resized picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiles {
    /// The small copy that follows the tiles, if there are several.
    pub(crate) copy: Option<SmallCopy>,
    /// Whether a single tile is followed by its copy, too.
    pub(crate) copies_single_tile: bool,
}

/// A small copy of a picture that is cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SmallCopy {
    pub(crate) size: PictureSize,
    /// Whether it is made of the picture of which the tiles were cut, and not of the picture before
    /// it was resized.
    pub(crate) is_of_resized: bool,
}

impl Tiles {
    fn with_copy(size: PictureSize, is_of_resized: bool) -> Self {
        Self { copy: Some(SmallCopy { size, is_of_resized }), copies_single_tile: false }
    }
}

/// Returns the sizes for a picture.
///
/// # Errors
/// The picture is too narrow.
pub(crate) fn target_sizes(from: PictureSize, resize: PictureResize) -> Result<TargetSizes, SizeError> {
    let target = of_rule(from, resize)?;
    let is_large = target.resized.iter().any(|size| size.pixels() > MAX_RESIZED);
    if is_large { Err(SizeError::Narrow(from)) } else { Ok(target) }
}

fn of_rule(from: PictureSize, resize: PictureResize) -> Result<TargetSizes, SizeError> {
    let size = |width: u64, height: u64| PictureSize::new(width as usize, height as usize);
    let whole = |part| TargetSizes { resized: vec![part], part, tiles: None, canvas: None };
    Ok(match resize {
        PictureResize::Fixed { width, height } => whole(size(width, height)),
        PictureResize::Cropped { shorter, width, height } => TargetSizes {
            resized: vec![of_shorter(from, shorter)],
            part: size(width, height),
            tiles: None,
            canvas: None,
        },
        PictureResize::Area { multiple, least, most } => whole(of_area(from, multiple, [least, most])?),
        PictureResize::Longest { longest, multiple } => whole(of_longest(from, longest, multiple)),
        PictureResize::Largest { multiple, most } => whole(largest(from, multiple, most)?),
        PictureResize::Square { longest, side } => {
            let square = size(side, side);
            TargetSizes { resized: vec![with_longest(from, longest), square], ..whole(square) }
        }
        PictureResize::Tiles { longest, tile } => {
            let first = with_longest(from, longest);
            let resized = vec![first, of_tiles(first, tile as usize)];
            let part = size(tile, tile);
            TargetSizes { resized, part, tiles: Some(Tiles::with_copy(part, true)), canvas: None }
        }
        PictureResize::Arranged { width, height, least, most } => {
            let part = size(width, height);
            let [columns, rows] = arrangement(from, part, [least as usize, most as usize]);
            let resized = vec![PictureSize::new(columns * part.width, rows * part.height)];
            TargetSizes { resized, part, tiles: Some(Tiles::with_copy(part, false)), canvas: None }
        }
        PictureResize::Padded { tile, grids } => {
            let part = size(tile, tile);
            let canvas = best_canvas(from, part, &grids);
            let tiles = Tiles { copies_single_tile: true, ..Tiles::with_copy(part, false) };
            TargetSizes { resized: vec![within(from, canvas)], part, tiles: Some(tiles), canvas: Some(canvas) }
        }
        PictureResize::Fitted { multiple, least, most, tiles } => {
            let fitted = fitted(from, multiple, [least, most])?;
            match tiles.filter(|tiles| rounded_pixels(from, multiple) > tiles.above as f64) {
                None => whole(fitted),
                Some(tiles) => {
                    let part = size(tiles.side, tiles.side);
                    let [columns, rows] = arrangement(from, part, [tiles.least as usize, tiles.most as usize]);
                    let copy = SmallCopy { size: fitted, is_of_resized: false };
                    TargetSizes {
                        resized: vec![PictureSize::new(columns * part.width, rows * part.height)],
                        part,
                        tiles: Some(Tiles { copy: tiles.has_copy.then_some(copy), copies_single_tile: false }),
                        canvas: None,
                    }
                }
            }
        }
    })
}

/// Largest side of a picture before it is cut into tiles, `MAX_IMAGE_SIZE` of Idefics 3's
/// processor.
const MAX_SIDE: usize = 4096;

/// `get_resize_output_image_size` of Idefics 3's processor: the longest side has a given length,
/// and the other one is even.
fn with_longest(from: PictureSize, longest: u64) -> PictureSize {
    let ratio = from.width as f64 / from.height as f64;
    let even = |side: f64| (side as usize).next_multiple_of(2).max(1);
    let size = if from.width >= from.height {
        PictureSize::new(longest as usize, even(longest as f64 / ratio))
    } else {
        PictureSize::new(even(longest as f64 * ratio), longest as usize)
    };
    let ratio = size.width as f64 / size.height as f64;
    if size.width >= size.height && size.width > MAX_SIDE {
        PictureSize::new(MAX_SIDE, ((MAX_SIDE as f64 / ratio) as usize).max(1))
    } else if size.height > size.width && size.height > MAX_SIDE {
        PictureSize::new(((MAX_SIDE as f64 * ratio) as usize).max(1), MAX_SIDE)
    } else {
        size
    }
}

/// `resize_for_vision_encoder` of Idefics 3's processor: sides are multiples of a tile's.
fn of_tiles(from: PictureSize, tile: usize) -> PictureSize {
    let ratio = from.width as f64 / from.height as f64;
    if from.width >= from.height {
        let width = from.width.next_multiple_of(tile);
        PictureSize::new(width, ((width as f64 / ratio) as usize).max(1).next_multiple_of(tile))
    } else {
        let height = from.height.next_multiple_of(tile);
        PictureSize::new(((height as f64 * ratio) as usize).max(1).next_multiple_of(tile), height)
    }
}

/// `get_optimal_tiled_canvas` of GOT-OCR 2's processor: the numbers of columns and rows of tiles
/// whose ratio is closest to that of the picture's sides. Of equal ratios, the one with more tiles
/// is used unless the tiles have more than twice the pixels of the picture.
fn arrangement(from: PictureSize, tile: PictureSize, [least, most]: [usize; 2]) -> [usize; 2] {
    let mut possible: Vec<[usize; 2]> = (1..=most)
        .flat_map(|columns| (1..=most / columns).map(move |rows| [columns, rows]))
        .filter(|[columns, rows]| columns * rows >= least)
        .collect();
    possible.sort_by_key(|[columns, rows]| columns * rows);
    let ratio = from.width as f64 / from.height as f64;
    let (mut best, mut nearest) = ([1, 1], f64::INFINITY);
    for [columns, rows] in possible {
        let distance = (ratio - columns as f64 / rows as f64).abs();
        let is_filled = from.pixels() * 2 > tile.pixels() * columns * rows;
        if distance < nearest {
            (best, nearest) = ([columns, rows], distance);
        } else if distance.total_cmp(&nearest).is_eq() && is_filled {
            best = [columns, rows];
        }
    }
    best
}

/// `select_best_resolution` of `image_processing_utils.py`: the arrangement of tiles in which the
/// picture has most of its pixels, and then the one with fewer others.
fn best_canvas(from: PictureSize, tile: PictureSize, grids: &[[u8; 2]]) -> PictureSize {
    let canvas =
        |[columns, rows]: [u8; 2]| PictureSize::new(usize::from(columns) * tile.width, usize::from(rows) * tile.height);
    let mut best = (tile, 0, usize::MAX);
    for grid in grids.iter().take_while(|grid| **grid != [0, 0]) {
        let canvas = canvas(*grid);
        let (width, height) = (from.width as f64, from.height as f64);
        let scale = (canvas.width as f64 / width).min(canvas.height as f64 / height);
        let used = ((width * scale) as usize * (height * scale) as usize).min(from.pixels());
        let wasted = canvas.pixels() - used.min(canvas.pixels());
        if used > best.1 || (used == best.1 && wasted < best.2) {
            best = (canvas, used, wasted);
        }
    }
    best.0
}

/// `get_patch_output_size` of `image_processing_utils.py`: the largest size within another one,
/// with the same ratio of sides.
fn within(from: PictureSize, most: PictureSize) -> PictureSize {
    let [by_width, by_height] = [most.width as f64 / from.width as f64, most.height as f64 / from.height as f64];
    if by_width < by_height {
        let height = (from.height as f64 * by_width).ceil() as usize;
        PictureSize::new(most.width, height.clamp(1, most.height))
    } else {
        let width = (from.width as f64 * by_height).ceil() as usize;
        PictureSize::new(width.clamp(1, most.width), most.height)
    }
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
    let near = |side: f64| (side / unit).round_ties_even() * unit;
    Ok(within_bounds(from, unit, [least, most], near))
}

/// Returns sides that are multiples of `unit`, with a number of pixels within bounds if that is
/// possible. `near` rounds a side to a multiple, as Python does: halves to even numbers.
fn within_bounds(from: PictureSize, unit: f64, [least, most]: [u64; 2], near: impl Fn(f64) -> f64) -> PictureSize {
    let (width, height) = (from.width as f64, from.height as f64);
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
    PictureSize::new(sides[0] as usize, sides[1] as usize)
}

/// `smart_resize` of LFM2-VL's processor. Narrow pictures that get more pixels than `most` are
/// refused here.
fn fitted(from: PictureSize, multiple: u64, bounds: [u64; 2]) -> Result<PictureSize, SizeError> {
    let unit = multiple as f64;
    let size = within_bounds(from, unit, bounds, |side| rounded(side, unit));
    if size.pixels() as u64 > bounds[1] { Err(SizeError::Narrow(from)) } else { Ok(size) }
}

/// Returns the nearest multiple of `unit`, at least one.
fn rounded(side: f64, unit: f64) -> f64 {
    (side / unit).round_ties_even().max(1.0) * unit
}

/// Returns the pixels of a picture whose sides are rounded to multiples of a length.
fn rounded_pixels(size: PictureSize, multiple: u64) -> f64 {
    rounded(size.width as f64, multiple as f64) * rounded(size.height as f64, multiple as f64)
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
            PictureResize::Fitted { multiple: 32, least: 1 << 16, most: 1 << 18, tiles: None },
        ] {
            let error = target_sizes(narrow, resize).expect_err("refused").to_string();
            assert_eq!(error, "the picture is 20000 x 1 pixels, which is too narrow for this model");
        }
        let fixed = target_sizes(narrow, PictureResize::Fixed { width: 64, height: 64 }).expect("sizes");
        assert_eq!(fixed.resized, [PictureSize::new(64, 64)]);
    }

    #[test]
    fn every_side_has_a_pixel() {
        let longest = PictureResize::Longest { longest: 128, multiple: 16 };
        for (from, to) in [((1000, 1), (128, 16)), ((1, 1), (16, 16)), ((129, 128), (128, 128)), ((17, 16), (32, 16))] {
            let resized = target_sizes(PictureSize::new(from.0, from.1), longest).expect("sizes").part;
            assert_eq!((resized.width, resized.height), to, "{from:?}");
        }
        let largest = PictureResize::Largest { multiple: 48, most: 70 * 48 * 48 };
        let wide = target_sizes(PictureSize::new(10_000, 20), largest).expect("sizes").part;
        assert_eq!((wide.width, wide.height), (70 * 48, 48));
    }
}
