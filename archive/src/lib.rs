//! Tar archives, read and written as streams: neither side seeks, and no member is ever in memory
//! as a whole. Readers with random access use the same parser of headers, [`Headers`].
//!
//! # Invariants
//! - The writer's bytes depend on paths, sizes and data only: time 0, mode 0644, owner 0.
//! - The reader returns only files and folders, with relative paths without `..`. Links, devices
//!   and any other member that could reach outside of the archive end the reading with an error.
//! - Extended headers are read into memory only up to [`MAX_EXTENDED`] bytes.
//!
//! The writer produces POSIX ustar with pax records for long paths and large sizes. The reader also
//! accepts GNU's long names and binary sizes, and headers older than ustar.

mod error;
mod header;
mod headers;
mod read;
mod write;

pub use error::Error;
pub use header::HeaderBlock;
pub use headers::{Entry, Headers, Kind, Next};
pub use read::Reader;
pub use write::{END_SIZE, Writer, member_size};

/// Longest extended header that is read, in bytes.
pub const MAX_EXTENDED: u64 = 64 << 10;
/// Largest number of members in an archive.
pub const MAX_MEMBERS: u64 = 1 << 20;

/// Block size in bytes. Headers and padded data are whole numbers of blocks.
pub const BLOCK: u64 = 512;

/// Returns the number of padding bytes that follow `size` bytes of data up to the next block.
pub fn padding(size: u64) -> u64 {
    (BLOCK - size % BLOCK) % BLOCK
}

#[cfg(test)]
mod tests;
