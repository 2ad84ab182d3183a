//! A model of a disk with exactly the guarantees of POSIX: it applies recorded calls, and derives
//! the states that a power cut could leave.
//!
//! A file keeps the content of its last sync, and a folder the names of its last sync. All later
//! changes may be lost, in the ways that [`Loss`] lists. Each folder and each file loses changes
//! independently:
//!
//! - The sync of a file does not cover its name, and the sync of a folder does not cover the
//!   content of its files.
//! - A rename within a folder is atomic. A rename between two folders is a change of each: a power
//!   cut can leave both names, or none.
//! - An object without a name in any folder is lost, with everything below it. A folder with names
//!   in two folders remains at the first of them by path, as after a check of the file system.
//! - Modes are never lost. A file without a recorded mode has 0644, a folder 0755.
//!
//! Real file systems keep more than that, so a program that survives here does not depend on the
//! file system.

mod tests;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::file::File;
use super::folder::{Change, Folder};
use super::log::Record;
use super::loss::Loss;
use super::state::{Entry, State, with_path};

const ROOT: ObjectId = ObjectId(0);

/// A file or folder of a disk. Unlike an inode number, it is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ObjectId(usize);

/// A record that is inconsistent with its predecessors: the log is incomplete, or not in the order
/// of the calls.
#[derive(Debug)]
pub(super) struct Contradiction {
    record: String,
    reason: String,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.record, self.reason)
    }
}

impl std::error::Error for Contradiction {}

/// Invariant: every `ObjectId` in it is an index of `objects`, and `ROOT` is a folder. Objects stay
/// when their last name is removed, because a power cut may restore the name.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    objects: Vec<Object>,
    /// The object that currently has an inode number.
    inodes: HashMap<u64, ObjectId>,
}

#[derive(Debug, Clone)]
struct Object {
    mode: u32,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    File(File),
    Folder(Folder),
}

impl Object {
    fn file(file: File) -> Self {
        Self { mode: 0o644, kind: Kind::File(file) }
    }

    fn folder() -> Self {
        Self { mode: 0o755, kind: Kind::Folder(Folder::default()) }
    }
}

impl Disk {
    /// Returns an empty folder with an unknown inode number.
    pub(super) fn empty() -> Self {
        Self { objects: vec![Object::folder()], inodes: HashMap::new() }
    }

    /// Returns the current content of a folder, all of it durable, as the start of a log. Sockets
    /// and pipes are left out because the disk does not store them; symbolic links are refused.
    pub(super) fn snapshot(folder: &Path) -> io::Result<Self> {
        let mut disk = Self::empty();
        let inode = fs::metadata(folder).map_err(with_path(folder))?.ino();
        disk.inodes.insert(inode, ROOT);
        disk.read_folder(ROOT, folder)?;
        Ok(disk)
    }

    fn read_folder(&mut self, folder: ObjectId, path: &Path) -> io::Result<()> {
        let entries: io::Result<Vec<DirEntry>> = fs::read_dir(path).and_then(Iterator::collect);
        let mut entries = entries.map_err(with_path(path))?;
        // The order determines the objects' numbers, which together with the seed determine random
        // losses.
        entries.sort_by_key(DirEntry::file_name);
        for entry in entries {
            let path = entry.path();
            let Some(object) = self.read_object(&path)? else { continue };
            if let Kind::Folder(read) = &mut self.objects[folder.0].kind {
                read.add_durable(entry.file_name(), object);
            }
        }
        Ok(())
    }

    fn read_object(&mut self, path: &Path) -> io::Result<Option<ObjectId>> {
        let metadata = fs::symlink_metadata(path).map_err(with_path(path))?;
        let (kind, inode) = (metadata.file_type(), metadata.ino());
        if kind.is_symlink() {
            let reason = format!("`{}` is a symbolic link, which the model does not have", path.display());
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        if !kind.is_file() && !kind.is_dir() {
            return Ok(None);
        }
        if let Some(linked) = self.inodes.get(&inode) {
            return Ok(Some(*linked));
        }
        let mode = metadata.mode() & 0o7777;
        if kind.is_dir() {
            let object = self.insert(inode, Object { mode, ..Object::folder() });
            self.read_folder(object, path)?;
            return Ok(Some(object));
        }
        let bytes = fs::read(path).map_err(with_path(path))?;
        Ok(Some(self.insert(inode, Object { mode, ..Object::file(File::durable(bytes)) })))
    }

    /// Applies a recorded call. After an error the disk is unchanged.
    pub(super) fn apply(&mut self, record: &Record) -> Result<(), Contradiction> {
        self.change(record).map_err(|reason| Contradiction { record: record.to_string(), reason })
    }

    fn change(&mut self, record: &Record) -> Result<(), String> {
        match record {
            Record::Create { path, inode } => self.create(path, *inode, Object::file(File::default())),
            Record::MakeFolder { path, inode } => self.create(path, *inode, Object::folder()),
            Record::Write { inode, offset, bytes } => self.file_mut(*inode)?.write(*offset, bytes),
            Record::Resize { inode, length } => self.file_mut(*inode)?.resize(*length),
            Record::SyncFile { inode } => {
                self.file_mut(*inode)?.sync();
                Ok(())
            }
            Record::SyncFolder { inode, path } => {
                let known = self.inodes.get(inode).copied().or_else(|| self.find(path));
                self.folder_mut(known.ok_or("no record made the folder")?)?.sync();
                Ok(())
            }
            Record::Rename { from, to, inode } => self.rename(from, to, *inode),
            Record::Link { from, to, inode } => {
                let object = self.named(from, *inode)?;
                self.absent(to)?;
                self.add(to, object)
            }
            Record::Unlink { path, inode } | Record::RemoveFolder { path, inode } => self.remove(path, *inode),
            Record::SetMode { inode, mode } => {
                // An unknown inode is a socket, which is not recorded and never on the disk.
                if let Some(object) = self.inodes.get(inode) {
                    self.objects[object.0].mode = *mode;
                }
                Ok(())
            }
            Record::Mark(_) => Ok(()),
        }
    }

    fn create(&mut self, path: &Path, inode: u64, object: Object) -> Result<(), String> {
        self.absent(path)?;
        self.folder_mut(self.place(path)?.0)?;
        let object = self.insert(inode, object);
        self.add(path, object)
    }

    fn add(&mut self, path: &Path, object: ObjectId) -> Result<(), String> {
        let (folder, name) = self.place(path)?;
        self.folder_mut(folder)?.change(Change::Add { name: name.to_owned(), object });
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path, inode: u64) -> Result<(), String> {
        let object = self.named(from, inode)?;
        // If both are names of one file, `rename` does nothing.
        if self.find(to) == Some(object) {
            return Ok(());
        }
        let ((source, old), (target, new)) = (self.place(from)?, self.place(to)?);
        let (old, new) = (old.to_owned(), new.to_owned());
        if source == target {
            self.folder_mut(source)?.change(Change::Rename { from: old, to: new, object });
        } else {
            self.folder_mut(target)?.change(Change::Add { name: new, object });
            self.folder_mut(source)?.change(Change::Remove { name: old });
        }
        Ok(())
    }

    fn remove(&mut self, path: &Path, inode: u64) -> Result<(), String> {
        // Sockets are not recorded, because they are never on the disk. A socket may reuse the
        // inode number of a deleted file.
        if self.find(path).is_none() && !self.has_name(inode) {
            return Ok(());
        }
        self.named(path, inode)?;
        let (folder, name) = self.place(path)?;
        self.folder_mut(folder)?.change(Change::Remove { name: name.to_owned() });
        Ok(())
    }

    /// Returns the state after a power cut at this moment.
    pub(super) fn state(&self, loss: Loss) -> State {
        let mut walk =
            Walk { disk: self, loss, seen: HashMap::from([(ROOT, PathBuf::new())]), state: State::default() };
        if let Kind::Folder(root) = &self.objects[ROOT.0].kind {
            walk.folder(ROOT, root, Path::new(""));
        }
        walk.state
    }

    fn insert(&mut self, inode: u64, object: Object) -> ObjectId {
        let id = ObjectId(self.objects.len());
        self.objects.push(object);
        self.inodes.insert(inode, id);
        id
    }

    fn known(&self, inode: u64) -> Result<ObjectId, String> {
        self.inodes.get(&inode).copied().ok_or_else(|| format!("no record made inode {inode}"))
    }

    fn file_mut(&mut self, inode: u64) -> Result<&mut File, String> {
        let object = self.known(inode)?;
        match &mut self.objects[object.0].kind {
            Kind::File(file) => Ok(file),
            Kind::Folder(_) => Err(format!("inode {inode} is a folder")),
        }
    }

    fn folder_mut(&mut self, object: ObjectId) -> Result<&mut Folder, String> {
        match &mut self.objects[object.0].kind {
            Kind::Folder(folder) => Ok(folder),
            Kind::File(_) => Err("a file stands where a folder was to be".to_owned()),
        }
    }

    /// Returns the object at a path without any loss.
    fn find(&self, path: &Path) -> Option<ObjectId> {
        path.iter().try_fold(ROOT, |at, name| match &self.objects[at.0].kind {
            Kind::Folder(folder) => folder.get(name),
            Kind::File(_) => None,
        })
    }

    fn has_name(&self, inode: u64) -> bool {
        let names = |object| self.objects.iter().any(|other| matches!(&other.kind, Kind::Folder(f) if f.names(object)));
        self.inodes.get(&inode).copied().is_some_and(names)
    }

    /// Returns the object at a path, if it has this inode number.
    fn named(&self, path: &Path, inode: u64) -> Result<ObjectId, String> {
        let found = self.find(path).ok_or_else(|| format!("nothing is at `{}`", path.display()))?;
        if self.inodes.get(&inode) != Some(&found) {
            return Err(format!("what is at `{}` is not inode {inode}", path.display()));
        }
        Ok(found)
    }

    fn absent(&self, path: &Path) -> Result<(), String> {
        match self.find(path) {
            Some(_) => Err(format!("`{}` is there already", path.display())),
            None => Ok(()),
        }
    }

    /// Returns the parent folder and the name of a path.
    fn place<'a>(&self, path: &'a Path) -> Result<(ObjectId, &'a OsStr), String> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err("the recorded folder itself cannot be made or moved".to_owned());
        };
        let folder = self.find(parent).ok_or_else(|| format!("no record made the folder `{}`", parent.display()))?;
        Ok((folder, name))
    }
}

/// Collects the reachable objects after a loss, in the order of paths.
struct Walk<'a> {
    disk: &'a Disk,
    loss: Loss,
    /// The path at which each object was first reached.
    seen: HashMap<ObjectId, PathBuf>,
    state: State,
}

impl Walk<'_> {
    fn folder(&mut self, id: ObjectId, folder: &Folder, path: &Path) {
        for (name, object) in &*folder.entries(self.loss, id.0) {
            self.object(*object, path.join(name));
        }
    }

    fn object(&mut self, id: ObjectId, path: PathBuf) {
        let disk = self.disk;
        let Object { mode, kind } = &disk.objects[id.0];
        let first = self.seen.get(&id).cloned();
        if first.is_none() {
            self.seen.insert(id, path.clone());
        }
        match (kind, first) {
            (Kind::File(_), Some(to)) => self.state.add(path, Entry::Link { to }),
            (Kind::Folder(_), Some(_)) => {}
            (Kind::File(file), None) => {
                self.state.add(path, Entry::File { mode: *mode, content: file.content(self.loss, id.0) });
            }
            (Kind::Folder(folder), None) => {
                self.state.add(path.clone(), Entry::Folder { mode: *mode });
                self.folder(id, folder, &path);
            }
        }
    }
}
