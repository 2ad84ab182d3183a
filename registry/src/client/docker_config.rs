//! Logins in Docker's format: `config.json`, and the credential helpers that it names.
//!
//! ```json
//! {"auths": {"ghcr.io": {"auth": "base64 of user:password"}, "https://index.docker.io/v1/": {"identitytoken": "…"}},
//!  "credHelpers": {"gcr.io": "gcloud"}, "credsStore": "secretservice"}
//! ```
//!
//! Lode's own file has the same format, so that other tools can use it. Files are read again for
//! each search: they are small, and users log in while a daemon runs.
//!
//! # After a crash
//! The file has its old or its new content. A temporary file beside it may be left, with the same
//! permissions.
//!
//! # Concurrency
//! Any number of processes may read. If two processes write at once, one change may be lost, as
//! with Docker itself.

mod document;
mod helper;
mod replace;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::Error;
use super::credential::{Credential, Credentials};
use document::{ConfigFile, Keeper};
use helper::{Helper, Reply};

/// Timeout of a helper. Some ask the user for a password, most ask a daemon.
const HELPER_LIMIT: Duration = Duration::from_secs(10);

/// A file of logins in Docker's format. The file need not exist.
#[derive(Clone)]
pub struct DockerConfig {
    path: PathBuf,
    /// The folders of helper programs, in the form of `PATH`.
    search_path: OsString,
    helper_limit: Duration,
}

impl fmt::Debug for DockerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DockerConfig").field("path", &self.path).finish_non_exhaustive()
    }
}

impl DockerConfig {
    /// The file at `path`. Helpers are only searched in the folders of `search_path`, which has the
    /// form of the variable `PATH`.
    pub fn new(path: PathBuf, search_path: OsString) -> Self {
        Self { path, search_path, helper_limit: HELPER_LIMIT }
    }

    /// Stores a login: with the helper that the file names for `host`, or else in the file, which
    /// only its owner can read. The other content of the file stays. This blocks.
    ///
    /// # Errors
    /// [`Error::Settings`] if the file or the helper cannot store it; [`Error::File`] if the disk
    /// fails.
    pub fn store(&self, host: &str, credential: &Credential) -> Result<(), Error> {
        let mut document = ConfigFile::read(&self.path)?.unwrap_or_default();
        match document.keeper(host)? {
            Keeper::File => document.set(host, credential)?,
            Keeper::Helper(name) | Keeper::DefaultHelper(name) => {
                self.helper(&name)?.store(&document::server(host), credential)?;
                // Docker marks hosts whose login is in a helper like this.
                document.mark(host);
            }
        }
        replace::replace(&self.path, &document.to_bytes())
    }

    /// Removes the login at `host` from the file and from its helper. Returns whether the file had
    /// one. This blocks.
    ///
    /// # Errors
    /// See [`DockerConfig::store`].
    pub fn erase(&self, host: &str) -> Result<bool, Error> {
        let Some(mut document) = ConfigFile::read(&self.path)? else { return Ok(false) };
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

    /// Queries a helper. A helper for all hosts that is not installed is skipped: uninstalling
    /// Docker leaves such a file behind, and public models need no login.
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
        let Some(document) = ConfigFile::read(&self.path)? else { return Ok(None) };
        match self.ask(&document.keeper(host)?, host)? {
            Some(credential) => Ok(Some(credential)),
            None => document.find(host),
        }
    }
}

#[cfg(test)]
mod tests;
