//! Limits on how much is read of untrusted documents.

/// Maximum size of a config, template or similar document in bytes; protects memory.
pub const MAX_DOCUMENT: u64 = 64 << 20;
