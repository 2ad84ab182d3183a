//! The journal of the index: short notes as they were written since the index was opened, a line each. After a crash, and when the
//! index is made anew, they are told again: what was derived before a kill need not be derived once more.
//!
//! ```text
//! <first 12 digits of the SHA-256 of the rest> <kind> <digest> <note in hexadecimal digits, or `-` where it was removed>
//! ```
//!
//! A line that is cut or damaged is passed over. Lines are not synced: a power cut may take the last of them.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;

use content::Digest;

use crate::sync::{Mutex, PoisonError};
use crate::{Error, files};

/// Longer notes are not kept, in bytes: they are made again from what is in the store.
const LONGEST_NOTE: usize = 256;
/// Nothing is added to a longer journal, in bytes: the next clean end empties it.
const LONGEST: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    /// `None` until something is written, and where that cannot be.
    file: Mutex<Option<File>>,
}

impl Journal {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, file: Mutex::new(None) }
    }

    /// Adds a note; `None` where it was removed. What cannot be written is lost, as the index may be.
    pub(super) fn add(&self, kind: &str, about: &Digest, note: Option<&[u8]>) {
        if note.is_some_and(|note| note.len() > LONGEST_NOTE) {
            return;
        }
        let text = note.map_or_else(|| "-".to_owned(), hexadecimal);
        let line = format!("{kind} {about} {text}");
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            *file = OpenOptions::new().create(true).append(true).open(&self.path).ok();
        }
        let Some(open) = file.as_mut() else { return };
        let room = open.metadata().is_ok_and(|metadata| metadata.len() < LONGEST);
        // In one piece, after the end of what may have been cut.
        if room && write!(open, "\n{} {line}", check(&line)).is_err() {
            *file = None;
        }
    }

    /// The notes, the latest last.
    pub(super) fn notes(&self, mut tell: impl FnMut(&str, &Digest, Option<&[u8]>)) {
        let Ok(file) = File::open(&self.path) else { return };
        for line in BufReader::new(file.take(LONGEST * 2)).split(b'\n').map_while(Result::ok) {
            let Some((kind, about, note)) = std::str::from_utf8(&line).ok().and_then(parse) else { continue };
            tell(kind, &about, note.as_deref());
        }
    }

    /// Forgets all, because the index has it.
    pub(super) fn clear(&self) -> Result<(), Error> {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = None;
        files::remove_any(&self.path)
    }
}

fn check(line: &str) -> String {
    Digest::of(line.as_bytes()).short()
}

fn hexadecimal(note: &[u8]) -> String {
    let mut digits = String::with_capacity(note.len() * 2);
    for byte in note {
        // A text takes whatever is written to it.
        let _ = std::fmt::Write::write_fmt(&mut digits, format_args!("{byte:02x}"));
    }
    digits
}

fn parse(line: &str) -> Option<(&str, Digest, Option<Vec<u8>>)> {
    let (sum, rest) = line.split_once(' ')?;
    if sum != check(rest) {
        return None;
    }
    let mut words = rest.split(' ');
    let (kind, about, note) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
    if note == "-" {
        return Some((kind, about, None));
    }
    let byte = |at: usize| note.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let bytes: Option<Vec<u8>> = (0..note.len()).step_by(2).map(byte).collect();
    Some((kind, about, Some(bytes?)))
}
