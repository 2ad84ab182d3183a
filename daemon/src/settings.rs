//! Settings of a daemon, fixed at its start.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bucket::Location;
use library::AssumedDevices;
use protocol::{InstructionSet, KvType};
use registry::server::access::{Challenge, IdentityProvider, Mode, UserSource};
use registry::server::{Completeness, RepositoryRules};
use store::CrashPoint;
use tier::TierPolicy;
use transfer::{HubSettings, RegistrySettings, SyncSource};

use crate::bandwidth::BandwidthSchedule;
use crate::registry_journal::webhooks::WebhookSettings;
use crate::tls::TlsFiles;

/// All settings of a daemon.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Settings {
    /// Folder of the store.
    pub home: PathBuf,
    /// Folders of more stores, which are only read.
    pub roots: Vec<PathBuf>,
    /// Path of the socket through which commands pass files.
    pub socket: PathBuf,
    /// Whether other users of the machine may pass files through the socket.
    pub socket_is_shared: bool,
    /// The address that the daemon listens on.
    pub address: SocketAddr,
    /// Files of the certificate and key; `None` disables TLS.
    pub tls: Option<TlsFiles>,
    /// Additional host names that requests may use.
    pub allowed_hosts: Vec<String>,
    /// Additional origins whose pages may call the daemon.
    pub origins: Vec<String>,
    /// The file of API keys.
    pub keys: Option<PathBuf>,
    /// Access control of the registry.
    pub registry: RegistryAccess,
    /// Rules of the registry's repositories, its audit log and its webhooks.
    pub policy: RegistryPolicy,
    /// Settings of other registries, for pulls and pushes.
    pub registries: RegistrySettings,
    /// The limit that all transfers with other servers share.
    pub bandwidth: BandwidthSchedule,
    /// The Hugging Face hub, or a mirror of it.
    pub hub: HubSettings,
    /// The hosts from which the registry fetches missing content; `None` disables that.
    pub pull_through: Option<Vec<String>>,
    /// How long an idle model stays loaded; `None` means forever.
    pub keep_alive: Option<Duration>,
    /// Context in tokens for requests that set none.
    pub context: u64,
    /// Whether the context grows for prompts that need more.
    pub context_grows: bool,
    /// Whether requests with different API keys share computed prefixes of prompts.
    pub shares_prefixes: bool,
    /// The hosts from which pictures of requests may be fetched besides those on the Internet;
    /// `None` if pictures are not fetched.
    pub fetched_images: Option<Vec<String>>,
    /// Number of requests that a model answers in parallel.
    pub parallel: u64,
    /// Element type of KV caches.
    pub kv_type: KvType,
    /// Maximal number of loaded models.
    pub max_loaded: usize,
    /// Maximal number of waiting requests.
    pub max_queue: usize,
    /// Maximal number of bytes that loaded models may need together.
    pub memory_limit: Option<u64>,
    /// Names of models that are loaded at the start.
    pub preload: Vec<String>,
    /// Names of models that are loaded at the start and never unloaded.
    pub pin: Vec<String>,
    /// Timeout of a load.
    pub load_timeout: Duration,
    /// The device of runners.
    pub device: String,
    /// How much of the unused weights stays on each GPU: bytes, or a share (`25%`).
    pub gpu_keep: String,
    /// How plans treat devices.
    pub devices: AssumedDevices,
    /// Whether runners compute everything in float32.
    pub reference: bool,
    /// Whether runners on the CPU compute a token in the same way in prompts and in answers.
    pub deterministic: bool,
    /// Path of the runner program.
    pub runner: PathBuf,
    /// Whether runners are denied networks, programs and files.
    pub isolated: bool,
    /// The environment of runners.
    pub runner_environment: Vec<(OsString, OsString)>,
    /// How long a runner may go without a sign of life; `None` means forever.
    pub runner_timeout: Option<Duration>,
    /// Limit of a runner's private memory in bytes; by default a little more than is planned for
    /// its model.
    pub runner_memory: Option<u64>,
    /// Number of a runner's compute threads on the CPU; by default one per available core.
    pub threads: Option<usize>,
    /// The instruction set of a runner's CPU kernels; by default the best one that the machine
    /// supports.
    pub cpu: Option<InstructionSet>,
    /// The tier of the store, to which rarely used blobs go.
    pub tier: Option<TierSettings>,
    /// Folder for sockets and other files that end with the process.
    pub temporary: PathBuf,
    /// The point at which the process kills itself, for tests.
    pub crash_at: Option<CrashPoint>,
}

/// The tier of the store.
#[derive(Clone, Debug)]
pub struct TierSettings {
    /// Where it is.
    pub place: TierPlace,
    /// Which blobs move to it without a request.
    pub policy: TierPolicy,
}

/// Where a tier is.
#[derive(Clone, Debug)]
pub enum TierPlace {
    /// In a bucket.
    Bucket(Location),
    /// In a folder, most often of another disk.
    Folder(PathBuf),
}

/// Rules of the registry's repositories, and the readers of its journal.
#[derive(Clone, Debug, Default)]
pub struct RegistryPolicy {
    /// Rules of repositories.
    pub rules: Arc<RepositoryRules>,
    /// The file of the audit log.
    pub audit_log: Option<PathBuf>,
    /// The webhooks.
    pub webhooks: Vec<WebhookSettings>,
    /// Tags of other registries that are copied.
    pub sync: Vec<SyncSource>,
}

/// Access control of the registry.
#[derive(Clone, Debug)]
pub struct RegistryAccess {
    /// How much unauthenticated clients may do.
    pub mode: Mode,
    /// Whether the mode was configured. The default mode applies to this machine only.
    pub chosen: bool,
    /// The users.
    pub users: Option<UserSource>,
    /// Identity providers whose tokens are logins.
    pub providers: Vec<IdentityProvider>,
    /// The authentication scheme that clients are offered.
    pub challenge: Challenge,
    /// Whether the registry accepts incomplete images.
    pub completeness: Completeness,
}
