//! The blobs that a collection keeps, in little memory: 64 bits of each digest.
//!
//! Two digests with the same 64 bits are taken for each other, so a blob that nothing refers to may
//! be kept, but none is deleted that something refers to.

use std::collections::HashSet;

use content::Digest;

/// A set of digests that may contain more than were added.
#[derive(Debug, Default)]
pub(crate) struct Reachable(HashSet<u64>);

impl Reachable {
    /// Adds a digest; returns whether it was new.
    pub(crate) fn insert(&mut self, digest: &Digest) -> bool {
        self.0.insert(digest.fingerprint())
    }

    pub(crate) fn contains(&self, digest: &Digest) -> bool {
        self.0.contains(&digest.fingerprint())
    }
}

impl Extend<Digest> for Reachable {
    fn extend<T: IntoIterator<Item = Digest>>(&mut self, digests: T) {
        self.0.extend(digests.into_iter().map(|digest| digest.fingerprint()));
    }
}
