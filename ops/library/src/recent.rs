//! Cache of the contents of recently used models. Contents under a digest do not change, so only
//! contents that were read without errors are cached. A repair clears the cache. Names are resolved
//! at each use.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use content::Digest;

use crate::model::Contents;

/// Maximum number of cached models: more than most machines have loaded at a time.
const MOST: usize = 16;

/// The most recently used contents, the latest at the end.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<VecDeque<Contents>>);

impl Recent {
    fn all(&self) -> MutexGuard<'_, VecDeque<Contents>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the cached contents of a model without counting as a use, for callers that iterate
    /// over all models.
    pub(crate) fn peek(&self, manifest: &Digest) -> Option<Contents> {
        self.all().iter().find(|contents| contents.manifest.digest() == manifest).cloned()
    }

    /// Returns the cached contents of a model and marks them as the most recently used.
    pub(crate) fn get(&self, manifest: &Digest) -> Option<Contents> {
        let found = self.peek(manifest)?;
        Some(self.remember(found))
    }

    /// Caches contents as the most recently used. Returns the shared contents if another request
    /// has cached them already.
    pub(crate) fn remember(&self, contents: Contents) -> Contents {
        let mut all = self.all();
        let same = |other: &Contents| other.manifest.digest() == contents.manifest.digest();
        let shared = all.iter().position(same).and_then(|position| all.remove(position)).unwrap_or(contents);
        all.push_back(shared.clone());
        if all.len() > MOST {
            all.pop_front();
        }
        shared
    }

    /// Removes a model that no name refers to any more.
    pub(crate) fn forget(&self, manifest: &Digest) {
        self.all().retain(|contents| contents.manifest.digest() != manifest);
    }

    /// Clears the cache, because its contents may have been read from damaged blobs.
    pub(crate) fn clear(&self) {
        self.all().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use manifests::ManifestBuilder;

    use super::*;
    use crate::parsed_facts::{ParsedFacts, Unknown};

    fn contents(number: u8) -> Contents {
        let config =
            content::Descriptor { media_type: manifests::media_types::CONFIG, digest: Digest::of(&[number]), size: 1 };
        let builder = ManifestBuilder { config, layers: Vec::new(), annotations: std::collections::BTreeMap::new() };
        let manifest = Arc::new(builder.build().expect("a manifest"));
        let parsed_facts = Arc::new(ParsedFacts::Unknown(Unknown::because("a test")));
        Contents { manifest, config: Arc::default(), parsed_facts, own: Arc::default() }
    }

    #[test]
    fn the_latest_stay() {
        let recent = Recent::default();
        let all: Vec<Contents> = (0..20).map(contents).collect();
        let digest = |number: usize| *all[number].manifest.digest();
        for contents in &all[..MOST] {
            recent.remember(contents.clone());
        }
        assert!(recent.get(&digest(0)).is_some() && recent.peek(&digest(1)).is_some());
        recent.remember(all[MOST].clone());
        assert!(recent.peek(&digest(0)).is_some(), "it was used since");
        assert!(recent.peek(&digest(1)).is_none(), "it was only looked at");
        recent.forget(&digest(0));
        assert!(recent.peek(&digest(0)).is_none());
        recent.clear();
        assert!(all.iter().all(|contents| recent.peek(contents.manifest.digest()).is_none()));
    }

    #[test]
    fn two_that_read_at_once_share() {
        let recent = Recent::default();
        let first = recent.remember(contents(1));
        let second = recent.remember(contents(1));
        assert!(Arc::ptr_eq(&first.own, &second.own));
    }
}
