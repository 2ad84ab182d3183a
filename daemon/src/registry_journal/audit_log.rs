//! The audit log: a file with a line of JSON for each request of the registry, also for refused
//! ones, and for each change by its rules.
//!
//! A line is appended with one write. If another program moves or removes the file, as logrotate
//! does, the next line goes to a new file of the same name. A line that cannot be written is in the
//! daemon's log instead.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use content::operation::{Context, Result, Unclassified};
use jiff::Timestamp;
use registry::server::{Cause, JournalEntry};
use serde::Serialize;

/// Time between two looks whether the file was moved.
const LOOK: Duration = Duration::from_secs(1);

/// The open log.
#[derive(Debug)]
pub(super) struct AuditLog {
    path: PathBuf,
    open: Mutex<OpenLog>,
}

#[derive(Debug)]
struct OpenLog {
    file: File,
    looked: Instant,
}

/// A line. Fields without a value are left out.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    /// Left out for requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    operation: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    repository: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    tags: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    forwarded_for: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<&'a str>,
    /// `null` if the client disconnected before the response.
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'static str>,
    received: u64,
    sent: u64,
}

impl<'a> Line<'a> {
    fn of(entry: &'a JournalEntry) -> Self {
        Self {
            time: rfc3339(entry.time),
            cause: (entry.cause != Cause::Request).then(|| entry.cause.as_str()),
            operation: entry.operation.as_str(),
            repository: entry.repository.as_deref(),
            reference: entry.reference.as_deref(),
            digest: entry.digest.map(|digest| digest.to_string()),
            tags: &entry.tags,
            user: entry.user.as_deref(),
            peer: entry.peer.map(|peer| peer.ip().to_canonical().to_string()),
            forwarded_for: entry.forwarded_for.as_deref(),
            user_agent: entry.user_agent.as_deref(),
            status: entry.status,
            error: entry.error.map(registry::ErrorCode::as_str),
            received: entry.received,
            sent: entry.sent,
        }
    }
}

/// A time in the format of RFC 3339.
pub(super) fn rfc3339(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| String::new(), |time| format!("{time:.6}"))
}

impl AuditLog {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = appendable(path)
            .internal()
            .with_context(|| format!("the audit log `{}` cannot be opened", path.display()))?;
        Ok(Self { path: path.to_owned(), open: Mutex::new(OpenLog { file, looked: Instant::now() }) })
    }

    pub(super) fn write(&self, entry: &JournalEntry) {
        let mut line = serde_json::to_string(&Line::of(entry)).expect("invariant: strings and numbers are JSON");
        line.push('\n');
        if let Err(error) = self.append(line.as_bytes()) {
            tracing::error!("the audit log `{}` cannot be written: {error}; the line: {line}", self.path.display());
        }
    }

    fn append(&self, line: &[u8]) -> std::io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.looked.elapsed() >= LOOK {
            if !is_same(&open.file, &self.path)? {
                open.file = appendable(&self.path)?;
            }
            open.looked = Instant::now();
        }
        open.file.write_all(line)
    }
}

fn appendable(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Whether the path still names the open file.
fn is_same(file: &File, path: &Path) -> std::io::Result<bool> {
    let open = file.metadata()?;
    Ok(std::fs::metadata(path).is_ok_and(|named| named.dev() == open.dev() && named.ino() == open.ino()))
}
