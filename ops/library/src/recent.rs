//! The models that were used lately, as they were read. What a digest names does not change, so only what could be read
//! as it should be is remembered; a repair forgets all of it, and a name is looked up each time.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use content::Digest;

use crate::model::Contents;

/// How many are remembered: more than are loaded at a time on most machines.
const MOST: usize = 16;

/// The contents that were asked for last, the latest at the end.
#[derive(Debug, Default)]
pub(crate) struct Recent(Mutex<VecDeque<Contents>>);

impl Recent {
    fn all(&self) -> MutexGuard<'_, VecDeque<Contents>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The contents of the model with that manifest, if they are remembered, for somebody who looks at all models.
    pub(crate) fn peek(&self, manifest: &Digest) -> Option<Contents> {
        self.all().iter().find(|contents| contents.manifest.digest() == manifest).cloned()
    }

    /// The same, for somebody who uses the model.
    pub(crate) fn get(&self, manifest: &Digest) -> Option<Contents> {
        let found = self.peek(manifest)?;
        Some(self.remember(found))
    }

    /// Remembers contents as the latest. Gives those that others share, where somebody was faster.
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

    /// Forgets a model that nobody can ask for any more.
    pub(crate) fn forget(&self, manifest: &Digest) {
        self.all().retain(|contents| contents.manifest.digest() != manifest);
    }

    /// Forgets everything: what was read may have been damaged.
    pub(crate) fn clear(&self) {
        self.all().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use manifests::ManifestBuilder;

    use super::*;
    use crate::understood::{Understood, Unknown};

    fn contents(number: u8) -> Contents {
        let config =
            content::Descriptor { media_type: manifests::media_types::CONFIG, digest: Digest::of(&[number]), size: 1 };
        let builder = ManifestBuilder { config, layers: Vec::new(), annotations: std::collections::BTreeMap::new() };
        let manifest = Arc::new(builder.build().expect("a manifest"));
        let understood = Arc::new(Understood::Unknown(Unknown::because("a test")));
        Contents { manifest, config: Arc::default(), understood, own: Arc::default() }
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
