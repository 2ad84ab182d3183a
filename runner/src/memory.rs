//! The private memory of this process.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The kernel's memory statistics of this process. The file is opened at the start, because an
/// isolated process cannot open files later.
#[derive(Debug)]
pub(crate) struct Account(Option<File>);

impl Account {
    /// Opens the statistics, if the system has them.
    pub(crate) fn open() -> Self {
        Self(File::open("/proc/self/smaps_rollup").ok())
    }

    /// Returns the bytes of pages that no file backs, including swapped ones; 0 if the system does
    /// not report them. Mapped weights do not count: they are in the page cache, which processes
    /// share.
    pub(crate) fn private(&self) -> u64 {
        let mut text = [0; 4096];
        let read = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..read]);
        ["Anonymous", "Swap"].into_iter().filter_map(|name| bytes(&text, name)).sum()
    }
}

/// Returns the bytes in a line of `/proc/PID/smaps_rollup`, see proc(5).
fn bytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_lines() {
        let text = "55d0-7ffe ---p 00000000 00:00 0    [rollup]\nRss:  900 kB\nAnonymous:      12 kB\nSwap:   3 kB\nSwapPss: 9 kB\n";
        assert_eq!((bytes(text, "Anonymous"), bytes(text, "Swap")), (Some(12 * 1024), Some(3 * 1024)));
        assert_eq!(bytes(text, "Locked"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn counts_what_is_written() {
        let account = Account::open();
        let before = account.private();
        assert!(before > 0);
        let written = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(account.private() > before + (32 << 20));
        drop(written);
    }
}
