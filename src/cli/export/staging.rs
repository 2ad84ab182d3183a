//! Files on their way: written into a hidden folder beside their place, given their names when all of them are whole.
//!
//! A failure and an interrupt remove the hidden folder; after a kill it stays, as `.lode-export-…`. Nothing is ever half
//! under its own name.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use content::Digest;
use content::text::size;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::folder::Folder;

/// A file that came.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    /// Relative to the folder; the file's own name where the place is one.
    pub(super) name: String,
    /// Length in bytes.
    pub(super) size: u64,
    /// Its SHA-256.
    pub(super) digest: Digest,
}

/// Where the files go.
#[derive(Clone, Debug)]
enum Place {
    /// Into a folder that is there.
    Into(PathBuf),
    /// A new folder; or a new file, where a single one comes and the place does not end with a slash.
    New { path: PathBuf, folder: bool },
    /// In the place of a file that is there.
    Instead(PathBuf),
}

/// Files that have no names yet. Dropping it removes them.
#[derive(Debug)]
pub(super) struct Staging {
    place: Place,
    force: bool,
    hidden: PathBuf,
    files: Vec<Placed>,
}

impl Staging {
    /// Looks at the place and makes the hidden folder.
    pub(super) fn begin(to: &Path, force: bool) -> Result<Self> {
        let place = place(to, force)?;
        let beside = match &place {
            Place::Into(folder) => folder.clone(),
            Place::New { path, .. } | Place::Instead(path) => parent(path),
        };
        Ok(Self { hidden: hidden_folder(&beside)?, place, force, files: Vec::new() })
    }

    /// Refuses what will not fit on the disk.
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

    /// Begins a file; `name` is relative and leads nowhere else.
    pub(super) fn file(&self, name: &str) -> Result<File> {
        if let Place::Into(folder) = &self.place {
            let there = fs::symlink_metadata(folder.join(name)).is_ok();
            ensure!(self.force || !there, "`{}` is there already; --force replaces it", folder.join(name).display());
        }
        let path = self.hidden.join(name);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| OpenOptions::new().write(true).create_new(true).open(&path))
            .with_context(|| format!("cannot write `{}`", path.display()))
    }

    /// Takes note of a file that is whole and synced.
    pub(super) fn staged(&mut self, file: Placed) {
        self.files.push(file);
    }

    /// Gives all files their names.
    pub(super) fn finish(mut self) -> Result<Vec<Placed>> {
        let mut files = std::mem::take(&mut self.files);
        match &self.place {
            Place::Into(folder) => Folder::open(folder)?.take(&self.hidden, &files, self.force)?,
            Place::New { path, folder } => match files.as_mut_slice() {
                [single] if !folder && !single.name.contains('/') => {
                    rename_new(&self.hidden.join(&single.name), path)?;
                    single.name = last(path);
                }
                _ => {
                    sync_folders(&self.hidden)?;
                    rename_new(&self.hidden, path)?;
                }
            },
            Place::Instead(path) => match files.as_mut_slice() {
                [single] => {
                    fs::rename(self.hidden.join(&single.name), path)
                        .with_context(|| format!("cannot replace `{}`", path.display()))?;
                    single.name = last(path);
                }
                _ => bail!("the model has {} files, `{}` is one; name a folder", files.len(), path.display()),
            },
        }
        if let Place::New { path, .. } | Place::Instead(path) = &self.place {
            sync(&parent(path))?;
        }
        Ok(files)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Where it became the folder itself there is nothing to remove.
        if let Err(error) = fs::remove_dir_all(&self.hidden)
            && error.kind() != io::ErrorKind::NotFound
        {
            eprintln!("cannot remove `{}`: {error}", self.hidden.display());
        }
    }
}

fn place(to: &Path, force: bool) -> Result<Place> {
    let path = to.to_path_buf();
    let slash = to.as_os_str().as_encoded_bytes().ends_with(b"/");
    match fs::metadata(to) {
        Ok(found) if found.is_dir() => Ok(Place::Into(path)),
        Ok(found) if found.is_file() => {
            ensure!(force, "`{}` is there already; --force replaces it", to.display());
            Ok(Place::Instead(path))
        }
        Ok(_) => bail!("`{}` is neither a file nor a folder", to.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            ensure!(fs::symlink_metadata(to).is_err(), "`{}` is a link that leads nowhere", to.display());
            ensure!(to.file_name().is_some(), "`{}` names no file", to.display());
            let parent = parent(to);
            ensure!(parent.is_dir(), "there is no folder `{}`; make it first", parent.display());
            Ok(Place::New { path, folder: slash })
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
            // A process that was killed had the same id.
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

/// Renames where nothing is.
fn rename_new(from: &Path, to: &Path) -> Result<()> {
    let renamed = match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some file systems have no such call; they are left with a look beforehand.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if fs::symlink_metadata(to).is_err() => fs::rename(from, to),
        other => other.map_err(io::Error::from),
    };
    renamed.with_context(|| format!("cannot give `{}` its name", to.display()))
}

/// Syncs a folder and all in it that are folders.
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
