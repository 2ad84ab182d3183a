//! Configuration of registries: `registries.toml` and logins.
//!
//! ```toml
//! [registry."registry.example:5000"]
//! plain_http = true                     # HTTP without TLS; the default on this machine only
//! ca_file = "/etc/ssl/example.pem"      # further certificate authorities
//! proxy = "http://proxy.example:3128"
//! mirrors = ["http://10.0.0.5:11434"]   # asked in this order before the registry itself
//! leads_to = ["minio.corp"]             # hosts for redirects, even if closer to this machine
//! bytes_per_second = 50_000_000
//! parallel = 8                          # blobs at a time
//! max_layers = 500                      # maximum number of layers in a manifest
//! chunk = 4_194_304                     # bytes of a chunk, if it needs chunked uploads
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use registry::client::{Bandwidth, Chain, Credentials, DockerConfig, HostSettings};
use serde::Deserialize;
use transfer::RegistrySettings;

/// Locations of settings and logins.
#[derive(Clone, Debug)]
pub(crate) struct RegistriesConfig {
    /// `registries.toml` in the store's folder.
    pub(crate) file: PathBuf,
    /// Lode's logins, in Docker's format.
    pub(crate) logins: PathBuf,
    /// Docker's logins, if there is a home folder.
    pub(crate) docker: Option<PathBuf>,
    /// Search path for credential helpers.
    pub(crate) search_path: OsString,
    /// How long a registry may pause in the middle of a transfer, if it is set.
    pub(crate) stall: Option<Duration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    registry: BTreeMap<String, RegistryEntry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RegistryEntry {
    plain_http: Option<bool>,
    ca_file: Option<PathBuf>,
    proxy: Option<String>,
    no_verify: bool,
    mirrors: Vec<String>,
    leads_to: Vec<String>,
    bytes_per_second: Option<u64>,
    parallel: Option<usize>,
    max_layers: Option<usize>,
    chunk: Option<u64>,
}

impl RegistriesConfig {
    pub(super) fn new(home: &Path, docker: Option<PathBuf>, search_path: OsString, stall: Option<Duration>) -> Self {
        Self {
            file: home.join("registries.toml"),
            logins: home.join("auth.json"),
            docker: docker.map(|folder| folder.join("config.json")),
            search_path,
            stall,
        }
    }

    /// Returns the settings of a registry. Reads the file each time, so that changes need no
    /// restart.
    pub(crate) fn host(&self, host: &str) -> Result<HostSettings> {
        let mut settings = HostSettings { stall: self.stall, ..HostSettings::for_host(host) };
        if let Some(entry) = self.read()?.registry.into_iter().find_map(|(name, entry)| (name == host).then_some(entry))
        {
            entry.apply(&mut settings);
        }
        Ok(settings)
    }

    /// Reads the file; a missing file is empty.
    fn read(&self) -> Result<File> {
        match std::fs::read_to_string(&self.file) {
            Ok(text) => toml::from_str(&text).with_context(|| format!("`{}`", self.file.display())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(File::default()),
            Err(e) => Err(e).with_context(|| format!("cannot read `{}`", self.file.display())),
        }
    }

    /// Returns Lode's login file.
    pub(crate) fn own_logins(&self) -> DockerConfig {
        DockerConfig::new(self.logins.clone(), self.search_path.clone())
    }

    /// Returns the settings that transfers use.
    pub(super) fn settings(&self) -> RegistrySettings {
        let (own, named) = (self.clone(), self.clone());
        RegistrySettings {
            host: Arc::new(move |host| Ok(own.host(host)?)),
            names: Arc::new(move || Ok(named.read()?.registry.into_keys().collect())),
            credentials: self.credentials(),
            bandwidth: Bandwidth::default(),
            peers: Vec::new(),
        }
    }

    /// Returns all sources of logins.
    fn credentials(&self) -> Arc<dyn Credentials> {
        let own = self.own_logins();
        let docker = self.docker.clone().map(|path| DockerConfig::new(path, self.search_path.clone()));
        let places = [own].into_iter().chain(docker).map(|place| Arc::new(place) as Arc<dyn Credentials>);
        Arc::new(Chain(places.collect()))
    }
}

impl RegistryEntry {
    fn apply(self, settings: &mut HostSettings) {
        settings.plain_http = self.plain_http.unwrap_or(settings.plain_http);
        settings.ca_file = self.ca_file;
        settings.proxy = self.proxy;
        settings.no_verify = self.no_verify;
        settings.mirrors = self.mirrors;
        settings.leads_to = self.leads_to;
        settings.bytes_per_second = self.bytes_per_second;
        settings.parallel = self.parallel.unwrap_or(settings.parallel).clamp(1, 64);
        settings.max_layers = self.max_layers.or(settings.max_layers);
        settings.chunk = self.chunk.or(settings.chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_settings() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = RegistriesConfig::new(folder.path(), None, OsString::new(), None);
        assert_eq!(config.host("example.com").expect("no file"), HostSettings::for_host("example.com"));
        let text =
            "[registry.\"example.com\"]\nplain_http = true\nmirrors = [\"http://a\", \"http://b\"]\nparallel = 900\n";
        std::fs::write(&config.file, text).expect("written");
        let settings = config.host("example.com").expect("settings");
        assert!(settings.plain_http && settings.mirrors.len() == 2 && settings.parallel == 64, "{settings:?}");
        assert!(!config.host("other.com").expect("defaults").plain_http);
        std::fs::write(&config.file, "[registry.\"x\"]\nplain = true\n").expect("written");
        let error = format!("{:#}", config.host("x").expect_err("an unknown setting"));
        assert!(error.contains("registries.toml") && error.contains("plain"), "{error}");
    }
}
