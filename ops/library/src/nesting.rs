//! Limit on the nesting of indexes.
//!
//! A client can push an index of indexes of indexes. Each level costs the client a few hundred
//! bytes, but costs time in every walk over a model's blobs. Incoming documents are therefore
//! limited in depth, and no walk recurses.

use std::collections::HashSet;

use content::Digest;
use content::operation::Result;
use manifests::Document;

use crate::library::Library;

/// Maximum number of nested documents. Images of several platforms with attestations have two
/// levels.
const MOST_LEVELS: usize = 8;

impl Library {
    /// Refuses a document that would be nested too deeply, or that contains too many levels.
    ///
    /// # Errors
    /// [`content::Error::TooDeep`], or the store cannot be read.
    pub fn ensure_flat(&self, digest: &Digest, document: &Document) -> Result<(), content::Error> {
        if !matches!(document, Document::Index(_)) {
            return Ok(());
        }
        let below = levels(document.children().manifests, |digest| {
            let document = self.document(digest).ok().flatten();
            document.map(|document| document.children().manifests).unwrap_or_default()
        });
        let above = levels(self.referrers(digest), |digest| self.referrers(digest));
        let levels = 1 + below + above;
        if levels > MOST_LEVELS {
            return Err(content::Error::TooDeep { digest: *digest, levels, most: MOST_LEVELS });
        }
        Ok(())
    }
}

/// Returns the number of levels from `first` on along the longest path, up to the limit. A document
/// counts on every level where it occurs, but only once per level.
fn levels(first: Vec<Digest>, next: impl Fn(&Digest) -> Vec<Digest>) -> usize {
    let (mut level, mut levels): (HashSet<Digest>, usize) = (first.into_iter().collect(), 0);
    while !level.is_empty() && levels < MOST_LEVELS {
        levels += 1;
        level = level.iter().flat_map(&next).collect();
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_way_counts() {
        // Each document refers to all below it, so the shortest path to the lowest one is a single
        // step.
        let named = |number: usize| Digest::of(number.to_string().as_bytes());
        let below = |digest: &Digest| {
            let number = (0..5).find(|number| named(*number) == *digest).expect("one of these");
            (0..number).map(named).collect()
        };
        assert_eq!(levels(vec![named(4)], below), 5);
    }
}
