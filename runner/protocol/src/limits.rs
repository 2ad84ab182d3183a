//! What a runner has in memory at a time, at most. The runner keeps to these numbers, and the daemon's plan counts with them.

/// Tokens of a prompt that are computed at a time.
pub const CHUNK: usize = 256;
/// Attention scores on the CPU, unless a single token has more.
pub const CPU_SCORES: usize = 1 << 22;
/// Attention scores of one layer on another device.
pub const DEVICE_SCORES: usize = 1 << 25;
