//! Settings of a folder's picture processor: `preprocessor_config.json`, or `image_processor` of
//! `processor_config.json`.
//!
//! Missing keys have the values of the processor's class in transformers.
//!
//! Source: `image_processing_pil_*.py` of transformers 5.24.

use serde_json::{Map, Value};

use crate::Error;
use crate::blueprint::{LargeTiles, MOST_GRIDS, PatchOrder, PictureFilter, PictureInput, PictureResize};
use crate::config_json::Config;
use crate::keys_read::KeysRead;

const SOURCE: &str = "preprocessor_config.json";
pub(crate) const CLIP_MEAN: [f64; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
pub(crate) const CLIP_DEVIATION: [f64; 3] = [0.268_629_54, 0.261_302_58, 0.275_777_11];
pub(crate) const HALF: [f64; 3] = [0.5; 3];

/// Kind of a processor, by which sizes it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessorKind {
    /// Sides that are multiples of a block of patches, and bounds of the number of pixels.
    Area,
    /// One size.
    Fixed,
    /// A shorter side, and a cut part.
    Cropped,
    /// A longest side.
    Longest,
    /// A number of tokens.
    Tokens,
    /// A longest side, and tiles.
    Tiles,
    /// An arrangement of tiles.
    Arranged,
    /// A number of tokens, and tiles for pictures that are too large.
    Fitted,
    /// Arrangements of tiles that are padded.
    Padded,
}

/// Classes of processors that always cut pictures into tiles: they override `crop_to_patches`.
const CUTTING: [&str; 2] = ["InternVLProcessor", "AyaVisionProcessor"];

/// Values of a processor's class.
struct Defaults {
    kind: ProcessorKind,
    filter: PictureFilter,
    mean: [f64; 3],
    deviation: [f64; 3],
}

/// Classes of transformers, without the suffix of their implementation.
const CLASSES: [(&str, Defaults); 13] = [
    ("Idefics3ImageProcessor", Defaults::new(ProcessorKind::Tiles, PictureFilter::Lanczos, HALF, HALF)),
    ("SmolVLMImageProcessor", Defaults::new(ProcessorKind::Tiles, PictureFilter::Lanczos, HALF, HALF)),
    (
        "GotOcr2ImageProcessor",
        Defaults::new(ProcessorKind::Arranged, PictureFilter::Bicubic, CLIP_MEAN, CLIP_DEVIATION),
    ),
    ("Qwen2VLImageProcessor", Defaults::new(ProcessorKind::Area, PictureFilter::Bicubic, CLIP_MEAN, CLIP_DEVIATION)),
    ("Qwen3VLImageProcessor", Defaults::new(ProcessorKind::Area, PictureFilter::Bicubic, CLIP_MEAN, CLIP_DEVIATION)),
    ("SiglipImageProcessor", Defaults::new(ProcessorKind::Fixed, PictureFilter::Bicubic, HALF, HALF)),
    ("Gemma3ImageProcessor", Defaults::new(ProcessorKind::Fixed, PictureFilter::Bilinear, HALF, HALF)),
    ("CLIPImageProcessor", Defaults::new(ProcessorKind::Cropped, PictureFilter::Bicubic, CLIP_MEAN, CLIP_DEVIATION)),
    ("LlavaImageProcessor", Defaults::new(ProcessorKind::Cropped, PictureFilter::Bicubic, CLIP_MEAN, CLIP_DEVIATION)),
    (
        "LlavaNextImageProcessor",
        Defaults::new(ProcessorKind::Padded, PictureFilter::Bicubic, CLIP_MEAN, CLIP_DEVIATION),
    ),
    ("PixtralImageProcessor", Defaults::new(ProcessorKind::Longest, PictureFilter::Bicubic, CLIP_MEAN, CLIP_DEVIATION)),
    ("Lfm2VlImageProcessor", Defaults::new(ProcessorKind::Fitted, PictureFilter::Bilinear, HALF, HALF)),
    ("Gemma4ImageProcessor", Defaults::new(ProcessorKind::Tokens, PictureFilter::Bicubic, [0.0; 3], [1.0; 3])),
];

impl Defaults {
    const fn new(kind: ProcessorKind, filter: PictureFilter, mean: [f64; 3], deviation: [f64; 3]) -> Self {
        Self { kind, filter, mean, deviation }
    }
}

/// Reads the settings. `patch` is the number of pixels of a patch's side in the tower's config,
/// which some processors' settings do not have.
///
/// # Errors
/// The document is not JSON, its processor is not supported, or a value is invalid.
pub fn picture_input(raw: &[u8], patch: u64) -> Result<PictureInput, Error> {
    let whole: Map<String, Value> =
        serde_json::from_slice(&formats::json::tolerant(raw)).map_err(|error| fail(error.to_string()))?;
    let map = match whole.get("image_processor") {
        Some(Value::Object(own)) => own,
        _ => &whole,
    };
    let read = KeysRead::default();
    let class = whole.get("processor_class").or(map.get("processor_class")).and_then(Value::as_str);
    let cuts = class.is_some_and(|class| CUTTING.contains(&class));
    of_config(Config::new(map, &read), patch, cuts).map_err(|error| match error {
        Error::Document { reason, .. } => fail(reason),
        unsupported @ Error::Unsupported { .. } => unsupported,
    })
}

fn fail(reason: impl Into<String>) -> Error {
    Error::new(SOURCE, reason)
}

fn of_config(config: Config<'_>, patch: u64, cuts: bool) -> Result<PictureInput, Error> {
    let class = config.text("image_processor_type").ok_or_else(|| fail("`image_processor_type` is missing"))?;
    let name = ["Fast", "Pil"].iter().find_map(|suffix| class.strip_suffix(suffix)).unwrap_or(class);
    let found = CLASSES.iter().find(|(own, _)| *own == name);
    let Some((_, defaults)) = found else {
        let known: Vec<&str> = CLASSES.iter().map(|(name, _)| *name).collect();
        return Err(fail(format!("`image_processor_type` is `{class}`, expected one of {}", known.join(", "))));
    };
    for step in ["do_resize", "do_rescale"] {
        // The processor of LFM2-VL resizes in any case.
        let is_used = step == "do_rescale" || defaults.kind != ProcessorKind::Fitted;
        if config.flag(step)? == Some(false) && is_used {
            return Err(fail(format!("`{step}` is false; pictures that are used as they are cannot be run yet")));
        }
    }
    if config.flag("do_pan_and_scan")? == Some(true) {
        return Err(fail("`do_pan_and_scan` is true; pictures in several parts cannot be run yet"));
    }
    let normalizes = config.flag("do_normalize")?.unwrap_or(defaults.kind != ProcessorKind::Tokens);
    let channels = |key: &str, default: [f64; 3], neutral: f64| -> Result<[f64; 3], Error> {
        let own = channels(config, key)?.unwrap_or(default);
        Ok(if normalizes { own } else { [neutral; 3] })
    };
    let patch = match defaults.kind {
        ProcessorKind::Fitted => config.unsigned("encoder_patch_size")?.unwrap_or(16),
        _ => side_of_patch(config)?.unwrap_or(patch),
    };
    let block = match defaults.kind {
        ProcessorKind::Area => config.unsigned("merge_size")?.unwrap_or(2),
        ProcessorKind::Fitted => config.unsigned("downsample_factor")?.unwrap_or(2),
        _ => 1,
    };
    let frames = match defaults.kind {
        ProcessorKind::Area => config.unsigned("temporal_patch_size")?.unwrap_or(2),
        _ => 1,
    };
    let input = PictureInput {
        resize: resize(config, defaults.kind, [patch, block], cuts)?,
        filter: filter(config, defaults.filter)?,
        scale: config.float("rescale_factor")?.unwrap_or(1.0 / 255.0),
        mean: channels("image_mean", defaults.mean, 0.0)?,
        deviation: channels("image_std", defaults.deviation, 1.0)?,
        patch,
        block,
        frames,
        order: match defaults.kind {
            ProcessorKind::Tokens | ProcessorKind::Fitted => PatchOrder::Pixels,
            _ => PatchOrder::Channels,
        },
    };
    input.check().map_err(fail)
}

/// Reads the side of a patch, which is a number, or the two sides of a square.
fn side_of_patch(config: Config<'_>) -> Result<Option<u64>, Error> {
    let Some(Value::Object(_)) = config.value("patch_size") else { return config.unsigned("patch_size") };
    let Some(sides) = config.object("patch_size")? else { return Ok(None) };
    let (height, width) = (sides.required("height")?, sides.required("width")?);
    if height == width {
        Ok(Some(height))
    } else {
        Err(fail(format!("patches are {width} x {height}, expected squares")))
    }
}

/// Reads a number for each channel.
fn channels(config: Config<'_>, key: &str) -> Result<Option<[f64; 3]>, Error> {
    let Some(list) = config.list(key)? else { return Ok(None) };
    let numbers: Option<Vec<f64>> = list.iter().map(Value::as_f64).collect();
    let numbers = numbers.and_then(|numbers| <[f64; 3]>::try_from(numbers).ok());
    numbers.map(Some).ok_or_else(|| fail(format!("`{key}` has {} values, expected three numbers", list.len())))
}

/// Reads the filter, which is a number of Pillow.
fn filter(config: Config<'_>, default: PictureFilter) -> Result<PictureFilter, Error> {
    match config.unsigned("resample")? {
        None => Ok(default),
        Some(1) => Ok(PictureFilter::Lanczos),
        Some(2) => Ok(PictureFilter::Bilinear),
        Some(3) => Ok(PictureFilter::Bicubic),
        Some(4) => Ok(PictureFilter::Box),
        Some(5) => Ok(PictureFilter::Hamming),
        Some(other) => Err(fail(format!("`resample` is {other}, expected 1 to 5"))),
    }
}

/// Reads the rule of sizes; `cuts` says whether an arrangement of tiles is used in any case.
fn resize(
    config: Config<'_>,
    kind: ProcessorKind,
    [patch, block]: [u64; 2],
    cuts: bool,
) -> Result<PictureResize, Error> {
    let size = Sides::read(config, "size")?;
    let multiple = patch.saturating_mul(block);
    Ok(match kind {
        ProcessorKind::Area => PictureResize::Area {
            multiple,
            least: config.unsigned("min_pixels")?.or(size.side("shortest_edge")?).unwrap_or(56 * 56),
            most: config.unsigned("max_pixels")?.or(size.side("longest_edge")?).unwrap_or(28 * 28 * 1280),
        },
        ProcessorKind::Fixed => PictureResize::Fixed {
            width: size.side("width")?.unwrap_or(224),
            height: size.side("height")?.unwrap_or(224),
        },
        ProcessorKind::Cropped => {
            let crop = Sides::read(config, "crop_size")?;
            if config.flag("do_center_crop")? == Some(false) {
                return Err(fail(
                    "`do_center_crop` is false; pictures of any shape cannot be run with this processor yet",
                ));
            }
            PictureResize::Cropped {
                shorter: size.side("shortest_edge")?.unwrap_or(224),
                width: crop.side("width")?.unwrap_or(224),
                height: crop.side("height")?.unwrap_or(224),
            }
        }
        ProcessorKind::Longest => {
            PictureResize::Longest { longest: size.side("longest_edge")?.unwrap_or(1024), multiple }
        }
        ProcessorKind::Tiles => {
            let longest = size.side("longest_edge")?.unwrap_or(4 * 364);
            let tile = Sides::read(config, "max_image_size")?.side("longest_edge")?.unwrap_or(364);
            match config.flag("do_image_splitting")? {
                Some(false) => PictureResize::Square { longest, side: tile },
                _ => PictureResize::Tiles { longest, tile },
            }
        }
        ProcessorKind::Arranged => {
            let [width, height] = [size.side("width")?.unwrap_or(384), size.side("height")?.unwrap_or(384)];
            let most = config.unsigned("max_patches")?.unwrap_or(12);
            let cuts = cuts || config.flag("crop_to_patches")?.unwrap_or(false);
            if cuts && most > 1 {
                PictureResize::Arranged { width, height, least: config.unsigned("min_patches")?.unwrap_or(1), most }
            } else {
                PictureResize::Fixed { width, height }
            }
        }
        ProcessorKind::Fitted => fitted(config, multiple)?,
        ProcessorKind::Padded => padded(config, size.side("shortest_edge")?.or(size.side("height")?).unwrap_or(336))?,
        ProcessorKind::Tokens => {
            let kernel = config.unsigned("pooling_kernel_size")?.unwrap_or(3);
            let tokens = config.unsigned("max_soft_tokens")?.unwrap_or(280);
            let multiple = multiple.saturating_mul(kernel);
            PictureResize::Largest { multiple, most: tokens.saturating_mul(multiple.saturating_mul(multiple)) }
        }
    })
}

/// Reads the arrangements of tiles of `LLaVA` 1.6, whose sides have `tile` pixels.
fn padded(config: Config<'_>, tile: u64) -> Result<PictureResize, Error> {
    let crop = Sides::read(config, "crop_size")?;
    if let Some(other) = crop.side("height")?.filter(|side| *side != tile) {
        return Err(fail(format!("tiles of {tile} pixels are cut to {other}, expected the same")));
    }
    let sizes = match config.list("image_grid_pinpoints")? {
        Some(list) => list.iter().map(sides_of).collect::<Option<Vec<_>>>(),
        None => Some(
            [[1, 2], [2, 1], [2, 2], [3, 1], [1, 3]]
                .map(|[rows, columns]: [u64; 2]| [rows.saturating_mul(tile), columns.saturating_mul(tile)])
                .to_vec(),
        ),
    };
    let sizes = sizes.ok_or_else(|| fail("`image_grid_pinpoints` is not a list of heights and widths"))?;
    Ok(PictureResize::Padded { tile, grids: grids(&sizes, tile).map_err(fail)? })
}

fn sides_of(item: &Value) -> Option<[u64; 2]> {
    let sides: Option<Vec<u64>> = item.as_array()?.iter().map(Value::as_u64).collect();
    sides?.try_into().ok()
}

/// Returns the arrangements of tiles of pictures with these heights and widths.
///
/// # Errors
/// There are too many, or one of them is not a whole number of tiles; the text is the reason.
pub(crate) fn grids(sizes: &[[u64; 2]], tile: u64) -> Result<[[u8; 2]; MOST_GRIDS], String> {
    let mut grids = [[0; 2]; MOST_GRIDS];
    if sizes.len() > MOST_GRIDS {
        return Err(format!("there are {} arrangements of tiles, expected at most {MOST_GRIDS}", sizes.len()));
    }
    for (grid, [height, width]) in grids.iter_mut().zip(sizes) {
        let tiles =
            |side: &u64| u8::try_from(side.checked_div(tile)?).ok().filter(|count| u64::from(*count) * tile == *side);
        let (Some(columns), Some(rows)) = (tiles(width), tiles(height)) else {
            return Err(format!("an arrangement of {width} x {height} pixels is not made of tiles of {tile}"));
        };
        *grid = [columns, rows];
    }
    Ok(grids)
}

/// Reads the sizes of LFM2-VL's processor, whose numbers of tokens are those of squares of
/// `multiple` pixels.
#[expect(clippy::cast_sign_loss, reason = "the tolerance is at least 1")]
fn fitted(config: Config<'_>, multiple: u64) -> Result<PictureResize, Error> {
    let token = multiple.saturating_mul(multiple);
    let pixels = |key: &str, usual: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(usual).saturating_mul(token));
    let (least, most) = (pixels("min_image_tokens", 64)?, pixels("max_image_tokens", 256)?);
    let tolerance = config.float("max_pixels_tolerance")?.unwrap_or(2.0);
    if !tolerance.is_finite() || tolerance < 1.0 {
        return Err(fail(format!("`max_pixels_tolerance` is {tolerance}, expected at least 1")));
    }
    let tiles = LargeTiles {
        above: (most as f64 * tolerance) as u64,
        side: config.unsigned("tile_size")?.unwrap_or(512),
        least: config.unsigned("min_tiles")?.unwrap_or(2),
        most: config.unsigned("max_tiles")?.unwrap_or(10),
        has_copy: config.flag("use_thumbnail")?.unwrap_or(true),
    };
    let cuts = config.flag("do_image_splitting")?.unwrap_or(true) && [tiles.least, tiles.most] != [1, 1];
    Ok(PictureResize::Fitted { multiple, least, most, tiles: cuts.then_some(tiles) })
}

/// A size in a config: an object with named sides, or a number for each of them.
struct Sides<'a> {
    of: Option<Config<'a>>,
    number: Option<u64>,
}

impl<'a> Sides<'a> {
    fn read(config: Config<'a>, key: &str) -> Result<Self, Error> {
        match config.value(key) {
            Some(Value::Object(_)) => Ok(Self { of: config.object(key)?, number: None }),
            _ => Ok(Self { of: None, number: config.unsigned(key)? }),
        }
    }

    fn side(&self, key: &str) -> Result<Option<u64>, Error> {
        self.of.map_or(Ok(self.number), |of| of.unsigned(key))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(settings: &Value) -> Result<PictureInput, String> {
        picture_input(settings.to_string().as_bytes(), 16).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_those_of_the_class_or_of_the_file() {
        let own = json!({"image_processor_type": "SiglipImageProcessorFast", "size": 64});
        let input = read(&json!({"image_processor": own, "processor_class": "P"})).expect("settings");
        assert_eq!(input.resize, PictureResize::Fixed { width: 64, height: 64 });
        assert_eq!((input.filter, input.mean, input.patch), (PictureFilter::Bicubic, HALF, 16));
        assert_eq!(input.patch_width(), 768);
        let qwen = json!({"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "resample": 1,
            "size": {"shortest_edge": 784, "longest_edge": 78400}, "do_normalize": false});
        let input = read(&qwen).expect("settings");
        assert_eq!(input.resize, PictureResize::Area { multiple: 28, least: 784, most: 78_400 });
        assert_eq!((input.filter, input.mean, input.deviation), (PictureFilter::Lanczos, [0.0; 3], [1.0; 3]));
        assert_eq!((input.block, input.frames, input.patch_width()), (2, 2, 1176));
        let own = json!({"image_processor_type": "GotOcr2ImageProcessor", "crop_to_patches": false});
        for (class, resize) in [
            ("InternVLProcessor", PictureResize::Arranged { width: 384, height: 384, least: 1, most: 12 }),
            ("GotOcr2Processor", PictureResize::Fixed { width: 384, height: 384 }),
        ] {
            let input = read(&json!({"image_processor": own, "processor_class": class})).expect("settings");
            assert_eq!(input.resize, resize, "{class}");
        }
    }

    #[test]
    fn unsupported_settings_are_named() {
        let with = |more: Value| {
            let mut settings = json!({"image_processor_type": "CLIPImageProcessor"});
            settings.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
            read(&settings).expect_err("refused")
        };
        for (more, says) in [
            (json!({"image_processor_type": "SamImageProcessor"}), "`image_processor_type` is `SamImageProcessor`"),
            (json!({"image_processor_type": null}), "`image_processor_type` is missing"),
            (json!({"do_resize": false}), "`do_resize` is false"),
            (json!({"do_center_crop": false}), "`do_center_crop` is false"),
            (json!({"resample": 0}), "`resample` is 0"),
            (json!({"image_mean": [0.5]}), "`image_mean` has 1 values"),
            (json!({"image_std": [0.5, 0.0, 0.5]}), "is 0, expected a positive number"),
            (json!({"rescale_factor": -1.0}), "is -1, expected a positive number"),
            (json!({"size": {"shortest_edge": 200}}), "a picture of 200 pixels is cut to 224 x 224"),
            (json!({"crop_size": {"height": 10, "width": 96}}), "10 pixels are 0 patches"),
            (json!({"size": "large"}), "`size`"),
            (json!({"patch_size": {"height": 16, "width": 8}}), "patches are 8 x 16"),
            (json!({"patch_size": 0}), "pixels of a patch's side is 0"),
        ] {
            let error = with(more);
            assert!(error.contains(says) && error.starts_with(SOURCE), "{error}");
        }
        assert!(picture_input(b"[]", 16).is_err());
    }

    #[test]
    fn bounds_are_checked() {
        for settings in [
            json!({"image_processor_type": "Qwen2VLImageProcessor", "max_pixels": 100}),
            json!({"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 90_000, "max_pixels": 80_000}),
            json!({"image_processor_type": "Qwen2VLImageProcessor", "max_pixels": u64::MAX}),
            json!({"image_processor_type": "Qwen2VLImageProcessor", "patch_size": u64::MAX}),
            json!({"image_processor_type": "Qwen2VLImageProcessor", "merge_size": 0}),
            json!({"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": u64::MAX}),
            json!({"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 0}}),
            json!({"image_processor_type": "Idefics3ImageProcessor", "max_image_size": {"longest_edge": 12}}),
            json!({"image_processor_type": "Lfm2VlImageProcessor", "encoder_patch_size": 16, "tile_size": 500}),
            json!({"image_processor_type": "Lfm2VlImageProcessor", "max_pixels_tolerance": 0.5}),
            json!({"image_processor_type": "Lfm2VlImageProcessor", "min_tiles": 3, "max_tiles": 2}),
            json!({"image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": [[336, 500]]}),
            json!({"image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": []}),
            json!({"image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": u64::MAX}}),
            json!({"image_processor_type": "GotOcr2ImageProcessor", "crop_to_patches": true, "max_patches": 5000}),
            json!({"image_processor_type": "GotOcr2ImageProcessor", "crop_to_patches": true, "min_patches": 0}),
            json!({"image_processor_type": "SiglipImageProcessor", "size": {"height": 1_u64 << 40, "width": 64}}),
        ] {
            assert!(read(&settings).is_err(), "{settings}");
        }
    }
}
