//! Permissions that this process gives up once it has started: running other programs, changing its
//! limits, and sending signals to other processes.
//!
//! The daemon takes the other ones (files, sockets, other processes) before the program begins. The
//! permissions here are needed until the processes that render templates have set their limits.

/// The role of a process of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessRole {
    /// It computes; it may send signals only to itself.
    Runner,
    /// It starts children, and may have to kill them.
    ForkServer,
}

/// Gives up the permissions, for this thread and all threads that it starts later. Logs what the
/// kernel does not support.
pub(crate) fn apply(part: ProcessRole) {
    if let Err(reason) = seccomp::restrict(part) {
        tracing::warn!("runners are not fully isolated: {reason}");
    }
}

/// Limits the private memory of this process.
///
/// # Errors
/// Fails if the system has no such limit.
pub(crate) fn limit_memory(bytes: u64) -> std::io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // An existing maximum may be lowered but not raised.
    let bytes = getrlimit(Resource::Data).maximum.map_or(bytes, |maximum| bytes.min(maximum));
    Ok(setrlimit(Resource::Data, Rlimit { current: Some(bytes), maximum: Some(bytes) })?)
}

#[cfg(target_os = "linux")]
mod seccomp {
    use std::collections::BTreeMap;

    use super::ProcessRole;
    use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule};

    /// Refuses the system calls: they fail with `EPERM`.
    pub(super) fn restrict(part: ProcessRole) -> Result<(), String> {
        let filter = filter(part).map_err(|e| format!("seccomp: {e}"))?;
        seccompiler::apply_filter(&filter).map_err(|e| format!("seccomp: {e}"))
    }

    fn filter(part: ProcessRole) -> Result<seccompiler::BpfProgram, seccompiler::BackendError> {
        let sets_a_limit =
            SeccompRule::new(vec![SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?])?;
        let to_others = |pid: u32| {
            let own = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, pid.into())?;
            SeccompRule::new(vec![own])
        };
        let mut refused = BTreeMap::from([
            (libc::SYS_execve, Vec::new()),
            (libc::SYS_execveat, Vec::new()),
            (libc::SYS_setrlimit, Vec::new()),
            // Reading a limit is allowed.
            (libc::SYS_prlimit64, vec![sets_a_limit]),
            #[cfg(target_arch = "x86_64")]
            (x32::EXECVE, Vec::new()),
            #[cfg(target_arch = "x86_64")]
            (x32::EXECVEAT, Vec::new()),
        ]);
        if part == ProcessRole::Runner {
            let own = std::process::id();
            for call in [libc::SYS_kill, libc::SYS_tgkill] {
                refused.insert(call, vec![to_others(own)?]);
            }
            for call in
                [libc::SYS_tkill, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo, libc::SYS_pidfd_send_signal]
            {
                refused.insert(call, Vec::new());
            }
        }
        let refusal = SeccompAction::Errno(libc::EPERM as u32);
        let architecture = std::env::consts::ARCH.try_into()?;
        SeccompFilter::new(refused, SeccompAction::Allow, refusal, architecture)?.try_into()
    }

    /// Numbers under which x86-64 kernels may accept system calls of the x32 ABI.
    #[cfg(target_arch = "x86_64")]
    mod x32 {
        pub(super) const EXECVE: libc::c_long = 0x4000_0208;
        pub(super) const EXECVEAT: libc::c_long = 0x4000_0221;
    }
}

#[cfg(not(target_os = "linux"))]
mod seccomp {
    pub(super) fn restrict(_part: super::ProcessRole) -> Result<(), String> {
        Err("restricting other programs is supported on Linux only".to_owned())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::ErrorKind;

    use rustix::process::{Resource, getrlimit};

    use super::*;

    #[test]
    fn other_programs_and_limits_are_out_of_reach() {
        // Restrictions apply to one thread, so the other threads of this program keep their
        // permissions.
        let isolated = std::thread::spawn(|| {
            if let Err(reason) = seccomp::restrict(ProcessRole::Runner) {
                panic!("every kernel that we know has seccomp: {reason}");
            }
            let error = std::process::Command::new("/bin/true").status().expect_err("it does not start");
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            getrlimit(Resource::Data);
            let parent = rustix::process::getppid().expect("a parent");
            assert!(rustix::process::test_kill_process(parent).is_err(), "signals are for itself");
            rustix::process::test_kill_process(rustix::process::getpid()).expect("itself");
            let error = limit_memory(1 << 40).expect_err("it stays");
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        });
        isolated.join().expect("the thread ends well");
        assert!(std::process::Command::new("/bin/true").status().expect("others are free").success());
    }
}
