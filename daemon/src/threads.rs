//! Checks whether the system lets this user start the threads that a daemon needs. It runs at the
//! start, because libraries panic if a thread cannot be started.

use std::fs;

use rustix::process::{Resource, geteuid, getrlimit};

use crate::control_groups;

/// Minimal number of threads of a daemon and a runner, besides two per core.
const NEEDED: u64 = 32;

/// Returns the reason why too few threads can be started, with the number that is needed; `None` if
/// there are enough.
pub fn scarce_threads() -> Option<String> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let needed = NEEDED + 2 * cores;
    of_groups(needed).or_else(|| of_user(needed))
}

fn of_groups(needed: u64) -> Option<String> {
    control_groups::folders().iter().find_map(|group| {
        let most = control_groups::number(group, "pids.max")?;
        let used = control_groups::number(group, "pids.current")?;
        (most.saturating_sub(used) < needed).then(|| {
            format!(
                "the control group `{}` may have {most} threads and has {used}; the daemon and its runners need {needed} more: set \
                 TasksMax of the service, or the container's limit of processes, to {} at least",
                group.display(),
                used + needed
            )
        })
    })
}

/// The user's limit of processes counts threads; it does not apply to root.
fn of_user(needed: u64) -> Option<String> {
    let user = geteuid();
    let most = getrlimit(Resource::Nproc).current.filter(|_| !user.is_root())?;
    let used: u64 = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| threads(&entry, user.as_raw())).sum();
    (most.saturating_sub(used) < needed).then(|| {
        format!(
            "user {} may have {most} threads and has {used}; the daemon and its runners need {needed} more: `ulimit -u {}` or LimitNPROC \
             of the service raises it",
            user.as_raw(),
            used + needed
        )
    })
}

/// Returns the number of threads of a process, if this user owns it.
fn threads(process: &fs::DirEntry, user: u32) -> Option<u64> {
    process.file_name().to_str()?.parse::<u32>().ok()?;
    let status = fs::read_to_string(process.path().join("status")).ok()?;
    let is_own = control_groups::number_of(&status, "Uid:")? == u64::from(user);
    control_groups::number_of(&status, "Threads:").filter(|_| is_own)
}
