//! The isolation of runners, independent of the program. A runner cannot use networks or foreign
//! sockets, signal or trace other processes, access files that it does not need, or exceed its
//! memory limit.
//!
//! Runners compute with untrusted files. The daemon drops these privileges between the fork and the
//! program's start, irrevocably. If the kernel lacks one of the mechanisms, the other ones still
//! apply.
//!
//! - Landlock: read access to the program, libraries and GPU devices (the files of models arrive as
//!   descriptors); write access to those devices and to the compile cache of a GPU's driver; no
//!   signals or abstract sockets to other processes.
//! - seccomp: no sockets except inherited ones and pairs of its own, no `io_uring` (which also
//!   creates sockets), no tracing, no namespaces.
//! - `close_range`: no descriptors that the daemon inherited from its parent.
//! - `RLIMIT_DATA`: a limit of private memory; mapped weights do not count.

#![cfg_attr(target_os = "linux", expect(unsafe_code, reason = "system calls between fork and exec"))]

use std::ffi::OsString;
use std::path::Path;

use tokio::process::Command;

#[cfg(target_os = "linux")]
use crate::gpu_driver;

/// The restrictions of a runner.
#[derive(Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "what is taken on Linux only"))]
pub(crate) struct Isolation<'a> {
    /// Path of its program.
    pub(crate) program: &'a Path,
    /// Its environment, which may name folders of further libraries.
    pub(crate) environment: &'a [(OsString, OsString)],
    /// Whether access to files, sockets and other processes is restricted.
    pub(crate) isolated: bool,
    /// The limit of private memory, in bytes.
    pub(crate) memory_limit: Option<u64>,
}

#[cfg(not(target_os = "linux"))]
impl Isolation<'_> {
    /// Makes `command` start with these restrictions. Returns the reasons why some of them are
    /// unavailable.
    pub(crate) fn apply(&self, _command: &mut Command) -> Vec<String> {
        let limited = self.memory_limit.is_some().then(|| "memory is limited on Linux only".to_owned());
        let isolated = self.isolated.then(|| "access to files and sockets is restricted on Linux only".to_owned());
        limited.into_iter().chain(isolated).collect()
    }
}

#[cfg(target_os = "linux")]
impl Isolation<'_> {
    /// Makes `command` start with these restrictions. Returns the reasons why some of them are
    /// unavailable.
    pub(crate) fn apply(&self, command: &mut Command) -> Vec<String> {
        let mut missing = Vec::new();
        let filters = self.isolated.then(|| linux::filters(gpu_driver::is_there())).transpose();
        let filters = filters.unwrap_or_else(|reason| {
            missing.push(reason);
            None
        });
        let files = self.isolated.then(|| linux::files(self.program, self.environment)).transpose();
        let files = files.unwrap_or_else(|reason| {
            missing.push(reason);
            None
        });
        if files.as_ref().is_some_and(|files| !files.is_whole) {
            missing.push("this kernel's Landlock is older than its sixth version".to_owned());
        }
        let memory = self.memory_limit.map(linux::memory);
        // SAFETY: the closure does not allocate or lock; it makes a few system calls on values that
        // exist already.
        unsafe {
            command.pre_exec(move || linux::give_up(memory, files.as_ref(), filters.as_deref().unwrap_or_default()))
        };
        missing
    }
}

/// Whether the process has a seccomp filter, as far as the system reports it.
pub(crate) fn is_filtered(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    // Other systems have no such file; `apply` has reported that already.
    status.map_or(true, |status| status.lines().any(|line| line.starts_with("Seccomp:") && line.ends_with('2')))
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeMap;
    use std::ffi::OsString;
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::path::{Path, PathBuf};

    use landlock::{
        ABI, Access, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope,
    };
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    };

    use crate::gpu_driver;

    /// Folders with programs, libraries, their settings, and facts about the machine. A runner
    /// needs them to start, to load GPU drivers, and to count cores.
    const SYSTEM: [&str; 16] = [
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/etc",
        "/opt",
        "/nix",
        "/gnu/store",
        "/home/linuxbrew/.linuxbrew",
        "/sys",
        // No folders of other processes: their environment may contain tokens. The process's own
        // folder is added once the process exists.
        "/proc/cpuinfo",
        "/proc/devices",
        "/proc/driver",
        "/proc/meminfo",
        "/proc/modules",
        "/proc/sys",
    ];
    /// Devices that every program may use.
    const PLAIN_DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];
    /// Prefixes of the names of NVIDIA's devices; `dxg` is the device on the Windows Subsystem for
    /// Linux.
    const GPUS: [&str; 2] = ["nvidia", "dxg"];
    /// Variables that list folders with libraries.
    const LIBRARIES: [&str; 2] = ["LD_LIBRARY_PATH", "CUDA_LIBRARY_PATH"];
    /// Variables that name the folder of the CUDA toolkit, whose libraries are in `lib64`.
    const TOOLKITS: [&str; 2] = ["CUDA_HOME", "CUDA_PATH"];
    /// Terminal commands that inject input, see `ioctl_tty(2)`.
    const TIOCSTI: u64 = 0x5412;
    const TIOCLINUX: u64 = 0x541C;
    /// The bit that marks x32 system calls in the numbers that x86-64 kernels may accept.
    #[cfg(target_arch = "x86_64")]
    const X32: libc::c_long = 0x4000_0000;

    /// The kernel's Landlock ruleset.
    #[derive(Debug)]
    pub(super) struct Files {
        ruleset: OwnedFd,
        /// Whether a GPU's driver must be able to name its threads: it writes into their folders
        /// under `/proc` and fails to start if it cannot.
        names_threads: bool,
        /// Whether the kernel supports all requested restrictions.
        pub(super) is_whole: bool,
    }

    /// Returns the limit of private memory, hard and soft.
    pub(super) fn memory(bytes: u64) -> Rlimit {
        // An existing limit can be lowered but not raised.
        let bytes = getrlimit(Resource::Data).maximum.map_or(bytes, |maximum| bytes.min(maximum));
        Rlimit { current: Some(bytes), maximum: Some(bytes) }
    }

    /// Drops the privileges of this process, between fork and exec.
    ///
    /// # Errors
    /// The system refuses an operation that it supports. Whether it accepted the filters is checked
    /// from outside, since some kernels have none.
    pub(super) fn give_up(memory: Option<Rlimit>, files: Option<&Files>, filters: &[BpfProgram]) -> io::Result<()> {
        close_others();
        if let Some(limit) = memory {
            setrlimit(Resource::Data, limit)?;
        }
        if let Some(files) = files {
            restrict_files(files)?;
        }
        for filter in filters {
            let _ = seccompiler::apply_filter(filter);
        }
        Ok(())
    }

    /// Marks descriptors that the daemon inherited as close-on-exec.
    fn close_others() {
        const FIRST: libc::c_uint = 3;
        const CLOEXEC: libc::c_uint = 4;
        // SAFETY: no descriptor is closed before the program starts.
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, CLOEXEC) };
    }

    /// The attribute of a Landlock rule, see `landlock_add_rule(2)`.
    #[repr(C, packed)]
    struct Rule {
        allowed: u64,
        parent: libc::c_int,
    }

    fn restrict_files(files: &Files) -> io::Result<()> {
        const PATH_BENEATH: libc::c_int = 1;
        let ruleset = files.ruleset.as_raw_fd();
        let read = (AccessFs::ReadFile | AccessFs::ReadDir).bits();
        let write = (AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::WriteFile).bits();
        // SAFETY: the arguments follow the manual pages and outlive the calls.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            // Opened here, after the fork: before it, this would be the daemon's folder.
            let own = libc::open(c"/proc/self".as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
            if own >= 0 {
                let rule = Rule { allowed: read, parent: own };
                libc::syscall(libc::SYS_landlock_add_rule, ruleset, PATH_BENEATH, &raw const rule, 0);
            }
            let threads = libc::open(c"/proc/self/task".as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
            if threads >= 0 && files.names_threads {
                let rule = Rule { allowed: write, parent: threads };
                libc::syscall(libc::SYS_landlock_add_rule, ruleset, PATH_BENEATH, &raw const rule, 0);
            }
            if libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Builds the ruleset that allows the files that a runner needs.
    pub(super) fn files(program: &Path, environment: &[(OsString, OsString)]) -> Result<Files, String> {
        let failed = |e: landlock::RulesetError| format!("Landlock: {e}");
        // Handles everything that version 6 knows; an older kernel applies the part that it
        // supports.
        let abi = ABI::V6;
        let reading = AccessFs::ReadFile | AccessFs::ReadDir;
        let running = reading | AccessFs::Execute;
        let devices = reading | AccessFs::WriteFile | AccessFs::IoctlDev;
        let making =
            AccessFs::MakeReg | AccessFs::MakeDir | AccessFs::RemoveFile | AccessFs::RemoveDir | AccessFs::Refer;
        let making = reading | AccessFs::WriteFile | AccessFs::Truncate | making;
        let ruleset = Ruleset::default().handle_access(AccessFs::from_all(abi)).map_err(failed)?;
        let ruleset = ruleset.scope(Scope::Signal | Scope::AbstractUnixSocket).map_err(failed)?;
        let mut ruleset = ruleset.create().map_err(failed)?;
        let said = |names: [&'static str; 2]| {
            environment.iter().filter(move |(name, _)| names.iter().any(|own| name == own)).map(|(_, value)| value)
        };
        let libraries = said(LIBRARIES).flat_map(std::env::split_paths);
        let libraries = libraries.chain(said(TOOLKITS).map(|folder| Path::new(folder).join("lib64")));
        let libraries = libraries.filter(|path| path.is_absolute());
        // Libraries may also be installed beside the program.
        let beside = program.parent().and_then(Path::parent).map(|prefix| prefix.join("lib"));
        let system = SYSTEM.iter().map(PathBuf::from).chain(libraries).chain(beside).chain([program.to_owned()]);
        let compiled = environment.iter().filter(|(name, _)| name == gpu_driver::CACHE && gpu_driver::is_there());
        let compiled =
            compiled.map(|(_, folder)| (PathBuf::from(folder), making)).filter(|(folder, _)| folder.is_absolute());
        let own_devices = own_devices().map(|path| (path, devices)).chain(compiled);
        for (path, access) in system.map(|path| (path, running)).chain(own_devices) {
            // A path that does not exist needs no rule.
            let Ok(opened) = PathFd::new(&path) else { continue };
            // The kernel rejects folder rights on a file.
            let access: BitFlags<AccessFs> = if path.is_dir() { access } else { access & AccessFs::from_file(abi) };
            ruleset = ruleset.add_rule(PathBeneath::new(opened, access)).map_err(failed)?;
        }
        let ruleset: Option<OwnedFd> = ruleset.into();
        let ruleset = ruleset.ok_or("this kernel has no Landlock, so files are not restricted")?;
        Ok(Files { ruleset, names_threads: gpu_driver::is_there(), is_whole: version() >= 6 })
    }

    /// Returns the kernel's Landlock version, see `landlock_create_ruleset(2)`.
    fn version() -> libc::c_long {
        const VERSION: libc::c_uint = 1;
        // SAFETY: with this flag the call takes no attributes.
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, VERSION) }
    }

    fn gpus() -> impl Iterator<Item = PathBuf> {
        let is_gpu = |name: &str| GPUS.iter().any(|gpu| name.starts_with(gpu));
        let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
        let gpus = entries.filter(move |entry| entry.file_name().to_str().is_some_and(is_gpu));
        gpus.map(|entry| entry.path())
    }

    /// Lists the devices of this machine that a runner may need.
    fn own_devices() -> impl Iterator<Item = PathBuf> {
        PLAIN_DEVICES.iter().map(PathBuf::from).chain(gpus())
    }

    /// Builds filters that refuse system calls which reach other processes or networks; the calls
    /// fail with `EPERM`. With a GPU, its driver may create a Unix socket, but cannot connect it.
    pub(super) fn filters(has_gpu: bool) -> Result<Vec<BpfProgram>, String> {
        let built = refusals(has_gpu).and_then(|refusals| Ok(vec![refusals, without_clone3()?]));
        built.map_err(|e| format!("seccomp: {e}"))
    }

    /// Makes `clone3` appear unimplemented, so that programs use `clone` instead. Filters cannot
    /// inspect the arguments of `clone3`, because they are in memory.
    fn without_clone3() -> Result<BpfProgram, seccompiler::BackendError> {
        let absent = SeccompAction::Errno(libc::ENOSYS as u32);
        let architecture = std::env::consts::ARCH.try_into()?;
        SeccompFilter::new([(libc::SYS_clone3, Vec::new())].into(), SeccompAction::Allow, absent, architecture)?
            .try_into()
    }

    /// Calls that are refused with any arguments.
    const REFUSED: [libc::c_long; 17] = [
        libc::SYS_socket,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_io_uring_setup,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_pidfd_getfd,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_umount2,
    ];

    fn refusals(has_gpu: bool) -> Result<BpfProgram, seccompiler::BackendError> {
        let has = |bits: libc::c_int| {
            let bits = u64::from(bits.cast_unsigned());
            let set = SeccompCmpOp::MaskedEq(bits);
            SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Dword, set, bits)?])
        };
        let command = |command: u64| {
            SeccompRule::new(vec![SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, command)?])
        };
        let namespaces = [
            libc::CLONE_NEWUSER,
            libc::CLONE_NEWNS,
            libc::CLONE_NEWPID,
            libc::CLONE_NEWNET,
            libc::CLONE_NEWIPC,
            libc::CLONE_NEWUTS,
            libc::CLONE_NEWCGROUP,
        ];
        let kind = |kind: libc::c_int| {
            let (length, mask) = (SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(0xf));
            SeccompRule::new(vec![SeccompCondition::new(1, length, mask, u64::from(kind.cast_unsigned()))?])
        };
        let mut refused = BTreeMap::from([
            (libc::SYS_clone, namespaces.into_iter().map(has).collect::<Result<_, _>>()?),
            // These commands inject input into a terminal as if its user had typed it.
            (libc::SYS_ioctl, vec![command(TIOCSTI)?, command(TIOCLINUX)?]),
            // Socket pairs of these kinds accept an address with each message, so they could send
            // anywhere.
            (libc::SYS_socketpair, vec![kind(libc::SOCK_DGRAM)?, kind(libc::SOCK_RAW)?, kind(libc::SOCK_SEQPACKET)?]),
        ]);
        refused.extend(REFUSED.map(|call| (call, Vec::new())));
        if has_gpu {
            // NVIDIA's driver binds a Unix socket and listens on it for processes that share memory
            // with it. `connect` stays refused.
            let others = [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_RDM];
            let mut sockets = others.into_iter().map(kind).collect::<Result<Vec<_>, _>>()?;
            let local = u64::from(libc::AF_UNIX.cast_unsigned());
            let other = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, local)?;
            sockets.push(SeccompRule::new(vec![other])?);
            refused.insert(libc::SYS_socket, sockets);
            refused.remove(&libc::SYS_bind);
        }
        #[cfg(target_arch = "x86_64")]
        for call in refused.keys().copied().collect::<Vec<_>>() {
            refused.insert(call | X32, Vec::new());
        }
        let refusal = SeccompAction::Errno(libc::EPERM as u32);
        let architecture = std::env::consts::ARCH.try_into()?;
        SeccompFilter::new(refused, SeccompAction::Allow, refusal, architecture)?.try_into()
    }

    #[cfg(test)]
    mod tests {
        use super::filters;

        #[test]
        fn there_are_filters_with_a_gpu_and_without() {
            let [without, with] = [false, true].map(|has_gpu| filters(has_gpu).expect("two programs"));
            assert!(without.len() == 2 && without[1] == with[1] && without[0] != with[0]);
        }
    }
}
