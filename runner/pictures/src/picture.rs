//! A decoded picture.

/// Width and height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureSize {
    /// Number of columns.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
}

impl PictureSize {
    /// Creates a size.
    pub const fn new(width: usize, height: usize) -> Self {
        Self { width, height }
    }

    /// Returns the number of pixels.
    pub const fn pixels(self) -> usize {
        self.width * self.height
    }
}

/// Bytes per pixel: red, green and blue.
pub const CHANNELS: usize = 3;

/// A decoded picture without transparency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    size: PictureSize,
    /// `[height, width, 3]`: red, green and blue of each pixel.
    pixels: Vec<u8>,
}

impl Picture {
    /// Creates a picture from its pixels, `[height, width, 3]`.
    ///
    /// # Panics
    /// If `pixels` does not have `width · height · 3` bytes.
    pub fn new(size: PictureSize, pixels: Vec<u8>) -> Self {
        assert_eq!(pixels.len(), size.pixels() * CHANNELS, "invariant: three bytes for each of {size:?} pixels");
        Self { size, pixels }
    }

    /// Returns width and height.
    pub fn size(&self) -> PictureSize {
        self.size
    }

    /// Returns the pixels, `[height, width, 3]`.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Returns a row of pixels, `[width, 3]`.
    pub fn row(&self, row: usize) -> &[u8] {
        let stride = self.size.width * CHANNELS;
        &self.pixels[row * stride..(row + 1) * stride]
    }
}
