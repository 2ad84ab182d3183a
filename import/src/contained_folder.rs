//! Folder whose files are opened without leaving it: `..` and links cannot lead out of it, even if
//! another process changes the folder meanwhile.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;

use crate::{Error, LocalFile};

/// Flag with which opening a pipe does not wait for a writer.
pub(crate) const NONBLOCK: i32 = OFlags::NONBLOCK.bits().cast_signed();

/// Open folder.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    descriptor: OwnedFd,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let descriptor = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let descriptor = descriptor.map_err(|e| Error::io("open", path.display(), e.into()))?;
        Ok(Self { path: path.to_owned(), descriptor })
    }

    /// Opens a file in the folder or below it.
    ///
    /// # Errors
    /// The name leads out of the folder, is not a file, or cannot be opened.
    pub(crate) fn file(&self, name: &Path) -> Result<LocalFile, Error> {
        let path = self.path.join(name);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let opened = openat2(&self.descriptor, name, flags, Mode::empty(), resolve).map_err(|error| match error {
            Errno::XDEV => Error::Source(format!(
                "`{}` is a link that leads out of the folder, and is not followed; put the file itself there",
                path.display()
            )),
            Errno::NOSYS | Errno::PERM => Error::Source(format!(
                "`{}` cannot be opened without following links out of its folder: this system refuses the call `openat2` (Linux 5.6 \
                 has it, and some containers forbid it); use `lode create`, which opens what its user names",
                path.display()
            )),
            other => Error::io("open", path.display(), other.into()),
        })?;
        LocalFile::opened(&path, File::from(opened)).map_err(|e| Error::io("open", path.display(), e))
    }
}
