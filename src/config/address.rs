//! The address at which the daemon listens.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use anyhow::{Context, Result, bail};

/// Ollama's default address, so that its clients find the daemon.
const DEFAULT_HOST: &str = "127.0.0.1";
pub(crate) const DEFAULT_PORT: u16 = 11434;

/// The address at which the daemon listens, and its URL for commands.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) address: SocketAddr,
    pub(super) url: String,
}

/// Parses `host`, `host:port`, `:port` or `http://host:port`, with defaults for missing parts. With
/// TLS, the URL keeps the host name, because certificates are issued for names.
pub(super) fn host(text: &str, tls: bool) -> Result<Host> {
    let text = text.trim().trim_end_matches('/');
    let (text, default_port, secure) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (Some(rest), _) if tls => {
            bail!("LODE_HOST: `http://{rest}` is without TLS, but LODE_TLS_CERT is set; write `https://` or unset it")
        }
        (Some(rest), _) => (rest, 80, false),
        (_, Some(rest)) => (rest, 443, true),
        _ => (text, DEFAULT_PORT, tls),
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.ends_with(':') && (!host.contains(':') || host.ends_with(']')) => {
            let port = if port.is_empty() { Ok(default_port) } else { port.parse() };
            (host, port.with_context(|| format!("LODE_HOST: `{text}` does not end in a port (1 to 65535)"))?)
        }
        _ => (text, default_port),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = if host.is_empty() { DEFAULT_HOST } else { host };
    let address = resolve(host, port)?;
    let url = match (secure, address.ip()) {
        (true, ip) if ip.is_unspecified() || ip.is_loopback() => format!("https://localhost:{port}"),
        (true, ip) if host.parse() == Ok(ip) => format!("https://{address}"),
        (true, _) => format!("https://{host}:{port}"),
        (false, IpAddr::V4(ip)) if ip.is_unspecified() => format!("http://127.0.0.1:{port}"),
        (false, IpAddr::V6(ip)) if ip.is_unspecified() => format!("http://[::1]:{port}"),
        (false, _) => format!("http://{address}"),
    };
    Ok(Host { address, url })
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    // As in URLs, a name whose last part is a number must be a complete IP address. The system
    // resolver would read 21300 as 0.0.83.52.
    let is_number =
        |part: &str| part.starts_with("0x") || (!part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    if host.rsplit('.').next().is_some_and(is_number) {
        bail!(
            "LODE_HOST: `{host}` is not an address; a port alone is `:{host}`, an address with one `127.0.0.1:{port}`"
        );
    }
    let mut found =
        (host, port).to_socket_addrs().with_context(|| format!("LODE_HOST: `{host}` cannot be resolved"))?;
    found.next().with_context(|| format!("LODE_HOST: `{host}` has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_addresses() {
        for (text, expect) in [
            ("", "127.0.0.1:11434"),
            (":", "127.0.0.1:11434"),
            ("0.0.0.0", "0.0.0.0:11434"),
            (":8080", "127.0.0.1:8080"),
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("http://10.0.0.1", "10.0.0.1:80"),
            ("http://10.0.0.1:9/", "10.0.0.1:9"),
            ("https://10.0.0.1", "10.0.0.1:443"),
            ("[::1]:9", "[::1]:9"),
            ("::1", "[::1]:11434"),
        ] {
            assert_eq!(host(text, false).expect(text).address.to_string(), expect, "{text}");
        }
        for bad in ["10.0.0.1:x", "10.0.0.1:99999", "21300", "1.2.3", "127.1", "0x7f.1", "256.1.1.1"] {
            assert!(host(bad, false).is_err(), "{bad}");
        }
        assert!(host("http://10.0.0.1", true).is_err());
    }

    #[test]
    fn tls_decides_how_commands_reach_the_daemon() {
        for (text, tls, expect) in [
            ("", false, "http://127.0.0.1:11434"),
            ("0.0.0.0:1", false, "http://127.0.0.1:1"),
            ("[::]:1", false, "http://[::1]:1"),
            ("10.0.0.1", false, "http://10.0.0.1:11434"),
            ("", true, "https://localhost:11434"),
            ("0.0.0.0", true, "https://localhost:11434"),
            ("10.0.0.1", true, "https://10.0.0.1:11434"),
            ("https://localhost", false, "https://localhost:443"),
            ("https://[fd00::1]:5", false, "https://[fd00::1]:5"),
        ] {
            assert_eq!(host(text, tls).expect(text).url, expect, "{text}");
        }
    }
}
