//! What a runner may not do: speak with a network, start programs, read or write files that are none of its business, and,
//! where it is told so, take more memory.
//!
//! A runner computes with files that strangers made. It gives these powers up by itself, before it starts a thread or
//! reads a byte of them, and cannot take them back. A kernel that lacks one of the means leaves the others.
//!
//! | means | what |
//! |---|---|
//! | Landlock | reading: programs' libraries, devices of GPUs (files of models come as descriptors); writing: those devices, and nothing else |
//! | seccomp | no sockets but the one that it has, no `io_uring` (which makes sockets too), no other programs |
//! | `RLIMIT_DATA` | private memory; mapped weights do not count |

/// What the daemon wants isolated.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Isolation {
    /// Give up the network, other programs, and all files but what drivers need, and all sockets but the one that it has.
    #[arg(long)]
    isolate: bool,
    /// Bytes of private memory that the process may have.
    #[arg(long)]
    memory_limit: Option<u64>,
    /// Log what cannot be applied.
    #[arg(long = "report-isolation")]
    report: bool,
}

impl Isolation {
    /// Applies it to this thread and all that it will start. What cannot be applied is logged, where that is wanted.
    pub(crate) fn apply(&self) {
        let mut missing = Vec::new();
        if let Some(bytes) = self.memory_limit {
            missing.extend(means::limit_memory(bytes).err());
        }
        if self.isolate {
            missing.extend(means::restrict_files().err());
            missing.extend(means::restrict_calls().err());
        }
        if self.report {
            for reason in missing {
                tracing::warn!("runners are not fully isolated: {reason}");
            }
        }
    }
}

#[cfg(target_os = "linux")]
mod means {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use landlock::{
        ABI, Access, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    };
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    };

    /// Where libraries, their settings and facts on the machine are: needed to load GPU drivers and to count cores.
    const SYSTEM: [&str; 15] = [
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/etc",
        "/opt",
        "/nix",
        "/sys",
        // Of other processes nothing: their environment may have tokens.
        "/proc/self",
        "/proc/cpuinfo",
        "/proc/devices",
        "/proc/driver",
        "/proc/meminfo",
        "/proc/modules",
        "/proc/sys",
    ];
    /// What every program may use.
    const PLAIN_DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];
    /// How names of GPUs' devices begin: NVIDIA's, AMD's, and those of the kernel's own drivers. CUDA shares memory by a folder.
    const GPUS: [&str; 4] = ["nvidia", "dri", "kfd", "shm"];

    /// Hard and soft limit of private memory.
    pub(super) fn limit_memory(bytes: u64) -> Result<(), String> {
        // A limit that was there may be lowered and not raised.
        let bytes = getrlimit(Resource::Data).maximum.map_or(bytes, |maximum| bytes.min(maximum));
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        setrlimit(Resource::Data, limit).map_err(|e| format!("memory cannot be limited to {bytes} bytes: {e}"))
    }

    /// Leaves the files that a runner needs.
    pub(super) fn restrict_files() -> Result<(), String> {
        let failed = |e: landlock::RulesetError| format!("Landlock: {e}");
        // What the fifth version knows; an older kernel applies what it has of it.
        let abi = ABI::V5;
        let reading = AccessFs::ReadFile | AccessFs::ReadDir;
        let devices = reading | AccessFs::WriteFile | AccessFs::IoctlDev;
        let ruleset = Ruleset::default().handle_access(AccessFs::from_all(abi)).map_err(failed)?;
        let mut ruleset = ruleset.create().map_err(failed)?;
        let system = SYSTEM.iter().map(|path| (PathBuf::from(path), reading));
        for (path, access) in system.chain(own_devices().map(|path| (path, devices))) {
            // What is not there needs no rule.
            let Ok(opened) = PathFd::new(&path) else { continue };
            // Rights about folders mean nothing for a file, and are refused.
            let access: BitFlags<AccessFs> = if path.is_dir() { access } else { access & AccessFs::from_file(abi) };
            ruleset = ruleset.add_rule(PathBeneath::new(opened, access)).map_err(failed)?;
        }
        match ruleset.restrict_self().map_err(failed)?.ruleset {
            RulesetStatus::FullyEnforced => Ok(()),
            RulesetStatus::PartiallyEnforced => Err("this kernel's Landlock is older than version 5".to_owned()),
            RulesetStatus::NotEnforced => Err("this kernel has no Landlock, so files are not restricted".to_owned()),
        }
    }

    /// The devices of this machine that a runner may need.
    fn own_devices() -> impl Iterator<Item = PathBuf> {
        let is_gpu = |name: &str| GPUS.iter().any(|gpu| name.starts_with(gpu));
        let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
        let gpus = entries.filter(move |entry| entry.file_name().to_str().is_some_and(is_gpu));
        PLAIN_DEVICES.iter().map(PathBuf::from).chain(gpus.map(|entry| entry.path()))
    }

    /// Refuses network and programs: the calls fail as if the user were not permitted.
    pub(super) fn restrict_calls() -> Result<(), String> {
        let filter = filter().map_err(|e| format!("seccomp: {e}"))?;
        seccompiler::apply_filter(&filter).map_err(|e| format!("seccomp: {e}"))
    }

    fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
        let kind = |kind: libc::c_int| {
            let mask = SeccompCmpOp::MaskedEq(0xf);
            SeccompRule::new(vec![SeccompCondition::new(
                1,
                SeccompCmpArgLen::Dword,
                mask,
                u64::from(kind.cast_unsigned()),
            )?])
        };
        let other_kinds = vec![kind(libc::SOCK_DGRAM)?, kind(libc::SOCK_RAW)?, kind(libc::SOCK_SEQPACKET)?];
        let refused = BTreeMap::from([
            (libc::SYS_socket, Vec::new()),
            (libc::SYS_connect, Vec::new()),
            (libc::SYS_bind, Vec::new()),
            // Those of a pair that take an address with each message could send anywhere.
            (libc::SYS_socketpair, other_kinds),
            (libc::SYS_io_uring_setup, Vec::new()),
            (libc::SYS_execve, Vec::new()),
            (libc::SYS_execveat, Vec::new()),
        ]);
        let refusal = SeccompAction::Errno(libc::EPERM as u32);
        let architecture = std::env::consts::ARCH.try_into()?;
        SeccompFilter::new(refused, SeccompAction::Allow, refusal, architecture)?.try_into()
    }
}

#[cfg(not(target_os = "linux"))]
mod means {
    pub(super) fn limit_memory(_bytes: u64) -> Result<(), String> {
        Err("memory is limited on Linux only".to_owned())
    }

    pub(super) fn restrict_files() -> Result<(), String> {
        Err("files are restricted on Linux only".to_owned())
    }

    pub(super) fn restrict_calls() -> Result<(), String> {
        Err("system calls are restricted on Linux only".to_owned())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpListener;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn kind<T>(result: std::io::Result<T>) -> Option<ErrorKind> {
        result.err().map(|error| error.kind())
    }

    /// Restrictions are a thread's own, so the others of this program keep their powers.
    fn isolated<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(work).join()).expect("the thread ends well")
    }

    #[test]
    fn a_network_and_programs_are_out_of_reach() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (socket, elsewhere) = (folder.path().join("s"), folder.path().join("elsewhere"));
        let listener = UnixListener::bind(&elsewhere).expect("a socket");
        let _client = UnixStream::connect(&elsewhere).expect("a connection");
        isolated(|| {
            if let Err(reason) = means::restrict_calls() {
                panic!("every kernel that we know has seccomp: {reason}");
            }
            assert_eq!(kind(TcpListener::bind("127.0.0.1:0")), Some(ErrorKind::PermissionDenied));
            assert_eq!(kind(std::net::UdpSocket::bind("[::1]:0")), Some(ErrorKind::PermissionDenied));
            assert_eq!(kind(std::process::Command::new("/bin/true").status()), Some(ErrorKind::PermissionDenied));
            assert_eq!(kind(UnixListener::bind(&socket)), Some(ErrorKind::PermissionDenied));
            assert_eq!(kind(UnixStream::connect(&elsewhere)), Some(ErrorKind::PermissionDenied));
            drop(UnixStream::pair().expect("within a program they are harmless"));
            assert_eq!(kind(std::os::unix::net::UnixDatagram::pair()), Some(ErrorKind::PermissionDenied));
            listener.accept().expect("what was there before goes on");
        });
        TcpListener::bind("127.0.0.1:0").expect("other threads are free");
    }

    #[test]
    fn no_file_of_a_user_can_be_read_or_written() {
        let other = tempfile::tempdir().expect("a folder");
        let secret = other.path().join("secret");
        std::fs::write(&secret, "secret").expect("a secret");
        let open = std::fs::File::open(&secret).expect("an open file");
        // Another process of the same user, as the daemon is.
        let parent = std::os::unix::process::parent_id();
        isolated(|| {
            if let Err(reason) = means::restrict_files() {
                // Then there is nothing to see; the runner says so too.
                tracing::warn!("{reason}");
                return;
            }
            assert_eq!(kind(std::fs::read(&secret)), Some(ErrorKind::PermissionDenied));
            assert_eq!(kind(std::fs::write(&secret, "other")), Some(ErrorKind::PermissionDenied));
            assert_eq!(kind(std::fs::remove_file(&secret)), Some(ErrorKind::PermissionDenied));
            assert_eq!(kind(std::fs::write(other.path().join("file"), "x")), Some(ErrorKind::PermissionDenied));
            assert_eq!(kind(std::fs::read_dir("/dev")), Some(ErrorKind::PermissionDenied));
            assert_eq!(kind(std::fs::read("/dev/tty")), Some(ErrorKind::PermissionDenied));
            let environment = format!("/proc/{parent}/environ");
            assert_eq!(kind(std::fs::read(environment)), Some(ErrorKind::PermissionDenied));
            std::fs::write("/dev/null", "x").expect("every program may use it");
            let passed = std::io::read_to_string(&open).expect("what was opened for it can be read");
            assert_eq!(passed, "secret");
            std::fs::read_to_string("/proc/self/status").expect("facts on itself");
        });
    }
}
