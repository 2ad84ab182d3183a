//! Fuzzes the decoding of pictures and their way to a tower. A decoded picture is within the
//! limits, and has patches for every processor unless it is too narrow.
#![no_main]

use architectures::{PictureInput, picture_input};
use lode_fuzz::assert_told;
use pictures::{Patches, PictureLimits, decode, picture_parts};

/// Small, so that an input costs little time.
const LIMITS: PictureLimits = PictureLimits { bytes: 1 << 16, side: 2048, pixels: 1 << 18 };

/// Settings of processors, one of each kind.
const SETTINGS: [&str; 7] = [
    r#"{"image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}"#,
    r#"{"image_processor_type": "GotOcr2ImageProcessor", "size": 56, "crop_to_patches": true}"#,
    r#"{"image_processor_type": "Qwen2VLImageProcessor", "max_pixels": 65536}"#,
    r#"{"image_processor_type": "SiglipImageProcessor", "size": 56}"#,
    r#"{"image_processor_type": "CLIPImageProcessor", "size": 56, "crop_size": 56}"#,
    r#"{"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 128}}"#,
    r#"{"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 70}"#,
];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let picture = match decode(bytes, LIMITS) {
        Ok(picture) => picture,
        Err(error) => return assert_told(&error),
    };
    assert!(picture.size().pixels() <= LIMITS.pixels);
    for settings in SETTINGS {
        let input: PictureInput = picture_input(settings.as_bytes(), 14).expect("settings");
        match picture_parts(&picture, &input) {
            Ok(made) => {
                let tiles = made.columns * made.rows;
                assert_eq!(made.parts.len(), if tiles > 1 { tiles + 1 } else { 1 });
                for part in made.parts {
                    let part = Patches::of(&part, &input);
                    assert!(part.columns > 0 && part.rows > 0);
                    assert_eq!(part.numbers.len(), part.columns * part.rows * input.patch_width() as usize);
                    assert!(part.numbers.iter().all(|number| number.is_finite()));
                }
            }
            Err(error) => assert_told(&error),
        }
    }
});
