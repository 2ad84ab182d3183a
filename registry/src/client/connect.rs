//! Connections: TLS, proxies and time limits.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use reqwest::{Certificate, Client, ClientBuilder, NoProxy, Proxy, Url};

use super::limits::HostLimits;
use super::settings::{HostSettings, is_loopback};
use super::{Error, RedirectPolicy};

/// Larger than any bundle of certificates.
const LARGEST_CA_FILE: u64 = 8 << 20;
/// Destinations for which an explicit proxy is not used.
const HERE: &str = "localhost,127.0.0.0/8,::1";

/// Creates a pool of connections for the registry at `base` and for the targets of its redirects.
pub(super) fn client(
    base: &Url,
    redirect_policy: &RedirectPolicy,
    settings: &HostSettings,
    limits: &HostLimits,
) -> Result<Client, Error> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        return Err(Error::Settings(
            "there is no TLS provider; the program must install one when it starts".to_owned(),
        ));
    }
    let host = base.host_str().unwrap_or_default();
    if settings.no_verify {
        tracing::warn!(host, "certificates are not checked: the network can read and change all traffic");
    }
    let own = settings.ca_file.as_deref().map(authorities).transpose()?.unwrap_or_default();
    let mut built = builder(host, redirect_policy, settings, limits)?.tls_certs_merge(own.clone()).build();
    if built.is_err() && base.scheme() == "http" {
        // A system without certificate authorities can still use registries over plain HTTP.
        built = builder(host, redirect_policy, settings, limits)?.tls_certs_only(own).build();
    }
    built.map_err(|error| Error::Settings(format!("cannot set up TLS for `{host}`: {error}")))
}

fn builder(
    host: &str,
    redirect_policy: &RedirectPolicy,
    settings: &HostSettings,
    limits: &HostLimits,
) -> Result<ClientBuilder, Error> {
    let builder = Client::builder()
        .user_agent(concat!("lode/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .dns_resolver(redirect_policy.clone())
        .http1_only()
        .connect_timeout(limits.connect)
        .pool_idle_timeout(Duration::from_secs(90))
        .pool_max_idle_per_host(settings.parallel.max(1))
        .tls_danger_accept_invalid_certs(settings.no_verify);
    if is_loopback(host) {
        return Ok(builder.no_proxy());
    }
    let Some(proxy) = &settings.proxy else { return Ok(builder) };
    // The URL may contain a password, so the message does not repeat it.
    let proxy = Proxy::all(proxy).map_err(|_| {
        Error::Settings(format!("the proxy for `{host}` is not a URL; expected `http://HOST:PORT` or the like"))
    })?;
    Ok(builder.proxy(proxy.no_proxy(NoProxy::from_string(HERE))))
}

fn authorities(path: &Path) -> Result<Vec<Certificate>, Error> {
    let failed = |source| Error::File { operation: "read the certificate authorities", path: path.to_owned(), source };
    let mut pem = Vec::new();
    File::open(path).and_then(|file| file.take(LARGEST_CA_FILE).read_to_end(&mut pem)).map_err(failed)?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(Error::Settings(format!(
            "`{}` has no certificates; expected PEM, with lines `-----BEGIN CERTIFICATE-----`",
            path.display()
        ))),
    }
}
