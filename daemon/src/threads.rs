//! Whether the system lets this user start the threads that a daemon needs. Libraries panic where a thread cannot be started, so it
//! is looked at before.

use std::fs;

use rustix::process::{Resource, geteuid, getrlimit};

use crate::control_groups;

/// Threads that a daemon and a runner start at least, besides two for each core.
const NEEDED: u64 = 32;

/// Why too few threads can be started, and how many there must be; `None` where there are enough.
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

/// The limit of processes of the user counts threads; it does not hold for root.
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

/// The threads of a process of that user.
fn threads(process: &fs::DirEntry, user: u32) -> Option<u64> {
    process.file_name().to_str()?.parse::<u32>().ok()?;
    let status = fs::read_to_string(process.path().join("status")).ok()?;
    let is_own = control_groups::number_of(&status, "Uid:")? == u64::from(user);
    control_groups::number_of(&status, "Threads:").filter(|_| is_own)
}
