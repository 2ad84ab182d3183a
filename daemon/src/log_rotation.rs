//! The log of a daemon that a command has started: `daemon.log` in the store's folder. The daemon
//! and its runners append to it. If it grows beyond [`LARGEST`], its contents replace the previous
//! rotated log.
//!
//! The log is copied and truncated instead of renamed, because runners have it open too. A line
//! that is written between these two steps is lost.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use store::Store;

/// Name of the file in the store's folder.
const LOG_FILE: &str = "daemon.log";
/// Size in bytes above which the log is rotated.
const LARGEST: u64 = 16 << 20;
/// Time between two checks.
const LOOK: Duration = Duration::from_secs(10);

/// Returns the path of the log of a daemon that a command has started. It is in the store's folder,
/// or below `temporary` in this user's folder if the store is read-only.
pub fn file(home: &Path, temporary: &Path) -> PathBuf {
    if !Store::is_read_only_at(home) {
        return home.join(LOG_FILE);
    }
    temporary.join(format!("lode-log-{}", rustix::process::getuid().as_raw())).join(LOG_FILE)
}

/// Rotates the log periodically, if this daemon writes to that file. Runs until the daemon ends.
pub(crate) async fn keep_small(log: &Path) {
    let log = log.to_owned();
    loop {
        let path = log.clone();
        // If stderr goes to another file, this daemon does not rotate the log.
        let cut = move || if is_appended_to(&path) { cut(&path, LARGEST) } else { Ok(()) };
        if let Ok(Err(error)) = tokio::task::spawn_blocking(cut).await {
            tracing::warn!("the log `{}` cannot be cut: {error}", log.display());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether this process's stderr appends to this file. A writer without append mode would leave a
/// hole after a truncation.
fn is_appended_to(log: &Path) -> bool {
    let own = io::stderr().as_fd().try_clone_to_owned().and_then(|own| File::from(own).metadata());
    let is_same = match (own, std::fs::metadata(log)) {
        (Ok(own), Ok(log)) => (own.dev(), own.ino()) == (log.dev(), log.ino()),
        _ => false,
    };
    is_same && rustix::fs::fcntl_getfl(io::stderr()).is_ok_and(|flags| flags.contains(OFlags::APPEND))
}

/// Rotates a log that is larger than `largest`: copies it to `<log>.1`, replacing the previous
/// copy, and truncates it. If the copy fails, the log stays until it has twice that size.
fn cut(log: &Path, largest: u64) -> io::Result<()> {
    let size = std::fs::metadata(log)?.len();
    if size <= largest {
        return Ok(());
    }
    let old = log.with_added_extension("1");
    // If the disk is full, the old copy is removed, because the latest lines are more important.
    let moved = std::fs::copy(log, &old).or_else(|_| {
        let _ = std::fs::remove_file(&old);
        std::fs::copy(log, &old)
    });
    if let Err(error) = moved {
        let _ = std::fs::remove_file(&old);
        if size <= largest.saturating_mul(2) {
            return Err(error);
        }
    }
    OpenOptions::new().write(true).truncate(true).open(log).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_old_goes() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join(LOG_FILE);
        let mut writer = OpenOptions::new().create(true).append(true).open(&log).expect("a log");
        let read = |path: &Path| std::fs::read_to_string(path).expect("a log");
        writer.write_all(b"first\n").expect("a line");
        cut(&log, 6).expect("it is small");
        assert_eq!(read(&log), "first\n");
        writer.write_all(b"second\n").expect("a line");
        cut(&log, 6).expect("it is cut");
        writer.write_all(b"third\n").expect("a line of somebody who had it open");
        assert_eq!(
            (read(&log), read(&log.with_added_extension("1"))),
            ("third\n".to_owned(), "first\nsecond\n".to_owned())
        );
        writer.write_all(b"fourth\n").expect("a line");
        cut(&log, 6).expect("it is cut again");
        let old = log.with_added_extension("1");
        assert_eq!(read(&old), "third\nfourth\n");
        // Makes the copy fail.
        std::fs::remove_file(&old).expect("removal");
        std::fs::create_dir_all(old.join("folder")).expect("a folder in its place");
        writer.write_all(b"fifth line\n").expect("a line");
        cut(&log, 6).expect_err("it says why");
        assert_eq!(read(&log), "fifth line\n", "nothing is lost yet");
        writer.write_all(b"sixth\n").expect("a line");
        cut(&log, 6).expect("it is as large as it may be");
        assert_eq!(read(&log), "");
    }
}
