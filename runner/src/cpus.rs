//! How many threads compute: physical cores, of those that this process may run on, as many as its quota lets run.

use std::collections::HashSet;
use std::thread::available_parallelism;

/// The variable that says how many, whatever the machine has.
pub(crate) const VARIABLE: &str = "LODE_THREADS";

/// How many threads compute. `wanted` is the value of [`VARIABLE`], where it is set.
///
/// # Errors
/// The value is not a number of threads.
pub(crate) fn threads(wanted: Option<&str>) -> Result<usize, String> {
    if let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) {
        return match wanted.parse() {
            Ok(threads @ 1..=1024) => Ok(threads),
            _ => Err(format!("{VARIABLE} is `{wanted}`, expected a number of threads from 1 to 1024")),
        };
    }
    // Affinity and the quotas of control groups, of both versions.
    let allowed = available_parallelism().map_or(1, usize::from);
    Ok(physical_cores().map_or(allowed, |cores| cores.min(allowed)).max(1))
}

/// Cores that this process may run on; threads of one core count once. `None` where the system does not say.
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

/// Numbers as `0-3,8`.
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
    fn the_variable_decides() {
        assert_eq!(threads(Some("3")), Ok(3));
        for wrong in ["0", "-1", "two", "100000"] {
            assert!(threads(Some(wrong)).expect_err(wrong).contains(wrong));
        }
        let own = threads(None).expect("a number");
        assert!(own >= 1 && own <= available_parallelism().map_or(1, usize::from));
        assert_eq!(threads(Some("")), Ok(own), "an empty value says nothing");
    }
}
