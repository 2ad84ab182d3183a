//! From a picture to the rows that a tower takes.

use std::borrow::Cow;

use architectures::{PatchOrder, PictureInput};

use crate::picture::{CHANNELS, Picture, PictureSize};
use crate::resample::resize;
use crate::sizes::{SizeError, target_sizes};

/// The parts of a picture that a tower takes, one by one.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureParts {
    /// Number of tiles in a row of the picture; 1 if it is not cut.
    pub columns: usize,
    /// Number of rows of tiles; 1 if it is not cut.
    pub rows: usize,
    /// The tiles, row by row. If there are several, a small copy of the picture follows them.
    pub parts: Vec<Picture>,
    /// Size of the picture before it was resized.
    pub original: PictureSize,
}

/// The patches of a part of a picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Patches {
    /// Number of patches in a row of the picture.
    pub columns: usize,
    /// Number of rows of patches.
    pub rows: usize,
    /// `[columns · rows, numbers of a patch]`, in the order of [`patch_places`].
    pub numbers: Vec<f32>,
}

/// Returns the parts of a picture, resized for a tower.
///
/// # Errors
/// The picture is too narrow for the model.
pub fn picture_parts(picture: &Picture, input: &PictureInput) -> Result<PictureParts, SizeError> {
    let target = target_sizes(picture.size(), input.resize)?;
    let mut resized = Cow::Borrowed(picture);
    for size in target.resized {
        if size != resized.size() {
            resized = Cow::Owned(resize(&resized, size, input.filter));
        }
    }
    if let Some(canvas) = target.canvas {
        resized = Cow::Owned(padded(&resized, canvas));
    }
    let (size, part) = (resized.size(), target.part);
    let Some(tiles) = target.tiles else {
        let part = if size == part { resized.into_owned() } else { middle(&resized, part) };
        return Ok(PictureParts { columns: 1, rows: 1, parts: vec![part], original: picture.size() });
    };
    let (columns, rows) = (size.width / part.width, size.height / part.height);
    let mut parts = Vec::with_capacity(columns * rows + 1);
    for [row, column] in patch_places(rows, columns, 1) {
        parts.push(cut(&resized, [column * part.width, row * part.height], part));
    }
    if let Some(copy) = tiles.copy.filter(|_| tiles.copies_single_tile || parts.len() > 1) {
        let of = if copy.is_of_resized { &resized } else { picture };
        parts.push(resize(of, copy.size, input.filter));
    }
    Ok(PictureParts { columns, rows, parts, original: picture.size() })
}

impl PictureParts {
    /// Returns the width of the first part in pixels.
    pub fn part_width(&self) -> usize {
        self.parts.first().map_or(0, |part| part.size().width)
    }

    /// Returns the bytes of all parts.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.size().pixels() * CHANNELS).sum()
    }
}

impl Patches {
    /// Cuts a part of a picture into patches. Pixels behind the last patch of a side are not used.
    pub fn of(picture: &Picture, input: &PictureInput) -> Self {
        let table = NumberTable::new(input);
        let patch = input.patch as usize;
        let (columns, rows) = (picture.size().width / patch, picture.size().height / patch);
        let mut numbers = Vec::with_capacity(columns * rows * input.patch_width() as usize);
        for [row, column] in patch_places(rows, columns, input.block as usize) {
            let area = Area { picture, left: column * patch, top: row * patch, side: patch };
            match input.order {
                PatchOrder::Channels => table.by_channels(&area, input.frames as usize, &mut numbers),
                PatchOrder::Pixels => table.by_pixels(&area, &mut numbers),
            }
        }
        Self { columns, rows, numbers }
    }
}

/// Returns row and column of each patch. Blocks of `block · block` patches follow each other row by
/// row, and so do the patches of a block.
pub fn patch_places(rows: usize, columns: usize, block: usize) -> impl Iterator<Item = [usize; 2]> {
    let blocks = (0..rows / block).flat_map(move |row| (0..columns / block).map(move |column| [row, column]));
    blocks.flat_map(move |[row, column]| {
        (0..block).flat_map(move |y| (0..block).map(move |x| [row * block + y, column * block + x]))
    })
}

/// Cuts the middle out of a picture. As in transformers, an odd pixel is cut from the end.
fn middle(picture: &Picture, to: PictureSize) -> Picture {
    let from = picture.size();
    cut(picture, [(from.width - to.width) / 2, (from.height - to.height) / 2], to)
}

/// Puts a picture in the middle of a black one. An odd pixel of black is at the end.
fn padded(picture: &Picture, canvas: PictureSize) -> Picture {
    let own = picture.size();
    let (left, top) = ((canvas.width - own.width) / 2, (canvas.height - own.height) / 2);
    let mut bytes = vec![0; canvas.pixels() * CHANNELS];
    for row in 0..own.height {
        let begin = ((top + row) * canvas.width + left) * CHANNELS;
        bytes[begin..begin + own.width * CHANNELS].copy_from_slice(picture.row(row));
    }
    Picture::new(canvas, bytes)
}

/// Cuts a part out of a picture; `left` and `top` are the position of its first pixel.
fn cut(picture: &Picture, [left, top]: [usize; 2], to: PictureSize) -> Picture {
    let rows = (top..top + to.height).map(|row| &picture.row(row)[left * CHANNELS..(left + to.width) * CHANNELS]);
    Picture::new(to, rows.collect::<Vec<_>>().concat())
}

/// A square of a picture.
struct Area<'a> {
    picture: &'a Picture,
    left: usize,
    top: usize,
    side: usize,
}

impl Area<'_> {
    /// Returns the bytes of each row.
    fn rows(&self) -> impl Iterator<Item = &[u8]> {
        let columns = self.left * CHANNELS..(self.left + self.side) * CHANNELS;
        (self.top..self.top + self.side).map(move |row| &self.picture.row(row)[columns.clone()])
    }
}

/// The number for each byte of each channel.
struct NumberTable([[f32; 256]; CHANNELS]);

impl NumberTable {
    fn new(input: &PictureInput) -> Self {
        let number = |channel: usize, byte: usize| {
            let scaled = (byte as f64 * input.scale) as f32;
            (scaled - input.mean[channel] as f32) / input.deviation[channel] as f32
        };
        Self(std::array::from_fn(|channel| std::array::from_fn(|byte| number(channel, byte))))
    }

    /// Appends a patch, `[channel, frame, row, column]`.
    fn by_channels(&self, area: &Area<'_>, frames: usize, numbers: &mut Vec<f32>) {
        for (channel, table) in self.0.iter().enumerate() {
            for _ in 0..frames {
                for row in area.rows() {
                    numbers.extend(row.iter().skip(channel).step_by(CHANNELS).map(|byte| table[usize::from(*byte)]));
                }
            }
        }
    }

    /// Appends a patch, `[row, column, channel]`.
    fn by_pixels(&self, area: &Area<'_>, numbers: &mut Vec<f32>) {
        for pixel in area.rows().flat_map(|row| row.chunks_exact(CHANNELS)) {
            numbers.extend(pixel.iter().zip(&self.0).map(|(byte, table)| table[usize::from(*byte)]));
        }
    }
}

#[cfg(test)]
mod tests {
    use architectures::picture_input;
    use content::Digest;
    use serde_json::Value;

    use super::*;
    use crate::made::made;

    #[test]
    fn patches_are_those_of_transformers() {
        let golden: Value =
            serde_json::from_str(include_str!("../../../tests/pictures/patches.json")).expect("golden digests");
        for case in golden.as_array().expect("cases") {
            let number = |value: &Value| value.as_u64().expect("a number") as usize;
            let input = picture_input(case["settings"].to_string().as_bytes(), number(&case["patch"]) as u64);
            let input = input.unwrap_or_else(|error| panic!("{case}: {error}"));
            let size = PictureSize::new(number(&case["size"][0]), number(&case["size"][1]));
            let found = picture_parts(&made(case["rule"].as_str().expect("a rule"), size), &input).expect("parts");
            let all: Vec<Patches> = found.parts.iter().map(|part| Patches::of(part, &input)).collect();
            let part = &all[0];
            assert_eq!([part.columns, part.rows], ["columns", "rows"].map(|key| number(&case[key])), "{case}");
            assert_eq!(
                [found.columns, found.rows],
                ["tile_columns", "tile_rows"].map(|key| number(&case[key])),
                "{case}"
            );
            let numbers = all.iter().flat_map(|part| &part.numbers);
            let bytes: Vec<u8> = numbers.flat_map(|number| number.to_le_bytes()).collect();
            assert_eq!(Digest::of(&bytes).hex(), case["sha256"].as_str().expect("a digest"), "{case}");
        }
    }
}
