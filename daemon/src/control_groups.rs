//! The control groups (version 2) of this process: limits of containers and of services.

use std::path::{Path, PathBuf};

/// Returns the folders of the process's group and of its ancestors.
pub(crate) fn folders() -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    Path::new(own).ancestors().map(|group| Path::new("/sys/fs/cgroup").join(group)).collect()
}

/// Returns the number in a file of a group; `None` if there is no such file, or if it contains
/// `max`.
pub(crate) fn number(group: &Path, file: &str) -> Option<u64> {
    std::fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
}

/// Returns the number behind `name` at the beginning of a line.
pub(crate) fn number_of(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}
