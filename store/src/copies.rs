//! Copies of blobs into a store: from other files, from a root, from another store.

use content::{Digest, Expected, IngestId};

use crate::{BlobFile, Blobs, Error};

impl Blobs<'_> {
    /// Copies a blob that lies in other files or in a root into the store; returns whether it did.
    /// A blob that only the tier has is not copied.
    ///
    /// # Errors
    /// A file no longer has the bytes, or the disk is full.
    pub fn copy_here(&self, digest: &Digest) -> Result<bool, Error> {
        if self.size_on_disk(digest)?.is_some() {
            return Ok(false);
        }
        let blob = match self.open_extents(digest) {
            Ok(Some(blob)) => blob,
            found => match self.open_in_roots(digest) {
                Some(blob) => blob,
                None => return found.map(|_| false),
            },
        };
        self.copy_from(digest, &blob).map(|()| true)
    }

    /// Copies a blob from another place, verified on the way. It is committed when this returns.
    ///
    /// # Errors
    /// The blob cannot be read or has other bytes than its digest says, or the disk is full.
    pub fn copy_from(&self, digest: &Digest, source: &BlobFile) -> Result<(), Error> {
        let expected = Expected::Blob { digest: *digest, size: source.size() };
        let mut ingest = self.start_ingest(&IngestId::of(digest), expected)?;
        // A transfer of the blob that broke off may have left its first bytes.
        match source.each_piece(ingest.offset(), |piece| ingest.append(piece)) {
            Ok(()) => ingest.commit().map(drop),
            Err(error) => {
                ingest.cancel()?;
                Err(error)
            }
        }
    }
}
