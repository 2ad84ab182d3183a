//! The lock that prevents two processes from opening one store.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::Error;

/// A lock that is held while this value lives. The system also releases it when the process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

/// Whether a process holds the lock at `path`.
pub(crate) fn is_held(path: &Path) -> Result<bool, Error> {
    match File::open(path) {
        Ok(file) => match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(Error::io("look at the lock", path, error)),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("open", path, e)),
    }
}

/// The id of the process that holds the lock at `path`, if there is one and its id is known.
pub(crate) fn holder(path: &Path) -> Result<Option<u32>, Error> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io("open", path, e)),
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(None),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            file.read_to_string(&mut text).map_err(|e| Error::io("read", path, e))?;
            Ok(text.trim().parse().ok())
        }
        Err(error) => Err(Error::io("look at the lock", path, error)),
    }
}

impl Lock {
    pub(crate) fn acquire(path: &Path) -> Result<Self, Error> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|e| Error::io("open", path, e))?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(Error::io("lock", path, error));
            }
            let mut holder = String::new();
            // Only for the message: an unreadable id counts as unknown.
            let _ = file.read_to_string(&mut holder);
            let holder = if holder.is_empty() { "unknown".to_owned() } else { holder };
            return Err(Error::Locked { home: path.parent().unwrap_or(path).to_owned(), holder });
        }
        let write_id = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            write!(file, "{}", std::process::id())
        };
        write_id(&mut file).map_err(|e| Error::io("write", path, e))?;
        Ok(Self { _file: file })
    }
}
