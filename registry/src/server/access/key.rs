//! The secret key that signs tokens and links.
//!
//! On disk it is 32 bytes, which only the owner can read. It is written under another name and
//! renamed, so that a crash leaves the whole key or none. Each purpose has its own key, derived
//! from the secret, so that a signature for one purpose is never valid for another.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;

use super::AccessError;

const LENGTH: usize = 32;

/// 32 secret bytes. With them, one can create any token.
#[derive(Clone)]
pub struct TokenKey([u8; LENGTH]);

impl TokenKey {
    /// Creates a random key. Its tokens and links are valid until the process ends.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The key with these bytes; `None` unless there are 32.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Reads the key from a file, and creates the file if it does not exist. Its folder must exist.
    pub fn from_file(path: &Path) -> Result<Self, AccessError> {
        match File::open(path) {
            Ok(file) => Self::read(path, file),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let key = Self::random();
                key.write(path).map_err(|e| AccessError::io("write the key", path, e))?;
                Ok(key)
            }
            Err(e) => Err(AccessError::io("read the key", path, e)),
        }
    }

    fn read(path: &Path, file: File) -> Result<Self, AccessError> {
        let refused = |reason: String| AccessError::Key { path: path.to_owned(), reason };
        let mode = file.metadata().map_err(|e| AccessError::io("read the key", path, e))?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(refused(format!(
                "users other than its owner can read or write it (mode {:o}); run `chmod 600` on it",
                mode & 0o777
            )));
        }
        let mut bytes = Vec::with_capacity(LENGTH + 1);
        let read = file.take(LENGTH as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|e| AccessError::io("read the key", path, e))?;
        let key = bytes
            .try_into()
            .map_err(|_| refused(format!("expected exactly {LENGTH} bytes; remove the file, and a new key is made")))?;
        Ok(Self(key))
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        // The name is random: with a predictable name, another user with write access to the folder
        // could place a link there.
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{:016x}", rand::random::<u64>()));
        let temporary = path.with_file_name(name);
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(&self.0)?;
            file.sync_all()?;
            fs::rename(&temporary, path)
        };
        write().inspect_err(|_| {
            // The partial file is of no use.
            let _ = fs::remove_file(&temporary);
        })
    }

    /// The key for one purpose.
    pub(super) fn derive(&self, purpose: &str) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.tag(purpose).as_ref())
    }

    /// An identifier of the key that reveals nothing about it.
    pub(super) fn id(&self) -> String {
        URL_SAFE_NO_PAD.encode(&self.tag("lode registry key id").as_ref()[..8])
    }

    fn tag(&self, purpose: &str) -> hmac::Tag {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), purpose.as_bytes())
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_key_files_are_made_once_and_for_the_owner_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token.key");
        let made = TokenKey::from_file(&path).expect("a key is made");
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 1, "nothing else is left there");
        let again = TokenKey::from_file(&path).expect("it is read");
        assert_eq!(made.id(), again.id());
        assert_ne!(made.id(), TokenKey::random().id());
        assert!(!format!("{made:?}").contains(&made.id()));

        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("permissions");
        let open = TokenKey::from_file(&path).expect_err("others may read it").to_string();
        assert!(open.contains("chmod 600") && open.contains("token.key"), "{open}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("permissions");
        for bytes in [&b"short"[..], &[0; 33]] {
            fs::write(&path, bytes).expect("written");
            let wrong = TokenKey::from_file(&path).expect_err("of the wrong length").to_string();
            assert!(wrong.contains("32 bytes"), "{wrong}");
        }
        assert!(matches!(TokenKey::from_file(&folder.path().join("no/folder")), Err(AccessError::Io { .. })));
    }
}
