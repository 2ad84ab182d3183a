//! Files outside of the store in which blobs lie.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::Error;

/// Age that the last change of a file must have before its times count as an identity. A later
/// write could otherwise get the same times: the clocks of file systems tick every few
/// milliseconds.
const TICK: Duration = Duration::from_millis(20);
/// Number of such times to wait for the end of a program that writes to the file.
const MOST_TICKS: usize = 50;

/// Facts by which a change of a file is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Number of the device.
    pub device: u64,
    /// Number of the file on the device.
    pub inode: u64,
    /// Length in bytes.
    pub size: u64,
    /// Time of the last write, in nanoseconds since 1970.
    pub modified: i128,
    /// Time of the last change of content or metadata, in nanoseconds since 1970.
    pub changed: i128,
}

/// How a file compares to an identity that was recorded earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Likeness {
    /// All facts are equal, except perhaps for the number of the device.
    Same,
    /// Size and time of the last write are equal, other facts are not: the file may have been
    /// copied or renamed.
    Doubtful,
    /// The content has changed.
    Different,
}

impl FileIdentity {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    pub(crate) fn likeness(&self, now: &Self) -> Likeness {
        if self.size != now.size || self.modified != now.modified {
            return Likeness::Different;
        }
        // Devices of btrfs and of network file systems get other numbers at each mount.
        let is_same = self.inode == now.inode && self.changed == now.changed;
        if is_same { Likeness::Same } else { Likeness::Doubtful }
    }
}

/// A file in which blobs lie, with the identity that it had when they were found there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Absolute path.
    path: PathBuf,
    identity: FileIdentity,
}

impl SourceFile {
    pub(crate) fn new(path: PathBuf, identity: FileIdentity) -> Self {
        Self { path, identity }
    }

    /// Records the identity of an open file. `path` is used where the system does not tell it.
    /// Waits until the times of the file are an identity.
    ///
    /// # Errors
    /// Another file is at the path, or the path cannot be recorded: it is relative, not UTF-8, or
    /// has a line feed.
    pub(crate) fn of(path: &Path, file: &File) -> Result<Self, Error> {
        let failed = |e| Error::io("look at", path, e);
        let path = path_of(file).or_else(|_| path.canonicalize()).map_err(failed)?;
        if path.to_str().is_none_or(|text| text.contains('\n')) {
            let reason = "its path is not UTF-8 or has a line feed; rename it, or import the model without --in-place";
            return Err(Error::CannotRefer { path, reason: reason.to_owned() });
        }
        let mut identity = FileIdentity::of(&file.metadata().map_err(failed)?);
        for _ in 0..MOST_TICKS {
            if !is_fresh(&identity) {
                break;
            }
            std::thread::sleep(TICK);
            identity = FileIdentity::of(&file.metadata().map_err(failed)?);
        }
        if is_fresh(&identity) {
            let reason = "another program is writing to it; try again when it has ended".to_owned();
            return Err(Error::CannotRefer { path, reason });
        }
        let source = Self { path, identity };
        match source.open() {
            Ok((_, Likeness::Same)) => Ok(source),
            Ok(_) => {
                let reason = "it was replaced or written to meanwhile; try again when its writer has ended".to_owned();
                Err(Error::CannotRefer { path: source.path, reason })
            }
            Err(e) => Err(Error::CannotRefer {
                reason: format!(
                    "the daemon cannot open it ({e}); let its user read the file, or import the model without --in-place"
                ),
                path: source.path,
            }),
        }
    }

    /// Absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The identity that the file had when its blobs were verified.
    pub fn identity(&self) -> &FileIdentity {
        &self.identity
    }

    /// Opens the file, and compares it to the recorded identity. A pipe, a device or a folder is an
    /// error; opening it does not block.
    pub(crate) fn open(&self) -> io::Result<(File, Likeness)> {
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(&self.path)?;
        let facts = file.metadata()?;
        if !facts.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
        }
        let likeness = self.identity.likeness(&FileIdentity::of(&facts));
        Ok((file, likeness))
    }

    /// Compares an open file to the recorded identity.
    pub(crate) fn likeness_of(&self, file: &File) -> io::Result<Likeness> {
        Ok(self.identity.likeness(&FileIdentity::of(&file.metadata()?)))
    }

    /// Compares the file at the path to the recorded identity.
    pub(crate) fn look(&self) -> io::Result<Likeness> {
        Ok(self.identity.likeness(&FileIdentity::of(&std::fs::metadata(&self.path)?)))
    }

    /// Opens the file.
    ///
    /// # Errors
    /// The file was changed, moved or removed.
    pub fn open_unchanged(&self) -> Result<File, Error> {
        let reason = match self.open() {
            Ok((file, Likeness::Same)) => return Ok(file),
            Ok(_) => CHANGED.to_owned(),
            Err(e) => unreachable_reason(&e),
        };
        Err(self.lost(reason))
    }

    /// The error that the file no longer has the bytes of its blobs.
    pub(crate) fn lost(&self, reason: String) -> Error {
        Error::SourceLost { path: self.path.clone(), reason }
    }

    /// The same file with the identity that it has now.
    pub(crate) fn as_it_is(&self, file: &File) -> io::Result<Self> {
        Ok(Self { path: self.path.clone(), identity: FileIdentity::of(&file.metadata()?) })
    }
}

/// The path of an open file.
#[cfg(target_os = "linux")]
fn path_of(file: &File) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)))
}

/// Other systems do not tell it.
#[cfg(not(target_os = "linux"))]
fn path_of(_file: &File) -> io::Result<PathBuf> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Reason of [`Error::SourceLost`] for a file that was written to.
pub(crate) const CHANGED: &str = "it was changed since";

/// Reason of [`Error::SourceLost`] for a file that cannot be opened.
pub(crate) fn unreachable_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "it is no longer there".to_owned(),
        _ => format!("it cannot be read: {error}"),
    }
}

/// Whether a file changed so recently that its next change may leave its times as they are. Times
/// in the future, of another clock, count as old.
fn is_fresh(identity: &FileIdentity) -> bool {
    let newest = identity.changed.max(identity.modified).max(0).cast_unsigned();
    let newest = SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(newest).unwrap_or(u64::MAX));
    SystemTime::now().duration_since(newest).is_ok_and(|age| age < TICK)
}

/// A part of a blob that lies in a file.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The file.
    pub file: std::sync::Arc<SourceFile>,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

/// Fills the buffer from an open source; the error names the file.
pub(crate) fn read_from(file: &File, source: &SourceFile, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
    file.read_exact_at(buffer, offset).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => source.lost("it was truncated".to_owned()),
        _ => Error::io("read", source.path(), e),
    })
}
