//! What this process gives up by itself once it has started: other programs, and changing its limits.
//!
//! The daemon has taken the rest (files, sockets, other processes) before the program began. These two are needed until
//! the process that renders templates has its own limit of memory.

/// Gives up other programs and changes of limits, for this thread and all that it will start. What the kernel lacks is logged.
pub(crate) fn apply() {
    if let Err(reason) = means::restrict() {
        tracing::warn!("runners are not fully isolated: {reason}");
    }
}

/// Limits the private memory of this process.
///
/// # Errors
/// Where the system knows no such limit.
pub(crate) fn limit_memory(bytes: u64) -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // A limit that was there may be lowered and not raised.
    let bytes = getrlimit(Resource::Data).maximum.map_or(bytes, |maximum| bytes.min(maximum));
    Ok(setrlimit(Resource::Data, Rlimit { current: Some(bytes), maximum: Some(bytes) })?)
}

#[cfg(target_os = "linux")]
mod means {
    use std::collections::BTreeMap;

    use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule};

    /// Refuses the calls: they fail as if the user were not permitted.
    pub(super) fn restrict() -> Result<(), String> {
        let filter = filter().map_err(|e| format!("seccomp: {e}"))?;
        seccompiler::apply_filter(&filter).map_err(|e| format!("seccomp: {e}"))
    }

    fn filter() -> Result<seccompiler::BpfProgram, seccompiler::BackendError> {
        let sets_a_limit =
            SeccompRule::new(vec![SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?])?;
        let refused = BTreeMap::from([
            (libc::SYS_execve, Vec::new()),
            (libc::SYS_execveat, Vec::new()),
            (libc::SYS_setrlimit, Vec::new()),
            // To ask for one is fine.
            (libc::SYS_prlimit64, vec![sets_a_limit]),
            #[cfg(target_arch = "x86_64")]
            (x32::EXECVE, Vec::new()),
            #[cfg(target_arch = "x86_64")]
            (x32::EXECVEAT, Vec::new()),
        ]);
        let refusal = SeccompAction::Errno(libc::EPERM as u32);
        let architecture = std::env::consts::ARCH.try_into()?;
        SeccompFilter::new(refused, SeccompAction::Allow, refusal, architecture)?.try_into()
    }

    /// Numbers by which x86-64 kernels may take calls of x32.
    #[cfg(target_arch = "x86_64")]
    mod x32 {
        pub(super) const EXECVE: libc::c_long = 0x4000_0208;
        pub(super) const EXECVEAT: libc::c_long = 0x4000_0221;
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::ErrorKind;

    use rustix::process::{Resource, getrlimit};

    use super::*;

    #[test]
    fn other_programs_and_limits_are_out_of_reach() {
        // Restrictions are a thread's own, so the others of this program keep their powers.
        let isolated = std::thread::spawn(|| {
            if let Err(reason) = means::restrict() {
                panic!("every kernel that we know has seccomp: {reason}");
            }
            let error = std::process::Command::new("/bin/true").status().expect_err("it does not start");
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            getrlimit(Resource::Data);
            let error = limit_memory(1 << 40).expect_err("it stays");
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        });
        isolated.join().expect("the thread ends well");
        assert!(std::process::Command::new("/bin/true").status().expect("others are free").success());
    }
}
