//! The log of a daemon that a command has started: `daemon.log` in the store's folder, to which the daemon and its runners
//! append. It is bounded: what is older than the last [`LARGEST`] bytes, twice, goes.
//!
//! It is copied and cut rather than renamed, because runners have it open too.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Its name in the store's folder.
pub const LOG_FILE: &str = "daemon.log";
/// The log is cut when it is larger, in bytes.
const LARGEST: u64 = 16 << 20;
/// Time between two looks at it.
const LOOK: Duration = Duration::from_secs(10);

/// Keeps the log of this daemon small, where it is written to the store's folder; ends with the daemon.
pub(crate) async fn keep_small(home: &Path) {
    let log = home.join(LOG_FILE);
    while is_standard_error(&log) {
        let path = log.clone();
        let cut = tokio::task::spawn_blocking(move || cut(&path, LARGEST)).await;
        if let Ok(Err(error)) = cut {
            tracing::warn!("the log `{}` cannot be cut: {error}", log.display());
        }
        tokio::time::sleep(LOOK).await;
    }
    // Somebody else looks after where it goes.
    std::future::pending::<()>().await;
}

/// Whether what this process says as an error goes into that file.
fn is_standard_error(log: &Path) -> bool {
    let own = io::stderr().as_fd().try_clone_to_owned().and_then(|own| File::from(own).metadata());
    match (own, std::fs::metadata(log)) {
        (Ok(own), Ok(log)) => (own.dev(), own.ino()) == (log.dev(), log.ino()),
        _ => false,
    }
}

/// Moves what a log has into `<log>.1`, in the place of what was there, where it is larger than that.
fn cut(log: &Path, largest: u64) -> io::Result<()> {
    if std::fs::metadata(log)?.len() <= largest {
        return Ok(());
    }
    let old = log.with_added_extension("1");
    if std::fs::copy(log, &old).is_err() {
        // On a full disk the latest lines count, and that there is room again.
        let _ = std::fs::remove_file(&old);
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
        assert_eq!(read(&log.with_added_extension("1")), "third\nfourth\n");
    }
}
