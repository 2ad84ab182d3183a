//! The log of a daemon that a command has started: `daemon.log` in the store's folder, to which the daemon and its runners
//! append. It is bounded: where it is larger than [`LARGEST`], what it has takes the place of what was moved away before.
//!
//! It is copied and cut rather than renamed, because runners have it open too. A line that comes between the two is lost.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use store::Store;

/// Its name in the store's folder.
const LOG_FILE: &str = "daemon.log";
/// The log is cut when it is larger, in bytes.
const LARGEST: u64 = 16 << 20;
/// Time between two looks at it.
const LOOK: Duration = Duration::from_secs(10);

/// The log of a daemon that a command has started: in the store's folder, or for a read-only store in this user's own folder below
/// `temporary`.
pub fn file(home: &Path, temporary: &Path) -> PathBuf {
    if !Store::is_read_only_at(home) {
        return home.join(LOG_FILE);
    }
    temporary.join(format!("lode-log-{}", rustix::process::getuid().as_raw())).join(LOG_FILE)
}

/// Keeps the log of this daemon small, where it is written to that file; ends with the daemon.
pub(crate) async fn keep_small(log: &Path) {
    let log = log.to_owned();
    loop {
        let path = log.clone();
        // Where it goes elsewhere somebody else looks after it.
        let cut = move || if is_appended_to(&path) { cut(&path, LARGEST) } else { Ok(()) };
        if let Ok(Err(error)) = tokio::task::spawn_blocking(cut).await {
            tracing::warn!("the log `{}` cannot be cut: {error}", log.display());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether what this process says as an error goes to the end of that file, wherever that is: who writes where it was would leave a hole
/// after a cut.
fn is_appended_to(log: &Path) -> bool {
    let own = io::stderr().as_fd().try_clone_to_owned().and_then(|own| File::from(own).metadata());
    let is_same = match (own, std::fs::metadata(log)) {
        (Ok(own), Ok(log)) => (own.dev(), own.ino()) == (log.dev(), log.ino()),
        _ => false,
    };
    is_same && rustix::fs::fcntl_getfl(io::stderr()).is_ok_and(|flags| flags.contains(OFlags::APPEND))
}

/// Moves what a log has into `<log>.1`, in the place of what was there, where it is larger than that. What cannot be moved stays, up to
/// twice the size.
fn cut(log: &Path, largest: u64) -> io::Result<()> {
    let size = std::fs::metadata(log)?.len();
    if size <= largest {
        return Ok(());
    }
    let old = log.with_added_extension("1");
    // The disk may be full of what is there: the latest lines count.
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
        // It cannot be moved.
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
