//! The configuration: the only place that reads the environment.
//!
//! Variables, with defaults in parentheses:
//!
//! - `LODE_HOME`: folder of the store (`$XDG_DATA_HOME/lode` or `~/.local/share/lode`; on macOS
//!   `~/Library/Application Support/lode`)
//! - `LODE_ROOTS`: folders of further stores, which are only read, with colons between them.
//! - `LODE_HOST`, `OLLAMA_HOST`: address of the daemon; `https://` requires TLS, on port 443 if
//!   none is given (`127.0.0.1:11434`)
//! - `LODE_SOCKET`: Unix socket over which commands pass the files of a create (`daemon.sock` in
//!   the store's folder)
//! - `LODE_SOCKET_SHARED`: `1` lets commands of all users pass files, not only commands of the
//!   daemon's user (off)
//! - `LODE_TLS_CERT`, `LODE_TLS_KEY`: PEM files; with both, the daemon serves TLS and commands
//!   trust the certificate (none)
//! - `LODE_ALLOWED_HOSTS`: further host names that requests may use, separated by commas; `*` is a
//!   wildcard (none)
//! - `LODE_ORIGINS`, `OLLAMA_ORIGINS`: further origins whose pages may call the daemon, separated
//!   by commas; `*` is a wildcard (none)
//! - `LODE_API_KEYS`: file with API keys, which makes them mandatory; `lode key` prints its lines
//!   (none)
//! - `LODE_API_KEY`, `OLLAMA_API_KEY`: the API key that commands send (none)
//! - `LODE_REGISTRY_MODE`: `open`, `read-only`, `anonymous-pull` (only users push) or `private`
//!   (only users) (`open`, for this machine only)
//! - `LODE_REGISTRY_USERS`: htpasswd file (bcrypt) with the users of the registry; `lode htpasswd`
//!   prints its lines (none)
//! - `LODE_REGISTRY_HTPASSWD`: the text of such a file instead
//! - `LODE_REGISTRY_CHALLENGE`: login method that the registry offers to clients, `bearer` (tokens)
//!   or `basic` (`bearer`)
//! - `LODE_REGISTRY_SPARSE`: `1` makes the registry accept manifests whose layers are missing (off)
//! - `LODE_REGISTRY_RULES`: file with the rules of the registry's repositories, its audit log, its
//!   webhooks and identity providers
//! - `LODE_REGISTRY_STORAGE`: the bucket of `lode registry`, e.g. `s3://BUCKET/PREFIX`; its
//!   provider's variables (`AWS_…`, `GOOGLE_…`, `AZURE_…`) give region, endpoint and credentials
//!   (none)
//! - `LODE_TIER`: where blobs of rarely used models go: a bucket (as for `LODE_REGISTRY_STORAGE`)
//!   or the absolute path of a folder on another disk (none)
//! - `LODE_TIER_AFTER`: move models to the tier that were not used for this time, e.g. `7d` (none)
//! - `LODE_TIER_DISK`: maximum size of all blobs on the disk, e.g. `200GB`; beyond it, the models
//!   that were not used for the longest time move (no maximum)
//! - `LODE_PULL_THROUGH`: hosts, separated by commas, from which the registry fetches and keeps
//!   content that it lacks; `1` is the default host (off)
//! - `HF_ENDPOINT`, `HF_TOKEN`: URL of the hub for `hf.co/…`, and the access token for it
//!   (`https://huggingface.co`, anonymous)
//! - `LODE_BANDWIDTH`: limit of all transfers with other servers, e.g. `20MB/s`, and limits by the
//!   local time of day, e.g. `20MB/s;9-17=5MB/s;22:30-6=none` (none)
//! - `LODE_PEERS`: daemons, separated by commas, that pulls ask for blobs first (none)
//! - `LODE_STALL_TIMEOUT`: how long a registry may pause in the middle of a transfer (`30s`)
//! - `DOCKER_CONFIG`: folder of Docker's `config.json`, whose logins are used too (`~/.docker`)
//! - `LODE_KEEP_ALIVE`, `OLLAMA_KEEP_ALIVE`: how long an idle model stays loaded (`5m`)
//! - `LODE_CONTEXT_LENGTH`, `OLLAMA_CONTEXT_LENGTH`: context length in tokens for requests that set
//!   none; `auto` or `0` is 4096, and more for prompts that need it (`auto`)
//! - `LODE_FETCH_IMAGES`: `1` fetches pictures of requests from https URLs on the Internet; a list
//!   of hosts allows these, too (0)
//! - `LODE_SHARED_PREFIXES`: `1` shares the KV cache of common prompt prefixes between different
//!   API keys (off)
//! - `LODE_NUM_PARALLEL`, `OLLAMA_NUM_PARALLEL`: parallel requests of a model, each with a separate
//!   context; `0` is the default (1)
//! - `LODE_KV_CACHE_TYPE`, `OLLAMA_KV_CACHE_TYPE`: element type of KV caches: `f32`, `f16`, `bf16`
//!   or `q8_0` (`f16`)
//! - `LODE_MAX_LOADED_MODELS`, `OLLAMA_MAX_LOADED_MODELS`: maximum number of loaded models; `0` is
//!   the default (3)
//! - `LODE_MAX_QUEUE`, `OLLAMA_MAX_QUEUE`: maximum number of requests that wait for a model; more
//!   are refused; `0` is the default (512)
//! - `LODE_MEMORY_LIMIT`: maximum memory of all loaded models together, e.g. `12GiB` (no limit)
//! - `LODE_PRELOAD`: models, separated by commas, that are loaded when the daemon starts (none)
//! - `LODE_PIN`: models that are preloaded and stay loaded: neither idle time nor other models
//!   unload them (none)
//! - `LODE_LOAD_TIMEOUT`, `OLLAMA_LOAD_TIMEOUT`: how long a load may take (`5m`)
//! - `LODE_DEVICE`: `auto`, `cpu`, `cuda`, `cuda:N` or `metal` (`auto`)
//! - `LODE_GPU_KEEP`: how much memory of each GPU may keep weights that no loaded model uses, until
//!   it is needed, e.g. `4GiB` or `25%` (`25%`)
//! - `LODE_GPU_OVERHEAD`, `OLLAMA_GPU_OVERHEAD`: memory to keep free on each device, in bytes or
//!   e.g. `1GiB` (0)
//! - `LODE_SCHED_SPREAD`, `OLLAMA_SCHED_SPREAD`: spread a model over all devices even if fewer
//!   suffice (off)
//! - `LODE_FLASH_ATTENTION`, `OLLAMA_FLASH_ATTENTION`: whether Ollama's estimate assumes flash
//!   attention (depends on the architecture)
//! - `LODE_DETERMINISTIC`: `1` makes the numbers of a token on the CPU independent of whether the
//!   token was part of the prompt or generated, at the cost of speed (off)
//! - `LODE_REFERENCE`: `1` makes runners expand all weights and compute in float32 (off)
//! - `LODE_RUNNER`: program of the runner (`lode-runner` next to `lode`)
//! - `LODE_THREADS`: number of threads of a runner that compute on the CPU (physical cores within
//!   affinity and quota)
//! - `LODE_CPU`: instruction set of a runner's kernels: `scalar`, `avx2`, `avx-vnni`, `avx512`,
//!   `avx512-vnni` or `avx512-bf16` (the best of the machine)
//! - `LODE_RUNNER_ISOLATION`: `0` leaves runners access to network, programs and files, for drivers
//!   that need it (on)
//! - `LODE_RUNNER_MEMORY_LIMIT`: private memory of each runner, without mapped weights, e.g. `8GiB`
//!   (1.5 × the plan for its model and requests + 512 MiB; none with a GPU)
//! - `LODE_RUNNER_TIMEOUT`: time without a response after which a runner is killed; computing one
//!   layer may take ten times as long; `0` is no limit (`30s`)
//! - `LODE_LOG`: log filter (`info`)
//! - `OTEL_EXPORTER_OTLP_ENDPOINT`: the collector that gets traces, by OTLP over HTTP; also
//!   `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, `OTEL_SERVICE_NAME` and the exporter's other variables
//! - `LODE_LOG_FORMAT`: `text`, or `json` for one JSON object a line (`text`)
//! - `LODE_CRASH_AT`: for tests: kill the daemon at a step of a commit (none)

mod address;
pub(crate) mod bandwidth;
mod devices;
mod paths;
mod peers;
mod registries;
mod registry_access;
pub(crate) mod registry_rules;
mod storage;
mod tier;
mod tool_folders;
mod variables;

use std::env;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use daemon::{RegistryPolicy, Settings, TlsFiles};
use protocol::{InstructionSet, KvType};
use registry::client::Pace;
use store::CrashPoint;
use transfer::{HubSettings, RegistrySettings};

use crate::telemetry::{LogFilter, LogFormat, Traces};

pub(crate) use address::DEFAULT_PORT;
use address::host;
use devices::{devices, gpu_keep};
use paths::{home, roots, runner};
pub(crate) use registries::RegistriesConfig;
use registry_access::{ensure_users, registry, users};
pub(crate) use storage::StorageConfig;
pub(crate) use tool_folders::ToolFolders;
use variables::{bytes, duration, first, flag, list, number, positive};

/// The complete configuration.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Config {
    /// Settings of the daemon.
    pub(crate) daemon: Settings,
    /// Base URL of the daemon for commands: scheme, host and port.
    pub(crate) url: String,
    /// Whether a variable sets the address of the daemon.
    pub(crate) names_host: bool,
    /// Whether a variable sets the folder of the store.
    pub(crate) names_home: bool,
    /// The API key that commands send.
    pub(crate) key: Option<ApiKey>,
    /// Settings and logins of other registries.
    pub(crate) registries: RegistriesConfig,
    /// The file with the rules of the registry.
    pub(crate) rules: Option<PathBuf>,
    /// The bucket of `lode registry`.
    pub(crate) storage: StorageConfig,
    /// Log filter.
    pub(crate) log: LogFilter,
    /// Format of the log.
    pub(crate) log_format: LogFormat,
    /// Whether traces are exported.
    pub(crate) traces: Traces,
    /// Whether output on a terminal may have styles.
    pub(crate) styles: bool,
    /// Whether a display is available for opening windows.
    pub(crate) has_screen: bool,
}

/// A secret that does not appear in logs.
#[derive(Clone)]
pub(crate) struct ApiKey(pub(crate) String);

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiKey")
    }
}

impl Config {
    /// Reads the environment.
    pub(crate) fn read() -> Result<Self> {
        let tls = tls(first(&["LODE_TLS_CERT"]), first(&["LODE_TLS_KEY"]))?;
        let host = host(&first(&["LODE_HOST", "OLLAMA_HOST"]).unwrap_or_default(), tls.is_some())?;
        let home = home()?;
        let registries = RegistriesConfig::new(
            &home,
            first(&["DOCKER_CONFIG"])
                .map(PathBuf::from)
                .or_else(|| env::home_dir().map(|folder| folder.join(".docker"))),
            env::var_os("PATH").unwrap_or_default(),
            first(&["LODE_STALL_TIMEOUT"]).map(|text| positive("LODE_STALL_TIMEOUT", &text)).transpose()?,
        );
        Ok(Self {
            daemon: settings(home, host.address, tls, &registries)?,
            url: host.url,
            names_host: first(&["LODE_HOST", "OLLAMA_HOST"]).is_some(),
            names_home: first(&["LODE_HOME"]).is_some(),
            key: first(&["LODE_API_KEY", "OLLAMA_API_KEY"]).map(ApiKey),
            registries,
            rules: first(&["LODE_REGISTRY_RULES"]).map(PathBuf::from),
            storage: StorageConfig::read(),
            log: first(&["LODE_LOG"]).map(|text| log_filter(&text)).transpose()?.unwrap_or_default(),
            log_format: log_format(first(&["LODE_LOG_FORMAT"]))?,
            traces: traces(),
            styles: env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
                && first(&["TERM"]).is_none_or(|terminal| terminal != "dumb"),
            has_screen: cfg!(target_os = "macos") || first(&["WAYLAND_DISPLAY", "DISPLAY"]).is_some(),
        })
    }

    /// Returns the settings to start the daemon with.
    ///
    /// # Errors
    /// Fails if the address requires TLS and there is no certificate.
    pub(crate) fn into_settings(self) -> Result<Settings> {
        if self.daemon.tls.is_none() && self.url.starts_with("https://") {
            bail!(
                "LODE_HOST requires TLS; set LODE_TLS_CERT and LODE_TLS_KEY to the PEM files of a certificate and its key"
            );
        }
        let mut settings = self.daemon;
        if let Some(path) = &self.rules {
            (settings.policy, settings.registry.providers) = registry_rules::read(path)?;
        }
        ensure_users(&settings.registry)?;
        Ok(settings)
    }
}

/// Reads the settings of the daemon.
fn settings(
    home: PathBuf,
    address: SocketAddr,
    tls: Option<TlsFiles>,
    registries: &RegistriesConfig,
) -> Result<Settings> {
    let context = context_length()?;
    let own_peers = peers::peers(&first(&["LODE_PEERS"]).unwrap_or_default()).context("LODE_PEERS")?;
    let own_registries = RegistrySettings { peers: own_peers, ..registries.settings() };
    Ok(Settings {
        socket_is_shared: flag(&["LODE_SOCKET_SHARED"]).unwrap_or(false),
        socket: first(&["LODE_SOCKET"]).map_or_else(|| home.join("daemon.sock"), PathBuf::from),
        roots: roots()?,
        home,
        address,
        tls,
        allowed_hosts: list(&["LODE_ALLOWED_HOSTS"]),
        origins: list(&["LODE_ORIGINS", "OLLAMA_ORIGINS"]),
        keys: first(&["LODE_API_KEYS"]).map(PathBuf::from),
        registry: registry(
            first(&["LODE_REGISTRY_MODE"]),
            users(first(&["LODE_REGISTRY_USERS"]), first(&["LODE_REGISTRY_HTPASSWD"]))?,
            first(&["LODE_REGISTRY_CHALLENGE"]),
        )?,
        policy: RegistryPolicy::default(),
        bandwidth: bandwidth::configured()?,
        hub: HubSettings {
            endpoint: first(&["HF_ENDPOINT"]).unwrap_or_else(|| "https://huggingface.co".to_owned()),
            token: first(&["HF_TOKEN"]),
            pace: Pace::without_order(&own_registries.bandwidth),
        },
        registries: own_registries,
        pull_through: first(&["LODE_PULL_THROUGH"]).and_then(|text| hosts(&text)),
        keep_alive: duration(&["LODE_KEEP_ALIVE", "OLLAMA_KEEP_ALIVE"], "5m")?,
        context: context.unwrap_or(CONTEXT),
        context_grows: context.is_none(),
        shares_prefixes: flag(&["LODE_SHARED_PREFIXES"]).unwrap_or(false),
        fetched_images: fetched_images()?,
        parallel: number(&["LODE_NUM_PARALLEL", "OLLAMA_NUM_PARALLEL"], 1)?,
        kv_type: kv_type(first(&["LODE_KV_CACHE_TYPE", "OLLAMA_KV_CACHE_TYPE"]))?,
        max_loaded: max_loaded(first(&["LODE_MAX_LOADED_MODELS", "OLLAMA_MAX_LOADED_MODELS"]))?,
        max_queue: usize::try_from(number(&["LODE_MAX_QUEUE", "OLLAMA_MAX_QUEUE"], 512)?)?,
        memory_limit: bytes(&["LODE_MEMORY_LIMIT"])?,
        preload: list(&["LODE_PRELOAD"]),
        pin: list(&["LODE_PIN"]),
        load_timeout: duration(&["LODE_LOAD_TIMEOUT", "OLLAMA_LOAD_TIMEOUT"], "5m")?.unwrap_or(Duration::MAX),
        device: first(&["LODE_DEVICE"]).unwrap_or_else(|| "auto".to_owned()),
        gpu_keep: gpu_keep()?,
        devices: devices()?,
        deterministic: flag(&["LODE_DETERMINISTIC"]).unwrap_or(false),
        reference: first(&["LODE_REFERENCE"]).is_some_and(|value| value != "0"),
        runner: runner()?,
        isolated: first(&["LODE_RUNNER_ISOLATION"]).is_none_or(|value| value != "0"),
        runner_environment: env::vars_os().filter(|(name, _)| variables::is_for_runners(name)).collect(),
        runner_timeout: duration(&["LODE_RUNNER_TIMEOUT"], "30s")?.filter(|time| !time.is_zero()),
        runner_memory: bytes(&["LODE_RUNNER_MEMORY_LIMIT"])?,
        threads: first(&["LODE_THREADS"]).map(|text| threads(&text)).transpose()?,
        cpu: first(&["LODE_CPU"]).as_deref().map(cpu).transpose()?,
        temporary: env::temp_dir(),
        crash_at: crash_at()?,
        tier: tier::tier(&StorageConfig::read())?,
    })
}

/// Parses a list of hosts with commas between them; `1` is the default host.
fn hosts(text: &str) -> Option<Vec<String>> {
    let host = |text: &str| match text.trim() {
        "1" => manifests::reference::DEFAULT_HOST.to_owned(),
        other => other.to_ascii_lowercase(),
    };
    (text.trim() != "0").then(|| text.split(',').map(host).filter(|host| !host.is_empty()).collect())
}

fn log_filter(text: &str) -> Result<LogFilter> {
    LogFilter::parse(text).with_context(|| {
        format!("LODE_LOG is `{text}`, expected error, warn, info, debug or trace, or e.g. `lode_daemon=debug,info`")
    })
}

fn log_format(name: Option<String>) -> Result<LogFormat> {
    let Some(name) = name else { return Ok(LogFormat::default()) };
    LogFormat::parse(&name).with_context(|| format!("LODE_LOG_FORMAT: `{name}` is not `text` or `json`"))
}

fn crash_at() -> Result<Option<CrashPoint>> {
    let parse =
        |name: String| CrashPoint::parse(&name).with_context(|| format!("LODE_CRASH_AT: `{name}` is not known"));
    first(&["LODE_CRASH_AT"]).map(parse).transpose()
}

fn kv_type(text: Option<String>) -> Result<KvType> {
    let Some(text) = text else { return Ok(KvType::default()) };
    KvType::parse(&text).with_context(|| format!("LODE_KV_CACHE_TYPE: `{text}` is not `f32`, `f16`, `bf16` or `q8_0`"))
}

fn threads(text: &str) -> Result<usize> {
    match text.parse() {
        Ok(threads @ 1..=1024) => Ok(threads),
        _ => bail!("LODE_THREADS is `{text}`, expected a number of threads from 1 to 1024"),
    }
}

fn cpu(name: &str) -> Result<InstructionSet> {
    let all = || InstructionSet::ALL.map(InstructionSet::name).join(", ");
    InstructionSet::parse(name).with_context(|| format!("LODE_CPU is `{name}`, expected one of {}", all()))
}

/// Context length in tokens if neither the request nor the configuration sets one.
const CONTEXT: u64 = 4096;

/// Reads the context length for requests without one. `None` (`auto`, 0 or unset) starts with
/// [`CONTEXT`] and grows.
fn context_length() -> Result<Option<u64>> {
    const NAMES: [&str; 2] = ["LODE_CONTEXT_LENGTH", "OLLAMA_CONTEXT_LENGTH"];
    if first(&NAMES).is_some_and(|text| text.trim().eq_ignore_ascii_case("auto")) {
        return Ok(None);
    }
    number(&NAMES, 0).map(|tokens| Some(tokens).filter(|tokens| *tokens > 0)).context("expected `auto` or tokens")
}

/// Reads whether pictures are fetched: a flag, or a list of hosts.
fn fetched_images() -> Result<Option<Vec<String>>> {
    const NAME: &str = "LODE_FETCH_IMAGES";
    let Some(text) = first(&[NAME]) else { return Ok(None) };
    if ["1", "true", "yes"].contains(&text.trim()) {
        return Ok(Some(Vec::new()));
    }
    if flag(&[NAME]) == Some(false) {
        return Ok(None);
    }
    let hosts: Vec<&str> = text.split(',').map(str::trim).collect();
    let is_host = |host: &&str| {
        host.contains('.') && host.chars().all(|letter| letter.is_ascii_alphanumeric() || ".-".contains(letter))
    };
    if let Some(other) = hosts.iter().find(|host| !is_host(host)) {
        bail!("{NAME} has `{other}`, expected 1, 0, or names of hosts such as images.example.com");
    }
    Ok(Some(hosts.into_iter().map(str::to_owned).collect()))
}

/// Parses the maximum number of loaded models. Unset or 0 gives a number that suits a desktop
/// machine.
fn max_loaded(text: Option<String>) -> Result<usize> {
    const AUTOMATIC: usize = 3;
    match text.as_deref().map(str::parse) {
        None | Some(Ok(0)) => Ok(AUTOMATIC),
        Some(Ok(number)) => Ok(number),
        Some(Err(_)) => bail!("LODE_MAX_LOADED_MODELS: `{}` is not a whole number", text.unwrap_or_default()),
    }
}

/// Traces are exported if a variable of OpenTelemetry names a collector. The exporter reads its
/// other variables.
fn traces() -> Traces {
    let is_off = first(&["OTEL_SDK_DISABLED"]).is_some_and(|text| text.eq_ignore_ascii_case("true"));
    let collector = first(&["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]);
    if collector.is_none() || is_off {
        return Traces::Off;
    }
    Traces::Exported { service: first(&["OTEL_SERVICE_NAME"]).unwrap_or_else(|| "lode".to_owned()) }
}

fn tls(certificate: Option<String>, key: Option<String>) -> Result<Option<TlsFiles>> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some(TlsFiles { certificate: certificate.into(), key: key.into() })),
        (None, None) => Ok(None),
        (Some(_), None) => bail!("LODE_TLS_CERT is set without LODE_TLS_KEY; set it to the certificate's private key"),
        (None, Some(_)) => bail!("LODE_TLS_KEY is set without LODE_TLS_CERT; set it to the key's certificate"),
    }
}

#[cfg(test)]
mod tests;
