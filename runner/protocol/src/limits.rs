//! What a runner has in memory at a time, at most. The runner keeps to these numbers, and the daemon's plan counts with them.

/// Tokens of a prompt that are computed at a time.
pub const CHUNK: usize = 256;
/// Positions that a layer with a window keeps beside it: those of a chunk, and some more, so that an answer can be taken back
/// and another one be generated.
pub const AHEAD: usize = CHUNK + 256;
/// Copies of recurrent states that a slot keeps, beside the one that is computed with: what a prompt that goes on from
/// an earlier place can begin with.
pub const CHECKPOINTS: usize = 3;
/// Rows of queries that attend together on the CPU, and positions of keys that they see at a time.
pub const TILE: (usize, usize) = (96, 128);
/// Attention scores of one layer on a device that has none of our kernels, which need none in memory.
pub const DEVICE_SCORES: usize = 1 << 25;
/// Bytes of passes that are recorded on a device, all of a model's.
pub const DEVICE_RECORDINGS: usize = 128 << 20;
