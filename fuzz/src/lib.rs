//! Shared parts of the fuzz targets: files and a registry's storage in memory, the rendering of
//! templates, and inputs of several parts.

mod rendering;
mod shelf;
mod virtual_file;

pub use rendering::render;
pub use shelf::Shelf;
pub use virtual_file::VirtualFile;

/// Separates the parts of an input, on a separate line, so that seeds are readable text.
pub const SEPARATOR: &str = "\n====\n";

/// Splits an input into its parts.
pub fn parts(bytes: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.windows(SEPARATOR.len()).position(|window| window == SEPARATOR.as_bytes()) {
        parts.push(&rest[..at]);
        rest = &rest[at + SEPARATOR.len()..];
    }
    parts.push(rest);
    parts
}

/// Asserts that an error has a message.
pub fn assert_told(error: &dyn std::error::Error) {
    assert!(!error.to_string().trim().is_empty(), "an error without a text: {error:?}");
}
