//! Settings of registries, and known limits of known registries.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

/// Maximum number of layers in a manifest at ECR.
const ECR_LAYERS: usize = 500;
/// Maximum size of an upload's chunk at GHCR, in bytes.
const GHCR_CHUNK: u64 = 4 << 20;

/// Settings of one registry.
#[derive(Clone, PartialEq, Eq)]
pub struct HostSettings {
    /// If true, use HTTP without TLS. For a mirror, its base URL determines that.
    pub plain_http: bool,
    /// Certificate authorities to trust in addition to the system's, as a PEM file.
    pub ca_file: Option<PathBuf>,
    /// The URL of a proxy; by default the system's. It is never used for this machine itself.
    pub proxy: Option<String>,
    /// If true, accept any certificate. For tests only: the network can then read and change
    /// everything.
    pub no_verify: bool,
    /// Base URLs of mirrors, which are asked before the registry itself. Tags are looked up in this
    /// order; blobs come from the mirror that has been fastest in the same transfer.
    pub mirrors: Vec<String>,
    /// Maximum number of bytes per second, in both directions together; at least one.
    pub bytes_per_second: Option<u64>,
    /// Hosts that the registry may redirect to even if they are nearer to this machine than it is:
    /// its storage, its token service.
    pub leads_to: Vec<String>,
    /// Number of blobs to transfer at once.
    pub parallel: usize,
    /// Maximum number of layers that the registry accepts in a manifest.
    pub max_layers: Option<usize>,
    /// Timeout without data in the middle of a body. The default is half a minute.
    pub stall: Option<Duration>,
    /// The size of an upload's chunks in bytes, for registries that need chunks. By default a blob
    /// is sent whole.
    pub chunk: Option<u64>,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self {
            plain_http: false,
            ca_file: None,
            proxy: None,
            no_verify: false,
            mirrors: Vec::new(),
            bytes_per_second: None,
            leads_to: Vec::new(),
            parallel: 8,
            max_layers: None,
            stall: None,
            chunk: None,
        }
    }
}

impl HostSettings {
    /// The default settings for a host: known limits of known registries, and plain HTTP on this
    /// machine.
    pub fn for_host(host: &str) -> Self {
        let name = host_name(host).to_ascii_lowercase();
        Self {
            plain_http: is_loopback(host),
            max_layers: is_ecr(&name).then_some(ECR_LAYERS),
            chunk: (name == "ghcr.io").then_some(GHCR_CHUNK),
            ..Self::default()
        }
    }
}

impl fmt::Debug for HostSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL of a proxy may contain a password.
        let proxy = self.proxy.as_ref().map(|url| url.rsplit_once('@').map_or(url.as_str(), |(_, place)| place));
        f.debug_struct("HostSettings")
            .field("plain_http", &self.plain_http)
            .field("ca_file", &self.ca_file)
            .field("proxy", &proxy)
            .field("no_verify", &self.no_verify)
            .field("mirrors", &self.mirrors)
            .field("bytes_per_second", &self.bytes_per_second)
            .field("leads_to", &self.leads_to)
            .field("parallel", &self.parallel)
            .field("max_layers", &self.max_layers)
            .field("stall", &self.stall)
            .field("chunk", &self.chunk)
            .finish()
    }
}

/// The host that serves the API of `host`. It differs only for Docker Hub.
pub(super) fn api_host(host: &str) -> &str {
    match host {
        "docker.io" | "index.docker.io" => "registry-1.docker.io",
        other => other,
    }
}

/// Whether a `host` or `host:port` is this machine.
pub(super) fn is_loopback(host: &str) -> bool {
    let name = host_name(host);
    let v6 = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
        || v6.and_then(|text| text.parse::<Ipv6Addr>().ok()).is_some_and(|address| address.is_loopback())
}

/// The host without the port; an IPv6 address keeps its brackets.
pub(super) fn host_name(host: &str) -> &str {
    let end = match host.find(']') {
        Some(bracket) if host.starts_with('[') => bracket + 1,
        _ => host.find(':').unwrap_or(host.len()),
    };
    &host[..end]
}

fn is_ecr(name: &str) -> bool {
    let Some((_, region)) = name.split_once(".dkr.ecr.").or_else(|| name.split_once(".dkr.ecr-fips.")) else {
        return false;
    };
    region.ends_with(".amazonaws.com") || region.ends_with(".amazonaws.com.cn")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_hosts() {
        for here in ["localhost", "localhost:5000", "LOCALHOST", "127.0.0.1:80", "127.1.2.3", "[::1]:5000", "[::1]"] {
            assert!(HostSettings::for_host(here).plain_http, "{here}");
        }
        for there in ["127.evil.example", "localhost.example", "example", "10.0.0.1", "[::2]", "::1", "", "]", "[::1"] {
            assert!(!HostSettings::for_host(there).plain_http, "{there}");
        }
        let ecr = HostSettings::for_host("1234.dkr.ecr.eu-west-1.amazonaws.com");
        assert_eq!(ecr.max_layers, Some(500));
        assert_eq!(HostSettings::for_host("x.dkr.ecr.amazonaws.com.evil.example").max_layers, None);
        assert_eq!(HostSettings::for_host("ghcr.io").chunk, Some(4_194_304));
        assert_eq!(api_host("docker.io"), "registry-1.docker.io");
    }

    #[test]
    fn does_not_show_a_proxy_s_password() {
        let settings = HostSettings { proxy: Some("http://me:secret@proxy:3128".into()), ..HostSettings::default() };
        let shown = format!("{settings:?}");
        assert!(!shown.contains("secret") && shown.contains("proxy:3128"), "{shown}");
    }
}
