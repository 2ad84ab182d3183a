//! How a picture becomes the patches that a tower takes.

use serde::{Deserialize, Serialize};

use super::check::in_range;

/// Number of channels: red, green and blue.
const CHANNELS: usize = 3;
/// Limit of the sides of a resized picture, in pixels; more than any model takes.
const MAX_SIDE: u64 = 1 << 16;
/// Limit of the pixels of a resized picture; more than any model takes.
const MAX_PIXELS: u64 = 1 << 28;

/// Limit of the number of tiles of a picture; more than any model takes.
const MAX_TILES: u64 = 1 << 10;

/// Limit of the number of arrangements of tiles that a config lists.
pub const MOST_GRIDS: usize = 16;

/// Steps from a picture to the rows that a tower takes, one for each patch: resize, convert bytes
/// to numbers, cut into patches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PictureInput {
    /// Size of the resized picture.
    pub resize: PictureResize,
    /// Filter of the resize.
    pub filter: PictureFilter,
    /// Factor of the bytes.
    pub scale: f64,
    /// Number that is subtracted from a scaled byte, for each channel.
    pub mean: [f64; CHANNELS],
    /// Divisor of the difference, for each channel.
    pub deviation: [f64; CHANNELS],
    /// Pixels of each side of a patch.
    pub patch: u64,
    /// Patches of each side of a block. The patches of a block are consecutive rows; 1 means that
    /// patches follow each other as in the picture.
    pub block: u64,
    /// Number of equal frames of which a patch consists.
    pub frames: u64,
    /// Order of the numbers of a patch.
    pub order: PatchOrder,
}

/// Size of a resized picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PictureResize {
    /// One size for all pictures.
    Fixed {
        /// Pixels of a row.
        width: u64,
        /// Pixels of a column.
        height: u64,
    },
    /// The shorter side gets this length, then the middle of the picture is cut out.
    Cropped {
        /// Length of the shorter side.
        shorter: u64,
        /// Pixels of a row of the cut part; at most `shorter`.
        width: u64,
        /// Pixels of a column of the cut part; at most `shorter`.
        height: u64,
    },
    /// Sides become multiples of a length, and the number of pixels is within bounds.
    Area {
        /// Length of which the sides are multiples.
        multiple: u64,
        /// Smallest number of pixels.
        least: u64,
        /// Largest number of pixels.
        most: u64,
    },
    /// A picture with a longer side shrinks to it; then sides are rounded up to multiples of a
    /// length.
    Longest {
        /// Length of the longest side.
        longest: u64,
        /// Length of which the sides are multiples.
        multiple: u64,
    },
    /// The longest side gets a length, then both are rounded up to multiples of the side of a tile,
    /// and the picture is cut into tiles. If there are several, a small copy of the picture follows
    /// them.
    Tiles {
        /// Length of the longest side.
        longest: u64,
        /// Pixels of each side of a tile.
        tile: u64,
    },
    /// The longest side gets a length, then the picture is resized to a square.
    Square {
        /// Length of the longest side.
        longest: u64,
        /// Pixels of each side of the square.
        side: u64,
    },
    /// The picture is resized to the arrangement of tiles with the closest ratio of sides, and cut
    /// into them. If there are several, a small copy of the picture follows them.
    Arranged {
        /// Pixels of a row of a tile.
        width: u64,
        /// Pixels of a column of a tile.
        height: u64,
        /// Smallest number of tiles.
        least: u64,
        /// Largest number of tiles.
        most: u64,
    },
    /// The picture keeps its ratio of sides, and is padded with black to the arrangement of tiles
    /// in which it is largest. A small copy of the picture follows the tiles.
    Padded {
        /// Pixels of each side of a tile.
        tile: u64,
        /// Possible numbers of columns and rows of tiles, up to the first one of 0 and 0.
        grids: [[u8; 2]; MOST_GRIDS],
    },
    /// As for `Area`, but each side has at least the length of which it is a multiple. A picture
    /// that is too large is cut into tiles.
    Fitted {
        /// Length of which the sides are multiples.
        multiple: u64,
        /// Smallest number of pixels.
        least: u64,
        /// Largest number of pixels.
        most: u64,
        /// Tiles of pictures that are too large; `None` if all pictures shrink.
        tiles: Option<LargeTiles>,
    },
    /// The largest picture with at most this number of pixels, with sides rounded down to multiples
    /// of a length.
    Largest {
        /// Length of which the sides are multiples.
        multiple: u64,
        /// Largest number of pixels.
        most: u64,
    },
}

/// Tiles of pictures that are too large: the picture is resized to the arrangement of tiles with
/// the closest ratio of sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LargeTiles {
    /// Largest number of pixels of a picture that is not cut, after its sides are rounded to
    /// multiples.
    pub above: u64,
    /// Pixels of each side of a tile.
    pub side: u64,
    /// Smallest number of tiles.
    pub least: u64,
    /// Largest number of tiles.
    pub most: u64,
    /// Whether the picture follows its tiles, if there are several, in the size that it would have
    /// without tiles.
    pub has_copy: bool,
}

/// Filter of a resize, as Pillow defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PictureFilter {
    /// Equal weights within half a pixel.
    Box,
    /// Weights that decrease linearly within one pixel.
    Bilinear,
    /// Hamming window within one pixel.
    Hamming,
    /// Cubic convolution with a = −0.5 within two pixels.
    Bicubic,
    /// Windowed sinc within three pixels.
    Lanczos,
}

/// Order of the numbers of a patch, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PatchOrder {
    /// `[channel, frame, row, column]`.
    Channels,
    /// `[row, column, channel]`.
    Pixels,
}

impl PictureInput {
    /// Returns the number of numbers of a patch.
    pub fn patch_width(&self) -> u64 {
        self.patch * self.patch * self.frames * CHANNELS as u64
    }

    /// Returns the largest number of patches that a tower takes at a time: those of a picture, or
    /// of a tile.
    pub fn most_patches(&self) -> u64 {
        let pixels = match self.resize {
            PictureResize::Fixed { width, height }
            | PictureResize::Cropped { width, height, .. }
            | PictureResize::Arranged { width, height, .. } => width.saturating_mul(height),
            PictureResize::Area { most, .. } | PictureResize::Largest { most, .. } => most,
            PictureResize::Fitted { most, tiles, .. } => {
                most.max(tiles.map_or(0, |tiles| tiles.side.saturating_mul(tiles.side)))
            }
            PictureResize::Tiles { tile: side, .. }
            | PictureResize::Padded { tile: side, .. }
            | PictureResize::Square { side, .. } => side.saturating_mul(side),
            PictureResize::Longest { longest, multiple } => {
                let side = longest.next_multiple_of(multiple.max(1));
                side.saturating_mul(side)
            }
        };
        pixels / self.patch.saturating_mul(self.patch).max(1)
    }

    /// Returns the largest number of parts of a picture that a tower takes one by one.
    pub fn most_parts(&self) -> u64 {
        match self.resize {
            PictureResize::Arranged { most: 1, .. } => 1,
            PictureResize::Arranged { most, .. } => most + 1,
            PictureResize::Fitted { tiles: Some(tiles), .. } => tiles.most + u64::from(tiles.has_copy),
            PictureResize::Padded { grids, .. } => {
                grids.iter().map(|[columns, rows]| u64::from(*columns) * u64::from(*rows)).max().unwrap_or(0) + 1
            }
            PictureResize::Tiles { longest, tile } => {
                let side = longest.div_ceil(tile.max(1));
                side.saturating_mul(side).saturating_add(1)
            }
            _ => 1,
        }
    }

    /// Checks that the numbers are consistent and bounded.
    ///
    /// # Errors
    /// A value is invalid; the text states the expected value.
    pub(crate) fn check(self) -> Result<Self, String> {
        in_range("pixels of a patch's side", self.patch, 1 << 10)?;
        in_range("patches of a block's side", self.block, 1 << 6)?;
        in_range("frames of a patch", self.frames, 1 << 6)?;
        let factors = [self.scale].into_iter().chain(self.deviation);
        if let Some(factor) = factors.into_iter().find(|factor| !factor.is_finite() || *factor <= 0.0) {
            return Err(format!("a factor or deviation of the channels is {factor}, expected a positive number"));
        }
        if !self.mean.iter().all(|mean| mean.is_finite()) {
            return Err(format!("means of the channels are {:?}, expected finite numbers", self.mean));
        }
        if self.order == PatchOrder::Pixels && self.frames != 1 {
            return Err(format!("patches of {} frames have their channels first", self.frames));
        }
        self.resize.check([self.patch, self.block])?;
        Ok(self)
    }
}

impl PictureResize {
    /// Checks the sizes of a picture that is cut into blocks of `block · block` patches of `patch`
    /// pixels. Pixels behind the last patch of a side are not used.
    fn check(self, [patch, block]: [u64; 2]) -> Result<(), String> {
        let whole = |side: u64| whole_blocks(side, [patch, block]);
        match self {
            Self::Fixed { width, height } => {
                [width, height].into_iter().try_for_each(whole)?;
                in_range("pixels of a picture", width * height, MAX_PIXELS)?;
            }
            Self::Cropped { shorter, width, height } => {
                [width, height].into_iter().try_for_each(whole)?;
                if shorter < width.max(height) || shorter > MAX_SIDE {
                    return Err(format!("a picture of {shorter} pixels is cut to {width} x {height}"));
                }
            }
            Self::Longest { longest, multiple } => {
                in_range("pixels of a picture's side", longest, MAX_SIDE)?;
                in_range("pixels of a picture", longest * longest, MAX_PIXELS)?;
                whole(multiple)?;
            }
            Self::Tiles { longest, tile: side } | Self::Square { longest, side } => {
                in_range("pixels of a picture's side", longest, MAX_SIDE)?;
                in_range("pixels of a picture", longest * longest, MAX_PIXELS)?;
                whole(side)?;
                in_range("pixels of a tile", side * side, MAX_PIXELS)?;
            }
            Self::Arranged { width, height, least, most } => {
                [width, height].into_iter().try_for_each(whole)?;
                in_range("smallest number of tiles", least, most)?;
                in_range("largest number of tiles", most, MAX_TILES)?;
                in_range("pixels of all tiles", width * height * most, MAX_PIXELS)?;
            }
            Self::Padded { tile, grids } => {
                whole(tile)?;
                check_grids(tile, &grids)?;
            }
            Self::Fitted { multiple, least, most, tiles: Some(tiles) } => {
                Self::Fitted { multiple, least, most, tiles: None }.check([patch, block])?;
                whole(tiles.side)?;
                tiles.check()?;
            }
            Self::Area { multiple, most, .. }
            | Self::Largest { multiple, most }
            | Self::Fitted { multiple, most, .. } => {
                whole(multiple)?;
                in_range("pixels of a picture", most, MAX_PIXELS)?;
                if most < multiple * multiple {
                    return Err(format!("at most {most} pixels are no square of {multiple}"));
                }
            }
        }
        if let Self::Area { least, most, .. } | Self::Fitted { least, most, .. } = self
            && least > most
        {
            return Err(format!("a picture has at least {least} and at most {most} pixels"));
        }
        Ok(())
    }
}

impl LargeTiles {
    fn check(self) -> Result<(), String> {
        in_range("smallest number of tiles", self.least, self.most)?;
        in_range("largest number of tiles", self.most, MAX_TILES)?;
        in_range("pixels of all tiles", self.side * self.side * self.most, MAX_PIXELS)
    }
}

/// Checks that a side has whole blocks of `block` patches of `patch` pixels.
fn whole_blocks(side: u64, [patch, block]: [u64; 2]) -> Result<(), String> {
    in_range("pixels of a picture's side", side, MAX_SIDE)?;
    let patches = side / patch;
    if patches > 0 && patches.is_multiple_of(block) {
        Ok(())
    } else {
        Err(format!("{side} pixels are {patches} patches, expected whole blocks of {block}"))
    }
}

/// Checks arrangements of tiles whose sides have `tile` pixels.
fn check_grids(tile: u64, grids: &[[u8; 2]]) -> Result<(), String> {
    let is_grid = |grid: &[u8; 2]| grid.iter().all(|side| *side > 0);
    let count = grids.iter().take_while(|grid| is_grid(grid)).count();
    if count == 0 || grids[count..].iter().any(|grid| *grid != [0, 0]) {
        return Err("there are no arrangements of tiles, or one of them has no columns or rows".to_owned());
    }
    grids[..count].iter().try_for_each(|[columns, rows]| {
        let tiles = u64::from(*columns) * u64::from(*rows);
        in_range("number of tiles", tiles, MAX_TILES)?;
        in_range("pixels of all tiles", tile * tile * tiles, MAX_PIXELS)
    })
}
