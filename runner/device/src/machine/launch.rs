//! A launch of a kernel, kept to be repeated.

/// A recorded launch.
pub(crate) struct Launch {
    pub(crate) kernel: String,
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: usize,
    pub(crate) shared: usize,
    /// Bytes of its arguments, aligned to 8.
    pub(crate) arguments: Vec<u64>,
    pub(crate) size: usize,
}
