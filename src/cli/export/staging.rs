//! Files during an export. They are written to a hidden folder next to the destination and renamed
//! when all are complete.
//!
//! A failure or an interrupt removes the hidden folder. After a kill, it remains as
//! `.lode-export-…`. No incomplete file ever has its final name.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use content::text::size;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::folder::{Folder, Placed};

/// Destination of the files.
#[derive(Clone, Debug)]
enum Destination {
    /// An existing folder.
    Into(PathBuf),
    /// A new folder; or a new file, if the export is a single file and the path does not end with a
    /// slash.
    New { path: PathBuf, folder: bool },
    /// An existing file, which is replaced.
    Instead(PathBuf),
}

/// Files without their final names. Dropping it removes them.
#[derive(Debug)]
pub(super) struct Staging {
    place: Destination,
    force: bool,
    hidden: PathBuf,
    files: Vec<Placed>,
}

impl Staging {
    /// Checks the destination and creates the hidden folder.
    pub(super) fn begin(to: &Path, force: bool) -> Result<Self> {
        let place = place(to, force)?;
        let beside = match &place {
            Destination::Into(folder) => folder.clone(),
            Destination::New { path, .. } | Destination::Instead(path) => parent(path),
        };
        Ok(Self { hidden: hidden_folder(&beside)?, place, force, files: Vec::new() })
    }

    /// Returns an error if the files do not fit on the disk.
    pub(super) fn ensure_space(&self, needed: u64) -> Result<()> {
        let stat = rustix::fs::statvfs(&self.hidden)?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        let place = self.hidden.parent().unwrap_or(&self.hidden).display();
        ensure!(
            needed <= free,
            "the files need {}, and the disk of `{place}` has {} free; export to another disk, or make room there",
            size(needed),
            size(free)
        );
        Ok(())
    }

    /// Creates a file in the hidden folder. `name` is relative and does not leave the folder.
    pub(super) fn file(&self, name: &str) -> Result<File> {
        if let Destination::Into(folder) = &self.place {
            let there = fs::symlink_metadata(folder.join(name)).is_ok();
            ensure!(self.force || !there, "`{}` is there already; --force replaces it", folder.join(name).display());
        }
        let path = self.hidden.join(name);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| OpenOptions::new().write(true).create_new(true).open(&path))
            .with_context(|| format!("cannot write `{}`", path.display()))
    }

    /// Records a file that is complete and synced.
    pub(super) fn staged(&mut self, file: Placed) {
        self.files.push(file);
    }

    /// Moves all files to their destination.
    pub(super) fn finish(mut self) -> Result<Vec<Placed>> {
        let mut files = std::mem::take(&mut self.files);
        match &self.place {
            Destination::Into(folder) => Folder::open(folder)?.take(&self.hidden, &files, self.force)?,
            Destination::New { path, folder } => match files.as_mut_slice() {
                [single] if !folder && !single.name.contains('/') => {
                    rename_new(&self.hidden.join(&single.name), path)?;
                    single.name = last(path);
                }
                _ => {
                    sync_folders(&self.hidden)?;
                    rename_new(&self.hidden, path)?;
                }
            },
            Destination::Instead(path) => match files.as_mut_slice() {
                [single] => {
                    fs::rename(self.hidden.join(&single.name), path)
                        .with_context(|| format!("cannot replace `{}`", path.display()))?;
                    single.name = last(path);
                }
                _ => bail!("the model has {} files, `{}` is one; name a folder", files.len(), path.display()),
            },
        }
        if let Destination::New { path, .. } | Destination::Instead(path) = &self.place {
            sync(&parent(path))?;
        }
        Ok(files)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // The hidden folder no longer exists if it was renamed to the destination.
        if let Err(error) = fs::remove_dir_all(&self.hidden)
            && error.kind() != io::ErrorKind::NotFound
        {
            eprintln!("cannot remove `{}`: {error}", self.hidden.display());
        }
    }
}

fn place(to: &Path, force: bool) -> Result<Destination> {
    let path = to.to_path_buf();
    let slash = to.as_os_str().as_encoded_bytes().ends_with(b"/");
    match fs::metadata(to) {
        Ok(found) if found.is_dir() => Ok(Destination::Into(path)),
        Ok(found) if found.is_file() => {
            ensure!(force, "`{}` is there already; --force replaces it", to.display());
            Ok(Destination::Instead(path))
        }
        Ok(_) => bail!("`{}` is neither a file nor a folder", to.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            ensure!(fs::symlink_metadata(to).is_err(), "`{}` is a link that leads nowhere", to.display());
            ensure!(to.file_name().is_some(), "`{}` names no file", to.display());
            let parent = parent(to);
            ensure!(parent.is_dir(), "there is no folder `{}`; make it first", parent.display());
            Ok(Destination::New { path, folder: slash })
        }
        Err(error) => Err(error).with_context(|| format!("cannot look at `{}`", to.display())),
    }
}

fn hidden_folder(beside: &Path) -> Result<PathBuf> {
    let process = std::process::id();
    for number in 0u32.. {
        let path = beside.join(format!(".lode-export-{process}-{number}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            // A killed process with the same id left the folder behind.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("cannot write into `{}`", beside.display())),
        }
    }
    bail!("`{}` is full of unfinished exports; remove its folders `.lode-export-…`", beside.display())
}

fn parent(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

fn last(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Renames a file or folder unless the new name exists.
fn rename_new(from: &Path, to: &Path) -> Result<()> {
    let renamed = match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some file systems do not support `NOREPLACE`; for them, a check precedes a plain rename.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if fs::symlink_metadata(to).is_err() => fs::rename(from, to),
        other => other.map_err(io::Error::from),
    };
    renamed.with_context(|| format!("cannot give `{}` its name", to.display()))
}

/// Syncs a folder and all folders in it.
fn sync_folders(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    sync(folder)
}

fn sync(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("cannot sync `{}`", folder.display()))
}
