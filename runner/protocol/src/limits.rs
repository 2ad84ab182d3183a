//! Limits on a runner's memory. The runner keeps to these numbers, and the daemon's load plan
//! relies on them.

/// Maximum number of prompt tokens that are computed at a time.
pub const CHUNK: usize = 256;
/// Positions that a sliding-window layer keeps in addition to its window: those of one chunk, and
/// 256 more, so that an answer can be rolled back and generated again.
pub const AHEAD: usize = CHUNK + 256;
/// Maximum number of checkpoints of recurrent states that a slot keeps, in addition to the current
/// state. A prompt that continues from an earlier position starts from a checkpoint.
pub const CHECKPOINTS: usize = 3;
/// Attention tile on the CPU: the number of query rows, and the number of key positions per step.
pub const TILE: (usize, usize) = (96, 128);
/// Maximum number of attention scores in memory at a time, on a device without our kernels. Our
/// kernels do not store scores.
pub const DEVICE_SCORES: usize = 1 << 25;
/// Maximum number of pictures in a prompt.
pub const PICTURES: usize = 64;
/// Maximum number of tokens that a picture becomes, with those around it.
pub const PICTURE_TOKENS: u64 = 4096 + 256;
/// Maximum bytes of computed pictures that a runner keeps for later prompts.
pub const ENCODED_PICTURES: usize = 64 << 20;
/// Maximum bytes of all recorded passes of a model on a device.
pub const DEVICE_RECORDINGS: usize = 128 << 20;
