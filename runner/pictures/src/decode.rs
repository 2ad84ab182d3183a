//! Decoding: PNG, JPEG, WebP and GIF files become pixels as a model takes them.
//!
//! - The size that a header claims is compared with the limits before anything is allocated by it.
//! - Of an animation, the first frame counts.
//! - The picture is turned as its EXIF orientation says.
//! - Transparent pixels are composed with white, as `convert_to_rgb` of transformers does.

use std::io::Cursor;

use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader};

use crate::picture::{CHANNELS, Picture, PictureSize};

/// Formats that are decoded.
const FORMATS: [ImageFormat; 4] = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif];
/// Largest number of bytes that a decoder allocates for each pixel: a decoder of animations keeps
/// two frames of four bytes, one of 16-bit channels a frame of eight bytes.
const BYTES_PER_PIXEL: u64 = 16;
/// Bytes that a decoder may allocate besides pixels, for tables and metadata.
const TABLES: u64 = 8 << 20;

/// Largest file and picture that are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureLimits {
    /// Bytes of the file.
    pub bytes: usize,
    /// Pixels of each side.
    pub side: usize,
    /// Pixels of the picture.
    pub pixels: usize,
}

impl Default for PictureLimits {
    /// 32 MiB and 50 million pixels: photos of today's cameras.
    fn default() -> Self {
        Self { bytes: 32 << 20, side: 1 << 15, pixels: 50_000_000 }
    }
}

/// The reason why a file cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PictureError {
    /// The file has no bytes.
    #[error("the picture is empty")]
    Empty,
    /// The file is too large.
    #[error("the picture has {found} bytes, at most {most} are decoded")]
    Bytes {
        /// Bytes of the file.
        found: usize,
        /// Largest number of bytes.
        most: usize,
    },
    /// The file has another format.
    #[error("the picture is not a PNG, JPEG, WebP or GIF file; convert it to one of these")]
    Format,
    /// The picture has no pixels, or too many.
    #[error("the picture is {} x {} pixels, expected at most {} pixels, and sides of 1 to {}", .size.width, .size.height, .limits.pixels, .limits.side)]
    Size {
        /// Size that the header claims.
        size: PictureSize,
        /// Limits that it exceeds.
        limits: PictureLimits,
    },
    /// The file is damaged, incomplete or uses an unsupported feature.
    #[error("the picture cannot be decoded: {0}")]
    Damaged(String),
}

/// Decodes the file of a picture.
///
/// # Errors
/// The file exceeds the limits, has another format, or is damaged.
pub fn decode(file: &[u8], limits: PictureLimits) -> Result<Picture, PictureError> {
    if file.is_empty() {
        return Err(PictureError::Empty);
    }
    if file.len() > limits.bytes {
        return Err(PictureError::Bytes { found: file.len(), most: limits.bytes });
    }
    let format = image::guess_format(file).map_err(|_| PictureError::Format)?;
    if !FORMATS.contains(&format) {
        return Err(PictureError::Format);
    }
    let mut reader = ImageReader::with_format(Cursor::new(file), format);
    reader.limits(allocations(limits));
    let mut decoder = reader.into_decoder().map_err(|error| damaged(&error))?;
    let (width, height) = decoder.dimensions();
    let size = PictureSize::new(width as usize, height as usize);
    let is_fine = |side: usize| (1..=limits.side).contains(&side);
    if !is_fine(size.width) || !is_fine(size.height) || size.pixels() > limits.pixels {
        return Err(PictureError::Size { size, limits });
    }
    let orientation = decoder.orientation().map_err(|error| damaged(&error))?;
    let mut decoded = DynamicImage::from_decoder(decoder).map_err(|error| damaged(&error))?;
    decoded.apply_orientation(orientation);
    Ok(opaque(decoded))
}

/// Returns the limits of a decoder's allocations.
fn allocations(limits: PictureLimits) -> image::Limits {
    let mut own = image::Limits::no_limits();
    let side = u32::try_from(limits.side).unwrap_or(u32::MAX);
    (own.max_image_width, own.max_image_height) = (Some(side), Some(side));
    own.max_alloc = Some((limits.pixels as u64).saturating_mul(BYTES_PER_PIXEL).saturating_add(TABLES));
    own
}

fn damaged(error: &ImageError) -> PictureError {
    PictureError::Damaged(error.to_string())
}

/// Converts a decoded picture to bytes of red, green and blue, over white.
fn opaque(decoded: DynamicImage) -> Picture {
    let size = PictureSize::new(decoded.width() as usize, decoded.height() as usize);
    if !decoded.color().has_alpha() {
        return Picture::new(size, decoded.into_rgb8().into_raw());
    }
    let mut pixels = Vec::with_capacity(size.pixels() * CHANNELS);
    for [red, green, blue, alpha] in decoded.into_rgba8().pixels().map(|pixel| pixel.0) {
        pixels.extend([red, green, blue].map(|value| over_white(value, alpha)));
    }
    Picture::new(size, pixels)
}

/// Composes a value with white, rounded as Pillow's `alpha_composite` does
/// (`src/libImaging/AlphaComposite.c`).
fn over_white(value: u8, alpha: u8) -> u8 {
    if alpha == 0 {
        return 255;
    }
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    // Fixed-point numbers with 7 bits behind the point.
    let sum = ((value * alpha + 255 * (255 - alpha)) << 7) + (0x80 << 7);
    ((((sum >> 8) + sum) >> 8) >> 7) as u8
}

#[cfg(test)]
mod tests {
    use image::{ExtendedColorType, ImageEncoder, RgbImage, RgbaImage};

    use super::*;

    fn png(size: [u32; 2], bytes: &[u8], color: ExtendedColorType) -> Vec<u8> {
        let mut file = Vec::new();
        image::codecs::png::PngEncoder::new(&mut file).write_image(bytes, size[0], size[1], color).expect("a PNG file");
        file
    }

    fn of_rgb(size: [u32; 2], format: ImageFormat) -> Vec<u8> {
        let picture = RgbImage::from_fn(size[0], size[1], |x, y| image::Rgb([(x * 40) as u8, (y * 90) as u8, 7]));
        let mut file = Cursor::new(Vec::new());
        picture.write_to(&mut file, format).expect("a file");
        file.into_inner()
    }

    #[test]
    fn every_format_is_decoded() {
        for (format, most) in
            [(ImageFormat::Png, 0), (ImageFormat::WebP, 0), (ImageFormat::Jpeg, 24), (ImageFormat::Gif, 24)]
        {
            let picture = decode(&of_rgb([6, 3], format), PictureLimits::default()).expect("a picture");
            assert_eq!(picture.size(), PictureSize::new(6, 3), "{format:?}");
            for (at, pixel) in picture.pixels().chunks_exact(CHANNELS).enumerate() {
                let expected = [at % 6 * 40, at / 6 * 90, 7];
                let off = pixel.iter().zip(expected).map(|(found, expected)| usize::from(*found).abs_diff(expected));
                assert!(off.max() <= Some(most), "{format:?}: {pixel:?}, expected {expected:?}");
            }
        }
    }

    #[test]
    fn transparent_pixels_are_over_white() {
        let pixels = [[10, 20, 30, 255], [10, 20, 30, 0], [10, 20, 30, 128], [200, 0, 77, 1]];
        let raw = RgbaImage::from_raw(4, 1, pixels.concat()).expect("a picture");
        let file = png([4, 1], raw.as_raw(), ExtendedColorType::Rgba8);
        let picture = decode(&file, PictureLimits::default()).expect("a picture");
        // Values of Pillow 13.
        assert_eq!(picture.pixels(), [10, 20, 30, 255, 255, 255, 132, 137, 142, 255, 254, 254]);
    }

    #[test]
    fn gray_pixels_have_three_equal_channels() {
        let picture =
            decode(&png([2, 1], &[5, 250], ExtendedColorType::L8), PictureLimits::default()).expect("a picture");
        assert_eq!(picture.pixels(), [5, 5, 5, 250, 250, 250]);
    }

    #[test]
    fn the_orientation_is_applied() {
        let mut file = Vec::new();
        let mut encoder = image::codecs::png::PngEncoder::new(&mut file);
        // Little-endian TIFF with one entry: orientation 6, a quarter turn to the right.
        let exif = [b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0".as_slice()].concat();
        encoder.set_exif_metadata(exif).expect("it takes EXIF");
        encoder.write_image(&[1, 2], 2, 1, ExtendedColorType::L8).expect("a PNG file");
        let picture = decode(&file, PictureLimits::default()).expect("a picture");
        assert_eq!((picture.size(), picture.pixels()), (PictureSize::new(1, 2), &[1, 1, 1, 2, 2, 2][..]));
    }

    #[test]
    fn limits_are_checked() {
        let file = of_rgb([6, 3], ImageFormat::Png);
        let refused = |limits: PictureLimits| decode(&file, limits).expect_err("refused").to_string();
        let limits = PictureLimits::default();
        let bytes = refused(PictureLimits { bytes: 20, ..limits });
        assert_eq!(bytes, format!("the picture has {} bytes, at most 20 are decoded", file.len()));
        assert!(refused(PictureLimits { pixels: 17, ..limits }).contains("6 x 3 pixels, expected at most 17 pixels"));
        decode(&file, PictureLimits { side: 5, ..limits }).expect_err("a side is too long");
        assert_eq!(decode(&[], limits), Err(PictureError::Empty));
        assert_eq!(decode(b"BM not a bitmap either", limits), Err(PictureError::Format));
        assert_eq!(decode(b"hello, world", limits), Err(PictureError::Format));
    }

    /// A header that claims many pixels must not cost memory or time.
    #[test]
    fn claims_of_a_header_are_not_believed() {
        let mut file = of_rgb([6, 3], ImageFormat::Png);
        // Width and height are at 16; their checksum follows the 13 bytes of the header's data.
        file[16..24].copy_from_slice(&[0, 0, 0x7f, 0xff, 0, 0, 0x7f, 0xff]);
        let checksum = crc(&file[12..29]);
        file[29..33].copy_from_slice(&checksum.to_be_bytes());
        let error = decode(&file, PictureLimits::default()).expect_err("it is too large").to_string();
        assert!(error.contains("32767 x 32767 pixels"), "{error}");
    }

    /// CRC-32 of PNG.
    fn crc(bytes: &[u8]) -> u32 {
        let step = |crc: u32, _: u32| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
        !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
    }

    /// Files of every format with a few changed bytes: each is decoded or refused.
    #[test]
    fn damaged_files_do_no_harm() {
        let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/pictures");
        let mut files: Vec<_> =
            std::fs::read_dir(seeds).expect("seeds").map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        assert!(files.len() > 8, "{files:?}");
        let limits = PictureLimits { pixels: 1 << 20, ..PictureLimits::default() };
        let mut random = 1_u32;
        let mut next = |below: usize| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) as usize % below
        };
        for path in files {
            let file = std::fs::read(&path).expect("a file");
            decode(&file, limits).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            for _ in 0..500 {
                let mut damaged = file.clone();
                for _ in 0..=next(4) {
                    let at = next(damaged.len());
                    damaged[at] = next(256) as u8;
                }
                if let Err(error) = decode(&damaged, limits) {
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }

    #[test]
    fn every_truncation_is_refused_or_decoded() {
        for format in FORMATS {
            let file = of_rgb([40, 30], format);
            for end in 0..file.len() {
                if let Err(error) = decode(&file[..end], PictureLimits::default()) {
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}
