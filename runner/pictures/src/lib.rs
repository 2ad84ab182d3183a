//! Pictures in prompts: from the bytes of a file to the pixels that a model takes.
//!
//! ```text
//! file ─▶ decode ─▶ Picture ─▶ resize ─▶ PictureParts ─▶ Patches
//! ```
//!
//! The crate is pure: the input is bytes, the output is values. It reads untrusted files, so it
//! runs in the sandboxed runner only.

mod decode;
#[cfg(any(test, feature = "testsuite"))]
pub mod made;
mod patches;
mod picture;
mod resample;
mod sizes;

pub use decode::{PictureError, PictureLimits, decode};
pub use patches::{Patches, PictureParts, patch_places, picture_parts};
pub use picture::{CHANNELS, Picture, PictureSize};
pub use resample::resize;
pub use sizes::SizeError;
