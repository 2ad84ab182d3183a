//! The journal of the index: short notes as they were written since the index was opened, a line each. After a crash, and when the
//! index is made anew, they are told again: what was derived before a kill need not be derived once more.
//!
//! ```text
//! <first 12 digits of the SHA-256 of the rest> <kind> <digest> <note in hexadecimal digits, or `-` where it was removed>
//! ```
//!
//! A line that is cut or damaged is passed over. Lines are not synced, but for those of removals: a power cut may take the last notes.
//! What cannot be written, or has no room, empties the journal: a note that is lost costs time, one that was taken back must not come
//! again. What is noted of a blob that is deleted may: it is right of any blob of that digest.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;

use content::Digest;

use crate::sync::{Mutex, PoisonError};
use crate::{Error, files};

/// Longer notes are not kept, in bytes: they are made again from what is in the store.
const LONGEST_NOTE: usize = 256;
/// A journal that is longer begins anew, in bytes.
pub(super) const LONGEST: u64 = 16 << 20;

#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    longest: u64,
    /// `None` until something is written, and where it cannot be opened.
    file: Mutex<Option<File>>,
}

impl Journal {
    pub(super) fn new(path: PathBuf, longest: u64) -> Self {
        Self { path, longest, file: Mutex::new(None) }
    }

    /// Adds a note; `None` where it was removed. What cannot be written is lost, as the index may be.
    pub(super) fn add(&self, kind: &str, about: &Digest, note: Option<&[u8]>) {
        // A longer one takes the place of a short one, too.
        let text = note.filter(|note| note.len() <= LONGEST_NOTE).map_or_else(|| "-".to_owned(), hexadecimal);
        let line = format!("{kind} {about} {text}");
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_none() {
            *file = OpenOptions::new().create(true).append(true).open(&self.path).ok();
        }
        let Some(open) = file.as_mut() else {
            // Nothing may come again that was taken back.
            let _ = files::remove_any(&self.path);
            return;
        };
        let full = open.metadata().is_ok_and(|metadata| metadata.len() >= self.longest);
        // In one piece, after the end of what may have been cut.
        let line = format!("\n{} {line}", check(&line));
        if full || open.write_all(line.as_bytes()).is_err() {
            // Also a full disk allows that. Where it does not, what is there is as old as the disk's trouble.
            let _ = open.set_len(0).and_then(|()| open.write_all(line.as_bytes()));
        }
        if note.is_none() {
            // What was taken back because it was wrong: a power cut must not bring it again.
            let _ = open.sync_data();
        }
    }

    /// The notes, the latest last.
    pub(super) fn notes(&self, mut tell: impl FnMut(&str, &Digest, Option<&[u8]>)) {
        let Ok(file) = File::open(&self.path) else { return };
        for line in BufReader::new(file.take(self.longest * 2)).split(b'\n').map_while(Result::ok) {
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
