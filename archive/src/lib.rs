//! Tar archives. Read and written here as streams: nothing is sought, and no member is ever in memory whole. Who can read
//! at any offset uses the same parser of what stands before members, [`Headers`].
//!
//! # Invariants
//! - The writer's bytes follow from paths, sizes and data: time 0, mode 0644, owner 0.
//! - The reader gives out relative paths without `..` only, of files and folders only. Links, devices and anything else
//!   that could reach outside of the archive end it.
//! - Extended headers are read into memory only up to [`MAX_EXTENDED`] bytes.
//!
//! Formats: POSIX ustar with pax records for long paths and large sizes; read are also GNU's long names and binary
//! sizes, and the headers of before ustar.

mod error;
mod header;
mod headers;
mod read;
mod write;

pub use error::Error;
pub use header::Block;
pub use headers::{Entry, Headers, Kind, Next};
pub use read::Reader;
pub use write::{END_SIZE, Writer, member_size};

/// The longest extended header that is read, in bytes.
pub const MAX_EXTENDED: u64 = 64 << 10;
/// The most members an archive may have.
pub const MAX_MEMBERS: u64 = 1 << 20;

/// Everything in an archive is a whole number of blocks of so many bytes.
pub const BLOCK: u64 = 512;

/// Bytes from the end of `size` bytes of data to the next block.
pub fn padding(size: u64) -> u64 {
    (BLOCK - size % BLOCK) % BLOCK
}

#[cfg(test)]
mod tests;
