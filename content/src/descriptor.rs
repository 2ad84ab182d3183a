//! Descriptors: a blob as others refer to it.

use crate::{Digest, MediaType};

/// What is known of a blob without having it: its name, its length and what its bytes mean.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// What the bytes mean.
    pub media_type: MediaType,
    /// The name of the bytes.
    pub digest: Digest,
    /// Length in bytes.
    pub size: u64,
}

impl Descriptor {
    /// Describes `bytes`, hashed with SHA-256.
    pub fn of(media_type: MediaType, bytes: &[u8]) -> Self {
        Self { media_type, digest: Digest::of(bytes), size: bytes.len() as u64 }
    }
}
