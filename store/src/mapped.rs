//! Bytes of blobs without a copy: windows of the file mapped into memory.
//!
//! What is sent to a peer goes from the page cache to the socket; nothing of it is in memory of our own.
#![expect(unsafe_code, reason = "mapping files")]

use std::ops::Range;

use bytes::Bytes;
use memmap2::{Mmap, MmapOptions};

use crate::{BlobFile, Error};

/// Below this a copy is cheaper than a mapping, in bytes.
const WORTH_IT: u64 = 64 << 10;

struct Window(Mmap);

impl AsRef<[u8]> for Window {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl BlobFile {
    /// Bytes of the blob, cut at its end; mapped where that is worth it. They are in the page cache when this returns.
    pub fn bytes(&self, range: Range<u64>) -> Result<Bytes, Error> {
        let end = range.end.min(self.size());
        let start = range.start.min(end);
        if end - start < WORTH_IT {
            return self.read(start..end).map(Bytes::from);
        }
        let mut options = MmapOptions::new();
        options.offset(start).len((end - start) as usize).populate();
        // SAFETY: a blob's file is read-only, complete before it got its name, and never written or truncated
        // afterwards; deleting it keeps the mapped pages. Its size was read from the open file, so no page lies beyond it.
        let window = unsafe { options.map(self.file()) }.map_err(|e| Error::io("map", self.path(), e))?;
        Ok(Bytes::from_owner(Window(window)))
    }
}
