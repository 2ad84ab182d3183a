//! Descriptors: references to blobs.

use crate::{Digest, MediaType};

/// Media type, digest and size of a blob. The blob itself need not be in the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// Media type of the bytes.
    pub media_type: MediaType,
    /// Digest of the bytes.
    pub digest: Digest,
    /// Length in bytes.
    pub size: u64,
}

impl Descriptor {
    /// Describes a blob of which only digest and size are known.
    pub const fn blob(digest: Digest, size: u64) -> Self {
        Self { media_type: MediaType::OCTET_STREAM, digest, size }
    }

    /// Describes `bytes`, hashed with SHA-256.
    pub fn of(media_type: MediaType, bytes: &[u8]) -> Self {
        Self { media_type, digest: Digest::of(bytes), size: bytes.len() as u64 }
    }
}
