//! Logins as Docker keeps them: `config.json`, and the helper programs that it names.
//!
//! ```json
//! {"auths": {"ghcr.io": {"auth": "base64 of user:password"}, "https://index.docker.io/v1/": {"identitytoken": "…"}},
//!  "credHelpers": {"gcr.io": "gcloud"}, "credsStore": "secretservice"}
//! ```
//!
//! Lode's own file has the same format, so that other tools can be pointed at it. Files are read anew for every search: they
//! are small, and people log in while a daemon runs.
//!
//! # After a crash
//! The file is the old one or the new one; a temporary file next to it may be left, with the same permissions.
//!
//! # Concurrency
//! Anybody may read at any time. Of two who write at once, one may be lost, as with Docker itself.

mod document;
mod helper;
mod replace;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::Error;
use super::credential::{Credential, Credentials};
use document::{Document, Keeper};
use helper::{Helper, Reply};

/// How long a helper may take: some ask people for a password, most ask a daemon.
const HELPER_LIMIT: Duration = Duration::from_secs(10);

/// A file of logins in Docker's format. The file need not exist.
#[derive(Clone)]
pub struct DockerConfig {
    path: PathBuf,
    /// Where programs are, as in `PATH`.
    search_path: OsString,
    helper_limit: Duration,
}

impl fmt::Debug for DockerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DockerConfig").field("path", &self.path).finish_non_exhaustive()
    }
}

impl DockerConfig {
    /// The file at `path`. Helpers are looked for in the folders of `search_path`, which has the form of the variable
    /// `PATH`, and in no others.
    pub fn new(path: PathBuf, search_path: OsString) -> Self {
        Self { path, search_path, helper_limit: HELPER_LIMIT }
    }

    /// Keeps a login: with the helper that the file names for `host`, or else in the file, which is readable by its
    /// owner only. What else the file has stays. Blocks.
    ///
    /// # Errors
    /// [`Error::Settings`] where the file or the helper cannot take it; [`Error::File`] where the disk fails.
    pub fn store(&self, host: &str, credential: &Credential) -> Result<(), Error> {
        let mut document = Document::read(&self.path)?.unwrap_or_default();
        match document.keeper(host)? {
            Keeper::File => document.set(host, credential)?,
            Keeper::Helper(name) | Keeper::DefaultHelper(name) => {
                self.helper(&name)?.store(&document::server(host), credential)?;
                // Docker marks hosts that a helper has in this way, and so do we.
                document.mark(host);
            }
        }
        replace::replace(&self.path, &document.to_bytes())
    }

    /// Forgets the login at `host`, in the file and with its helper; says whether there was one in the file. Blocks.
    ///
    /// # Errors
    /// As [`DockerConfig::store`].
    pub fn erase(&self, host: &str) -> Result<bool, Error> {
        let Some(mut document) = Document::read(&self.path)? else { return Ok(false) };
        let kept = document.keeper(host)?;
        let was_there = document.remove(host);
        if let Keeper::Helper(name) | Keeper::DefaultHelper(name) = kept {
            self.helper(&name)?.erase(&document::server(host))?;
        }
        if was_there {
            replace::replace(&self.path, &document.to_bytes())?;
        }
        Ok(was_there)
    }

    fn helper(&self, name: &str) -> Result<Helper, Error> {
        Helper::find(name, &self.search_path, self.helper_limit)?.ok_or_else(|| {
            Error::Settings(format!(
                "`{}` names the credential helper `docker-credential-{name}`, which is not installed; install it or remove \
                 its name from the file",
                self.path.display()
            ))
        })
    }

    /// Asks a helper. One that is not installed and was named for all hosts is passed over: such a file is what an
    /// uninstalled Docker leaves behind, and public models need no login.
    fn ask(&self, keeper: &Keeper, host: &str) -> Result<Option<Credential>, Error> {
        let helper = match keeper {
            Keeper::File => return Ok(None),
            Keeper::Helper(name) => self.helper(name)?,
            Keeper::DefaultHelper(name) => {
                let Some(helper) = Helper::find(name, &self.search_path, self.helper_limit)? else {
                    tracing::warn!(helper = name, file = %self.path.display(), "the credential helper is not installed");
                    return Ok(None);
                };
                helper
            }
        };
        match helper.get(&document::server(host))? {
            Reply::Credential(credential) => Ok(Some(credential)),
            Reply::NotFound => Ok(None),
        }
    }
}

impl Credentials for DockerConfig {
    fn find(&self, host: &str) -> Result<Option<Credential>, Error> {
        let Some(document) = Document::read(&self.path)? else { return Ok(None) };
        match self.ask(&document.keeper(host)?, host)? {
            Some(credential) => Ok(Some(credential)),
            None => document.find(host),
        }
    }
}

#[cfg(test)]
mod tests;
