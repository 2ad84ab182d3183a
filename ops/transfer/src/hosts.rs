//! Connections to registries, with their configured settings.

use std::fmt;
use std::sync::Arc;

use content::operation::Result;
use manifests::ModelRef;
use registry::client::{Bandwidth, Chain, Credentials, Host, HostSettings, Pace, Remote};
use reqwest::Url;

/// Returns the settings of a host.
pub type HostSettingsOf = dyn Fn(&str) -> Result<HostSettings> + Send + Sync;

/// The configuration of registries.
#[derive(Clone)]
pub struct RegistrySettings {
    /// Returns the settings of a host. It is called for each use, so that a change needs no
    /// restart.
    pub host: Arc<HostSettingsOf>,
    /// The hosts that have settings.
    pub names: Arc<dyn Fn() -> Result<Vec<String>> + Send + Sync>,
    /// The source of logins.
    pub credentials: Arc<dyn Credentials>,
    /// The limit that all transfers share.
    pub bandwidth: Bandwidth,
    /// Base URLs of daemons that pulls ask for blobs first.
    pub peers: Vec<String>,
}

impl fmt::Debug for RegistrySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RegistrySettings")
    }
}

/// Connects to registries with their configured settings.
#[derive(Clone, Debug)]
pub struct Hosts {
    configured: RegistrySettings,
    /// If true, use HTTP without TLS: the user requested it for this operation.
    insecure: bool,
    /// If true, use no logins.
    anonymous: bool,
    /// The rate limit and the urgency of the transfer.
    pace: Pace,
}

impl Hosts {
    /// Uses the configured settings; `insecure` means HTTP without TLS for all hosts.
    pub fn new(configured: &RegistrySettings, insecure: bool) -> Self {
        let pace = Pace::without_order(&configured.bandwidth);
        Self { configured: configured.clone(), insecure, anonymous: false, pace }
    }

    /// Uses no logins. For requests of anonymous users.
    pub fn anonymous(configured: &RegistrySettings) -> Self {
        Self { anonymous: true, ..Self::new(configured, false) }
    }

    /// Transfers with these limits and this urgency.
    #[must_use]
    pub fn paced(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    fn credentials(&self) -> Arc<dyn Credentials> {
        if self.anonymous { Arc::new(Chain::default()) } else { self.configured.credentials.clone() }
    }

    fn settings(&self, host: &str) -> Result<HostSettings> {
        let mut settings = (self.configured.host)(host)?;
        settings.plain_http |= self.insecure;
        Ok(settings)
    }

    /// The registry of a reference.
    pub(crate) fn host(&self, reference: &ModelRef) -> Result<Host> {
        let host = Host::new(reference.host(), self.settings(reference.host())?, self.credentials())?;
        Ok(host.paced(self.pace.clone()))
    }

    /// The hosts that have settings.
    ///
    /// # Errors
    ///
    /// The file of settings cannot be read.
    pub fn configured(&self) -> Result<Vec<String>> {
        (self.configured.names)()
    }

    /// The mirrors of a host, and whether connections to it are made without TLS.
    ///
    /// # Errors
    /// The settings of the host cannot be read.
    pub fn mirrors(&self, host: &str) -> Result<(Vec<String>, bool)> {
        let settings = self.settings(host)?;
        Ok((settings.mirrors.iter().map(|mirror| place_of(mirror)).collect(), settings.plain_http))
    }

    /// The sources to pull a reference's model from: peers, the mirrors of its registry, then the
    /// registry.
    pub(crate) fn remote(&self, reference: &ModelRef) -> Result<(Remote, usize)> {
        let parallel = self.parallel(reference.host())?;
        let sources = [self.peers(reference.host())?, self.sources(reference.host())?].concat();
        Ok((Remote::new(sources, &repository(reference)), parallel))
    }

    /// Maximum number of requests to a registry at a time.
    pub(crate) fn parallel(&self, host: &str) -> Result<usize> {
        Ok(self.settings(host)?.parallel)
    }

    /// The peers that may have blobs of a host, except the host itself.
    fn peers(&self, host: &str) -> Result<Vec<Host>> {
        let mut peers = Vec::new();
        for peer in self.configured.peers.iter().filter(|peer| host_of(peer) != host) {
            let own = (self.configured.host)(host_of(peer))?;
            peers.push(Host::peer(peer, host, own, self.credentials())?.paced(self.pace.clone()));
        }
        Ok(peers)
    }

    /// The mirrors of a registry, then the registry.
    pub(crate) fn sources(&self, host: &str) -> Result<Vec<Host>> {
        let settings = self.settings(host)?;
        let credentials = self.credentials();
        let mut sources = Vec::new();
        for mirror in &settings.mirrors {
            // A mirror has its own settings: certificate authorities and proxy.
            let own = (self.configured.host)(host_of(mirror))?;
            sources.push(Host::mirror(mirror, host, own, credentials.clone())?.paced(self.pace.clone()));
        }
        sources.push(Host::new(host, settings, credentials)?.paced(self.pace.clone()));
        Ok(sources)
    }
}

/// Host and port of a URL.
fn host_of(url: &str) -> &str {
    url.split("://").last().and_then(|rest| rest.split('/').next()).unwrap_or_default()
}

/// Scheme, host and port of a URL. The user information and the path may be secrets.
fn place_of(url: &str) -> String {
    let parsed = Url::parse(url).ok();
    let place = parsed.as_ref().and_then(|url| Some((url.scheme(), url.host_str()?, url.port())));
    match place {
        Some((scheme, host, Some(port))) => format!("{scheme}://{host}:{port}"),
        Some((scheme, host, None)) => format!("{scheme}://{host}"),
        None => "an address that cannot be read".to_owned(),
    }
}

/// The repository as the registry names it.
pub(crate) fn repository(reference: &ModelRef) -> String {
    match reference.host() {
        "docker.io" if !reference.repository().contains('/') => format!("library/{}", reference.repository()),
        _ => reference.repository().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_not_told() {
        for (url, expect) in [
            ("https://a:b@host/v2", "https://host"),
            ("http://host:5000", "http://host:5000"),
            ("http://a@b@host", "http://host"),
            ("http://a:b@[::1]:5000/v2", "http://[::1]:5000"),
            ("http://[::1]", "http://[::1]"),
            ("http://host/x?token=secret", "http://host"),
            ("http://a@b:pw/x@host", "an address that cannot be read"),
            ("user:secret@host", "an address that cannot be read"),
        ] {
            assert_eq!(place_of(url), expect);
        }
    }
}
