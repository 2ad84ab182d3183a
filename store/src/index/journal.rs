//! The journal of the index: short notes that were written since the index was opened, one a line.
//! After a crash, and whenever the index is recreated, the notes are replayed, so that facts need
//! not be derived again.
//!
//! ```text
//! <first 12 hex digits of the SHA-256 of the rest> <kind> <digest> <note>
//! ```
//!
//! The note is in hexadecimal digits, or `-` if it was removed.
//!
//! Truncated and damaged lines are skipped. Lines are not synced, except removals: a power cut may
//! lose the last notes. If a line cannot be written, or the journal is full, the journal is
//! emptied: losing a note costs time, but a removed note must not come back. Notes about a deleted
//! blob may come back, because they hold for any blob of that digest.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;

use content::Digest;

use crate::sync::{Mutex, PoisonError};
use crate::{Error, files};

/// Maximum length of a note in bytes. Longer notes are not kept; they are derived again from the
/// store.
const LONGEST_NOTE: usize = 256;
/// Maximum length of the journal in bytes. A longer journal is emptied.
pub(super) const LONGEST: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    longest: u64,
    /// `None` before the first write, and if the file cannot be opened.
    file: Mutex<Option<File>>,
}

impl Journal {
    pub(super) fn new(path: PathBuf, longest: u64) -> Self {
        Self { path, longest, file: Mutex::new(None) }
    }

    /// Adds a note; `None` records its removal. Errors are ignored, because the note is only
    /// cached.
    pub(super) fn add(&self, kind: &str, about: &Digest, note: Option<&[u8]>) {
        // A note that is too long still replaces an earlier short one.
        let text = note.filter(|note| note.len() <= LONGEST_NOTE).map_or_else(|| "-".to_owned(), hexadecimal);
        let line = format!("{kind} {about} {text}");
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            *file = OpenOptions::new().create(true).append(true).open(&self.path).ok();
        }
        let Some(open) = file.as_mut() else {
            // Without the line, an earlier line must not bring back a removed note.
            let _ = files::remove_any(&self.path);
            return;
        };
        let full = open.metadata().is_ok_and(|metadata| metadata.len() >= self.longest);
        // One write, on a new line in case the last line is incomplete.
        let line = format!("\n{} {line}", check(&line));
        if full || open.write_all(line.as_bytes()).is_err() {
            // Truncation works on a full disk too. If it fails, the file keeps the lines from
            // before the failure of the disk.
            let _ = open.set_len(0).and_then(|()| open.write_all(line.as_bytes()));
        }
        if note.is_none() {
            // The removed note was wrong: a power cut must not bring it back.
            let _ = open.sync_data();
        }
    }

    /// Passes all notes to `tell`, the newest last.
    pub(super) fn notes(&self, mut tell: impl FnMut(&str, &Digest, Option<&[u8]>)) {
        let Ok(file) = File::open(&self.path) else { return };
        for line in BufReader::new(file.take(self.longest * 2)).split(b'\n').map_while(Result::ok) {
            let Some((kind, about, note)) = std::str::from_utf8(&line).ok().and_then(parse) else { continue };
            tell(kind, &about, note.as_deref());
        }
    }

    /// Empties the journal, because the index has the notes.
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
        // Writing to a string cannot fail.
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

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_full_begins_anew() {
        let folder = tempfile::tempdir().expect("a folder");
        let journal = Journal::new(folder.path().join("journal"), 1000);
        let about: Vec<Digest> = (0..40_u8).map(|number| Digest::of(&[number])).collect();
        journal.add("kind", &about[0], Some(b"note"));
        for digest in &about[1..] {
            journal.add("kind", digest, Some(b"note"));
        }
        journal.add("kind", &about[0], None);
        let mut notes = Vec::new();
        journal.notes(|_, digest, note| notes.push((*digest, note.map(<[u8]>::to_vec))));
        assert!(notes.len() < 20 && !notes.contains(&(about[0], Some(b"note".to_vec()))), "{notes:?}");
        assert_eq!(notes.last(), Some(&(about[0], None)), "what was taken back stays so");
    }
}
