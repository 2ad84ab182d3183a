//! Facts that are derived from a model and cached as notes of the index. Each note carries the
//! version of the code that wrote it. A note of another version counts as absent, so no error of an
//! older build survives it.
//!
//! ```text
//! note = version "\n" JSON
//! ```

use content::Digest;
use content::operation::{Result, Unclassified};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::library::Library;

/// A kind of derived fact.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Derivation {
    /// Kind of the note in the index.
    pub(crate) kind: &'static str,
    /// Version of the deriving code. Increment it with changes outside of `architectures`, whose
    /// version is included automatically.
    pub(crate) version: u32,
}

impl Derivation {
    fn version(self) -> String {
        format!("{} {}", self.version, architectures::VERSION)
    }
}

impl Library {
    /// Returns the derived facts of the model with a manifest, from the cache or else from `make`.
    ///
    /// # Errors
    /// The errors of `make`.
    pub(crate) fn derived<T: Serialize + DeserializeOwned>(
        &self,
        derivation: Derivation,
        manifest: &Digest,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let version = derivation.version();
        let known = self.store.notes().get(derivation.kind, manifest);
        if let Some(value) = known.and_then(|note| remembered(&note, &version)) {
            return Ok(value);
        }
        let value = make()?;
        let note = format!("{version}\n{}", serde_json::to_string(&value).internal()?);
        self.store.notes().set(derivation.kind, manifest, note.as_bytes());
        Ok(value)
    }
}

fn remembered<T: DeserializeOwned>(note: &[u8], version: &str) -> Option<T> {
    let (own, value) = std::str::from_utf8(note).ok()?.split_once('\n')?;
    if own != version {
        return None;
    }
    serde_json::from_str(value).ok()
}

#[cfg(test)]
mod tests {
    use store::{Options, Store};

    use super::*;

    #[test]
    fn notes_of_another_version_are_made_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let library = Library::new(Store::open(folder.path(), Options::default()).expect("a store"));
        let about = Digest::of(b"a manifest");
        let derived = |version, value: &str| {
            let derivation = Derivation { kind: "test", version };
            library.derived(derivation, &about, || Ok(value.to_owned())).expect("it is made")
        };
        assert_eq!(derived(1, "first"), "first");
        assert_eq!(derived(1, "second"), "first", "it is remembered");
        assert_eq!(derived(2, "second"), "second");
        assert_eq!(derived(1, "third"), "third", "an older build does not trust a newer one either");
        for note in [&b"[]"[..], b"\xff\n1", b"", format!("1 {}\nno JSON", architectures::VERSION).as_bytes()] {
            library.store.notes().set("test", &about, note);
            assert_eq!(derived(1, "again"), "again", "{note:?}");
        }
    }
}
