//! The content of a disk after a power cut: a tree of folders and files that can be compared and
//! written to a real folder.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::Content;

/// The object at a path.
#[derive(Debug, Hash)]
pub(super) enum Entry {
    Folder {
        mode: u32,
    },
    File {
        mode: u32,
        content: Arc<Content>,
    },
    /// Another name of the file at `to`.
    Link {
        to: PathBuf,
    },
}

/// Invariants: paths are relative and contain no `..`. The parent folder of an entry is an entry
/// too, and `to` of a link is a file that precedes it. The root has no entry.
#[derive(Debug, Default, Hash)]
pub(super) struct State {
    entries: BTreeMap<PathBuf, Entry>,
}

impl State {
    /// Adds an entry. The caller adds a folder before its content, and a file before its other
    /// names.
    pub(super) fn add(&mut self, path: PathBuf, entry: Entry) {
        self.entries.insert(path, entry);
    }

    /// Returns a hash of all names, modes and contents. States with equal hashes need to be tried
    /// only once.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns the content of the file at a path, or `None` if there is no file.
    pub(super) fn file(&self, path: impl AsRef<Path>) -> Option<&[u8]> {
        match self.entries.get(path.as_ref())? {
            Entry::Folder { .. } => None,
            Entry::File { content, .. } => Some(content.bytes()),
            Entry::Link { to } => self.file(to),
        }
    }

    /// Writes the state into an empty folder, whose own mode is unchanged.
    pub(super) fn write(&self, target: &Path) -> io::Result<()> {
        if fs::read_dir(target).map_err(with_path(target))?.next().is_some() {
            let reason = format!("`{}` is not empty", target.display());
            return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, reason));
        }
        for (path, entry) in &self.entries {
            let path = target.join(path);
            let written = match entry {
                Entry::Folder { .. } => fs::create_dir(&path),
                Entry::File { mode, content } => {
                    fs::write(&path, content.bytes()).and_then(|()| set_mode(&path, *mode))
                }
                Entry::Link { to } => fs::hard_link(target.join(to), &path),
            };
            written.map_err(with_path(&path))?;
        }
        // Modes of folders are set last, from the innermost outwards, because a mode may forbid
        // writing.
        for (path, entry) in self.entries.iter().rev() {
            if let Entry::Folder { mode } = entry {
                let path = target.join(path);
                set_mode(&path, *mode).map_err(with_path(&path))?;
            }
        }
        Ok(())
    }
}

/// One line per entry: a folder ends with `/`, a file has its length, a link its target.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, entry) in &self.entries {
            let path = path.display();
            match entry {
                Entry::Folder { .. } => writeln!(f, "{path}/")?,
                Entry::File { content, .. } => writeln!(f, "{path} {}", content.bytes().len())?,
                Entry::Link { to } => writeln!(f, "{path} = {}", to.display())?,
            }
        }
        Ok(())
    }
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Adds the path to an I/O error.
pub(super) fn with_path(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error: io::Error| io::Error::new(error.kind(), format!("`{}`: {error}", path.display()))
}
