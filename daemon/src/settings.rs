//! What a daemon is told when it starts.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use library::AssumedDevices;
use protocol::{InstructionSet, KvType};
use registry::server::Completeness;
use registry::server::access::{Challenge, Mode};
use store::CrashPoint;
use transfer::{HubSettings, RegistrySettings};

use crate::tls::TlsFiles;

/// Everything that a daemon is told.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Settings {
    /// Folder of the store.
    pub home: PathBuf,
    /// The socket where commands hand files over.
    pub socket: PathBuf,
    /// Whether other users of the machine may hand files over there.
    pub socket_is_shared: bool,
    /// Where it listens.
    pub address: SocketAddr,
    /// What it speaks TLS with.
    pub tls: Option<TlsFiles>,
    /// More names that requests may be for.
    pub allowed_hosts: Vec<String>,
    /// More origins whose pages may call it.
    pub origins: Vec<String>,
    /// The file of API keys.
    pub keys: Option<PathBuf>,
    /// Who may use the registry.
    pub registry: RegistryAccess,
    /// Other registries, for pulls and pushes.
    pub registries: RegistrySettings,
    /// The hub of Hugging Face, or a mirror of it.
    pub hub: HubSettings,
    /// The hosts from which the registry fetches what is missing, where it does.
    pub pull_through: Option<Vec<String>>,
    /// How long an idle model stays loaded; `None` is forever.
    pub keep_alive: Option<Duration>,
    /// Context where a request names none, in tokens.
    pub context: u64,
    /// Whether it is made longer for prompts that need more.
    pub context_grows: bool,
    /// Whether what was computed of a prompt is shared between API keys.
    pub shares_prefixes: bool,
    /// Requests that a model answers at a time.
    pub parallel: u64,
    /// How KV caches keep their elements.
    pub kv_type: KvType,
    /// Models loaded at a time.
    pub max_loaded: usize,
    /// Requests that wait at a time.
    pub max_queue: usize,
    /// Bytes that loaded models may need together.
    pub memory_limit: Option<u64>,
    /// Names of models that are loaded at the start.
    pub preload: Vec<String>,
    /// Names of models that are loaded at the start and stay.
    pub pin: Vec<String>,
    /// How long a load may take.
    pub load_timeout: Duration,
    /// The device of runners.
    pub device: String,
    /// What stays on GPUs of weights that nobody uses: bytes of each, or a part of it (`25%`).
    pub gpu_keep: String,
    /// How plans treat devices.
    pub devices: AssumedDevices,
    /// Runners compute in float32 throughout.
    pub reference: bool,
    /// Runners compute a token on the CPU in the same way whether it is given or generated.
    pub deterministic: bool,
    /// The runner's program.
    pub runner: PathBuf,
    /// Runners give up network, programs and files.
    pub isolated: bool,
    /// What runners get of the environment.
    pub runner_environment: Vec<(OsString, OsString)>,
    /// How long a runner may be without a sign of life; `None` is forever.
    pub runner_timeout: Option<Duration>,
    /// Bytes of private memory that a runner may have; a little more than is planned for its model where it is not set.
    pub runner_memory: Option<u64>,
    /// Threads of a runner that compute on the CPU; what the machine has where it is not set.
    pub threads: Option<usize>,
    /// The instructions that a runner's kernels are made of; the best that the machine has where it is not set.
    pub cpu: Option<InstructionSet>,
    /// Where sockets and other things go that end with the process.
    pub temporary: PathBuf,
    /// Where to be killed, for tests.
    pub crash_at: Option<CrashPoint>,
}

/// Who may use the registry.
#[derive(Clone, Debug)]
pub struct RegistryAccess {
    /// How much strangers may do.
    pub mode: Mode,
    /// Whether somebody chose it; what is only the default is for this machine.
    pub chosen: bool,
    /// The htpasswd file.
    pub users: Option<PathBuf>,
    /// What clients are offered to log in with.
    pub challenge: Challenge,
    /// Which images are taken.
    pub completeness: Completeness,
}
