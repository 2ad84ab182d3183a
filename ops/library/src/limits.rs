//! How much is read at a time of what anybody may have written.

/// Configs, templates and the like are smaller; a guard for memory, in bytes.
pub const MAX_DOCUMENT: u64 = 64 << 20;
