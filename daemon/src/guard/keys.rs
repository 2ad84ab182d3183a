//! API keys, stored in a file with one line per key.
//!
//! ```text
//! # name   SHA-256 of the key, in hexadecimal                                        scopes
//! ci       2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae          read,run
//! ```
//!
//! A key has 256 random bits, so guessing is hopeless and a fast hash suffices. The file is read
//! again after a change.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use content::Digest;
use content::operation::{Context, OperationError, Result};
use content::{bail, ensure};
use rand::RngCore;

use super::scope::Scope;

/// Prefix of keys, which makes a leaked key recognizable.
const PREFIX: &str = "lode-";

/// The keys of a file. Clones share the parsed file.
#[derive(Clone, Debug)]
pub(crate) struct Keys(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    read: Mutex<Read>,
}

/// The parsed contents of a version of the file.
#[derive(Debug)]
struct Read {
    version: Version,
    owners: HashMap<String, Owner>,
}

/// Modification time and length of the file, which identify a version.
type Version = (Option<SystemTime>, u64);

/// The owner of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Name of the key, for messages.
    pub(super) name: String,
    /// Scopes of the key.
    pub(super) scopes: Vec<Scope>,
}

impl Keys {
    /// Reads the file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let read = Read { version: version(path)?, owners: owners(path)? };
        Ok(Self(Arc::new(Inner { path: path.to_owned(), read: Mutex::new(read) })))
    }

    /// Returns the owner of a key; `None` if the key is unknown.
    ///
    /// # Errors
    /// The file has changed and cannot be read.
    pub(super) fn find(&self, key: &str) -> Result<Option<Owner>> {
        // No panic can leave the state half-changed, so a poisoned lock is usable.
        let mut read = self.0.read.lock().unwrap_or_else(PoisonError::into_inner);
        let version = version(&self.0.path)?;
        if version != read.version {
            *read = Read { version, owners: owners(&self.0.path)? };
        }
        Ok(read.owners.get(&hash(key)).cloned())
    }
}

fn version(path: &Path) -> Result<Version> {
    let metadata = std::fs::metadata(path).with_context(|| format!("cannot read the API keys `{}`", path.display()))?;
    Ok((metadata.modified().ok(), metadata.len()))
}

fn owners(path: &Path) -> Result<HashMap<String, Owner>> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read the API keys `{}`", path.display()))?;
    let mut owners = HashMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if !line.is_empty() && !line.starts_with('#') {
            let (hash, owner) =
                self::line(line).with_context(|| format!("line {number} of the API keys `{}`", path.display()))?;
            owners.insert(hash, owner);
        }
    }
    Ok(owners)
}

fn line(line: &str) -> Result<(String, Owner)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [name, hash, scopes] = fields[..] else {
        bail!("it has {} fields, expected a name, a hash and scopes; `lode key NAME` prints such lines", fields.len())
    };
    ensure!(
        hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "`{hash}` is not a SHA-256 in hexadecimal; `lode key NAME` prints lines with one"
    );
    let scopes = scopes.split(',').map(|scope| scope.parse().map_err(OperationError::text)).collect::<Result<_>>()?;
    Ok((hash.to_ascii_lowercase(), Owner { name: name.to_owned(), scopes }))
}

fn hash(key: &str) -> String {
    Digest::of(key.as_bytes()).hex()
}

/// Generates a key. Returns it and its line for the file.
///
/// # Errors
/// The name is not a valid first word of a line.
pub fn make(name: &str, scopes: &[Scope]) -> Result<(String, String)> {
    let fits = |c: char| !c.is_whitespace() && !c.is_control();
    ensure!(
        !name.is_empty() && !name.starts_with('#') && name.chars().all(fits),
        "`{name}` cannot be the name of a key: it is one word that does not begin with `#`"
    );
    let mut bits = [0; 32];
    rand::rng().fill_bytes(&mut bits);
    // The hash of random bits is as hard to guess as the bits, and already has a hexadecimal form.
    let key = format!("{PREFIX}{}", Digest::of(&bits).hex());
    let scopes: Vec<&str> = scopes.iter().map(|scope| scope.name()).collect();
    let line = format!("{name} {} {}", hash(&key), scopes.join(","));
    Ok((key, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_and_files_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys");
        let (key, line) = make("ci", &[Scope::Read, Scope::Run]).expect("a key");
        assert!(!line.contains(&key), "the file does not have the key");
        std::fs::write(&path, format!("# who\n\n{line}\n")).expect("a file");
        let keys = Keys::open(&path).expect("keys");
        let owner = keys.find(&key).expect("read").expect("known");
        assert_eq!(owner, Owner { name: "ci".to_owned(), scopes: vec![Scope::Read, Scope::Run] });
        assert_eq!(keys.find("lode-").expect("read"), None);
        let (other, line) = make("other", &[Scope::Admin]).expect("a key");
        std::fs::write(&path, line).expect("a file");
        assert_eq!(keys.find(&key).expect("read"), None, "taken out of the file");
        assert!(keys.find(&other).expect("read").is_some());
        std::fs::remove_file(&path).expect("removed");
        assert!(keys.find(&other).is_err(), "without the file nobody is known");
    }

    #[test]
    fn lines_say_what_is_wrong() {
        let hash = "0".repeat(64);
        for (text, expect) in [
            ("a".to_owned(), "1 fields"),
            (format!("a {hash} read,fly"), "`fly` is not a scope"),
            ("a 00 read".to_owned(), "not a SHA-256"),
            (format!("a {hash} read extra"), "4 fields"),
        ] {
            let error = line(&text).expect_err(expect);
            assert!(error.to_string().contains(expect), "{error}");
        }
        assert!(make("two words", &[]).is_err() && make("", &[]).is_err() && make("#a", &[]).is_err());
    }
}
