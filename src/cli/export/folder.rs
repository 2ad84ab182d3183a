//! A folder that receives files. Files are only placed below it, because no symbolic link on the
//! way is followed.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use content::Digest;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, mkdirat, openat, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

/// An open folder. The path to it may contain links, because the user named it.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
}

/// The parent folder of a file, and the last part of its name.
type FileLocation<'a> = (OwnedFd, &'a str);

impl Folder {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty());
        Ok(Self { fd: fd.with_context(|| format!("cannot open the folder `{}`", path.display()))? })
    }

    /// Moves all files from the folder `hidden` to this one. If a move fails, removes the files
    /// that were moved, unless `force` may have replaced existing files. Opens the folders of the
    /// names one at a time, because there may be more than the limit of open files.
    pub(super) fn take(&self, hidden: &Path, files: &[Placed], force: bool) -> Result<()> {
        let from = Self::open(hidden)?;
        for file in files {
            check_free(&self.slot(&file.name)?, &file.name, force)?;
        }
        for (position, file) in files.iter().enumerate() {
            let given = self.slot(&file.name).and_then(|slot| from.give(&file.name, &slot, force));
            if given.is_err() && !force {
                self.take_back(&files[..position]);
            }
            given?;
        }
        self.sync(files)
    }

    fn take_back(&self, files: &[Placed]) {
        for file in files {
            if let Ok((folder, name)) = self.slot(&file.name) {
                // A file that cannot be removed is complete, and may stay.
                let _ = unlinkat(folder, name, AtFlags::empty());
            }
        }
    }

    /// Syncs each folder that contains one of these files once.
    fn sync(&self, files: &[Placed]) -> Result<()> {
        let mut synced = HashSet::new();
        for name in files.iter().map(|file| file.name.as_str()) {
            if synced.insert(name.rsplit_once('/').map(|(folder, _)| folder)) {
                let (folder, _) = self.slot(name)?;
                File::from(folder).sync_all().with_context(|| format!("cannot sync the folder of `{name}`"))?;
            }
        }
        Ok(())
    }

    /// Opens the parent folder of a name. Creates missing folders.
    fn slot<'a>(&self, name: &'a str) -> Result<FileLocation<'a>> {
        let mut folder = self.fd.try_clone()?;
        let mut parts: Vec<&str> = name.split('/').collect();
        let last = parts.pop().context("invariant: a name has a part")?;
        for part in parts {
            match mkdirat(&folder, part, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error).with_context(|| format!("cannot make the folder of `{name}`")),
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            folder = openat(&folder, part, flags, Mode::empty())
                .with_context(|| format!("`{part}` of `{name}` is not a folder; links are not followed"))?;
        }
        Ok((folder, last))
    }

    /// Moves a file out of this folder.
    fn give(&self, name: &str, (folder, last): &FileLocation<'_>, force: bool) -> Result<()> {
        let moved = if force {
            renameat(&self.fd, name, folder, *last)
        } else {
            match renameat_with(&self.fd, name, folder, *last, RenameFlags::NOREPLACE) {
                // Some file systems do not support this flag. `check_free` has checked before that
                // the name is free.
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => renameat(&self.fd, name, folder, *last),
                other => other,
            }
        };
        moved.with_context(|| format!("cannot give `{name}` its name"))
    }
}

/// Checks that a file may be placed under a name. With `force`, it replaces a link without
/// following it.
fn check_free((folder, last): &FileLocation<'_>, name: &str, force: bool) -> Result<()> {
    match statat(folder, *last, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot look at `{name}`")),
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => {
            bail!("`{name}` is a folder there; remove it first")
        }
        Ok(_) => {
            ensure!(force, "`{name}` is there already; --force replaces it");
            Ok(())
        }
    }
}

/// A file that was received.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    /// Name relative to the destination folder, or the name of the destination file.
    pub(super) name: String,
    /// Length in bytes.
    pub(super) size: u64,
    /// SHA-256 of the file.
    pub(super) digest: Digest,
}
