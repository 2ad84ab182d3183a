//! The number of compute threads: the physical cores that this process may run on, at most as many
//! as its CPU quota allows.

use std::collections::HashSet;
use std::thread::available_parallelism;

/// Returns the number of compute threads.
pub(crate) fn threads() -> usize {
    // Respects the affinity, and the quotas of control groups v1 and v2.
    let allowed = available_parallelism().map_or(1, usize::from);
    physical_cores().map_or(allowed, |cores| cores.min(allowed)).max(1)
}

/// Returns the number of cores that this process may run on. Threads of one core count once. `None`
/// if the system does not report them.
fn physical_cores() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let siblings = |cpu: usize| {
        let topology = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
        std::fs::read_to_string(format!("{topology}/thread_siblings_list")).ok()
    };
    let cores = parse_list(list.trim())?.into_iter().map(siblings).collect::<Option<HashSet<_>>>()?;
    Some(cores.len()).filter(|cores| *cores > 0)
}

/// Parses a list of numbers, such as `0-3,8`.
fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last > 1 << 16 {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(parse_list("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("5"), Some(vec![5]));
        assert_eq!(parse_list("x"), None);
        assert_eq!(parse_list("0-99999999"), None);
    }

    #[test]
    fn no_more_threads_than_may_run() {
        assert!((1..=available_parallelism().map_or(1, usize::from)).contains(&threads()));
    }
}
