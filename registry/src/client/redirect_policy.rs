//! Restricts the addresses that a server may send us to: none may be nearer to this machine than
//! the server is.
//!
//! Otherwise any public server could make this machine send requests to addresses that only it can
//! reach: a local daemon, a router, the metadata service of a cloud. It could use a redirect, the
//! URL of an upload or the URL of a token service for that.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::error::find;
use super::settings::{host_name, is_loopback};

/// The distance of an address from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NetworkDistance {
    /// This machine, its link (where cloud metadata services are), and unspecified,
    /// multicast and reserved addresses.
    Machine,
    /// Networks that are not routed on the Internet.
    Network,
    Internet,
}

impl NetworkDistance {
    /// The distance of an address, by IANA's registries of special-purpose addresses.
    fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => Self::of_v6(address),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        match address.octets() {
            [0 | 127 | 224.., ..] | [169, 254, ..] => Self::Machine,
            [10, ..]
            | [172, 16..=31, ..]
            | [192, 168, ..]
            | [100, 64..=127, ..]
            | [198, 18 | 19, ..]
            | [192, 0, 0, _] => Self::Network,
            _ => Self::Internet,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        let embedded = |high: u16, low: u16| {
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            Self::of_v4(Ipv4Addr::new(a, b, c, d))
        };
        match address.segments() {
            // Mapped, translated (NAT64) and tunnelled (6to4) addresses: the embedded IPv4 address
            // counts.
            [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
                embedded(high, low)
            }
            // Unspecified, loopback, link-local and multicast addresses.
            [0, 0, 0, 0, 0, 0, ..] | [0xfe80..=0xfebf | 0xff00.., ..] => Self::Machine,
            // Unique-local and site-local addresses, and NAT64 within a network.
            [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] | [0x64, 0xff9b, 1, ..] => Self::Network,
            _ => Self::Internet,
        }
    }
}

impl fmt::Display for NetworkDistance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "on this machine or its link",
            Self::Network => "in a private network",
            Self::Internet => "on the Internet",
        })
    }
}

/// An address that is nearer than the server that sent us there.
#[derive(Debug)]
struct ForbiddenTarget {
    place: String,
    reach: NetworkDistance,
    advice: &'static str,
}

/// Advice in errors: how to allow a target.
const OF_REGISTRIES: &str = "to allow it, add the host to `leads_to` in the registry's settings";
const OF_PICTURES: &str = "to allow it, add the host to LODE_FETCH_IMAGES";

impl fmt::Display for ForbiddenTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, reach, advice } = self;
        write!(f, "`{place}` is {reach}; a server or a request from outside of it must not lead there; {advice}")
    }
}

impl std::error::Error for ForbiddenTarget {}

/// The policy for redirects, upload URLs and token services of a server: a target must be at least
/// as far away as the server.
///
/// Host names are checked when they are resolved for a connection ([`Resolve`]), so that a name
/// cannot have one address for the check and another for the connection. Names that a proxy
/// resolves are not checked.
#[derive(Clone, Debug)]
pub struct RedirectPolicy(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The host of the server, as in its URL.
    host: String,
    /// The distance of the server, after its name was resolved.
    reach: OnceLock<NetworkDistance>,
    /// The hosts of proxies. The owner of the machine chooses them, so connections to them are
    /// allowed, but a server must not redirect to them.
    proxies: BTreeSet<String>,
    /// Hosts that the server may redirect to at any distance, by its settings.
    leads_to: BTreeSet<String>,
    /// How to allow another target.
    advice: &'static str,
}

impl RedirectPolicy {
    /// Creates the policy for the server at `base`. It is reached through `proxy`, or through the
    /// proxies in the environment. It may redirect to the hosts `leads_to` at any distance.
    pub fn for_server(base: &Url, proxy: Option<&str>, leads_to: &[String]) -> Self {
        let host = base.host_str().unwrap_or_default().to_owned();
        let reach = literal(&host).map_or_else(OnceLock::new, Into::into);
        Self::new(host, reach, (proxy, leads_to), OF_REGISTRIES)
    }

    /// Creates the policy for URLs that a client of this machine names: only addresses on the
    /// Internet are allowed, except for the hosts `allowed`.
    pub fn for_named_urls(allowed: &[String]) -> Self {
        Self::new(String::new(), NetworkDistance::Internet.into(), (None, allowed), OF_PICTURES)
    }

    fn new(
        host: String,
        reach: OnceLock<NetworkDistance>,
        (proxy, leads_to): (Option<&str>, &[String]),
        advice: &'static str,
    ) -> Self {
        let set = |name: &str| std::env::var(name).or_else(|_| std::env::var(name.to_ascii_lowercase())).ok();
        let named = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"].into_iter().filter_map(set);
        let proxies = named.chain(proxy.map(str::to_owned)).filter_map(|proxy| host_of_proxy(&proxy)).collect();
        let leads_to = leads_to.iter().map(|host| host.to_ascii_lowercase()).collect();
        Self(Arc::new(Inner { host, reach, proxies, leads_to, advice }))
    }

    /// Checks whether a request may be redirected from `from` to `to`. It must not lose TLS, change
    /// to another protocol, or lead to an address that is nearer than the server. A host name is
    /// checked when it is resolved.
    ///
    /// # Errors
    /// The reason, as the end of a sentence.
    pub fn check_step(&self, from: &Url, to: &Url) -> Result<(), String> {
        match (from.scheme(), to.scheme()) {
            (_, "https") | ("http", "http") => {}
            ("https", "http") => return Err("the target has no TLS".to_owned()),
            (_, other) => {
                return Err(format!("the target has the scheme `{}`", other.chars().take(20).collect::<String>()));
            }
        }
        let place = to.host_str().unwrap_or_default();
        if place == self.0.host || self.0.leads_to.contains(place) {
            return Ok(());
        }
        if self.0.proxies.contains(place) {
            return Err(format!("`{place}` is a configured proxy and must not be reached through another server"));
        }
        literal(place).map_or(Ok(()), |reach| self.check(place, reach)).map_err(|nearer| nearer.to_string())
    }

    /// The reason why a request was not sent, if the policy refused the address of its host.
    pub fn refusal(error: &reqwest::Error) -> Option<String> {
        find::<ForbiddenTarget>(error).map(ToString::to_string)
    }

    /// The distance of the server. If its name was never resolved here, a proxy resolved it; it
    /// then counts as far.
    fn reach(&self) -> NetworkDistance {
        self.0.reach.get().copied().unwrap_or(NetworkDistance::Internet)
    }

    fn check(&self, place: &str, reach: NetworkDistance) -> Result<(), ForbiddenTarget> {
        if reach >= self.reach() {
            return Ok(());
        }
        Err(ForbiddenTarget { place: place.to_owned(), reach, advice: self.0.advice })
    }

    /// The addresses of `name` to which connections are allowed.
    fn allowed(&self, name: &str, addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, ForbiddenTarget> {
        let name = name.to_ascii_lowercase();
        if name == self.0.host {
            // The farthest address counts, and only the first resolution: a server with a public
            // address cannot gain access to near addresses by another one.
            if let Some(farthest) = addresses.iter().map(|address| NetworkDistance::of(*address)).max() {
                let _ = self.0.reach.set(farthest);
            }
        } else if self.0.proxies.contains(&name) || self.0.leads_to.contains(&name) {
            return Ok(addresses);
        }
        let (allowed, refused): (Vec<_>, Vec<_>) =
            addresses.into_iter().partition(|address| NetworkDistance::of(*address) >= self.reach());
        match refused.first() {
            Some(address) if allowed.is_empty() => {
                Err(ForbiddenTarget { place: name, reach: NetworkDistance::of(*address), advice: self.0.advice })
            }
            _ => Ok(allowed),
        }
    }
}

impl Resolve for RedirectPolicy {
    fn resolve(&self, name: Name) -> Resolving {
        let redirect_policy = self.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed = redirect_policy.allowed(name.as_str(), found.map(|address| address.ip()).collect())?;
            Ok(Box::new(allowed.into_iter().map(|address| SocketAddr::new(address, 0))) as Addrs)
        })
    }
}

/// The distance of a host that is an IP address or `localhost`.
fn literal(host: &str) -> Option<NetworkDistance> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let address = bare.parse().ok().map(NetworkDistance::of);
    address.or_else(|| is_loopback(host).then_some(NetworkDistance::Machine))
}

/// The host of a proxy, whose URL may lack a scheme.
fn host_of_proxy(proxy: &str) -> Option<String> {
    let bare = proxy.rsplit_once("://").map_or(proxy, |(_, rest)| rest);
    let place = bare.rsplit_once('@').map_or(bare, |(_, place)| place);
    let host = host_name(place.split('/').next().unwrap_or_default());
    (!host.is_empty()).then(|| host.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).expect("a URL of this test")
    }

    #[test]
    fn knows_how_far_an_address_is() {
        let cases = [
            (
                NetworkDistance::Machine,
                "127.0.0.1 127.9.9.9 0.0.0.0 169.254.169.254 224.0.0.1 255.255.255.255 ::1 :: fe80::1 ff02::1",
            ),
            (
                NetworkDistance::Machine,
                "::ffff:127.0.0.1 64:ff9b::7f00:1 2002:7f00:1::1 ::ffff:169.254.169.254 ::7f00:1",
            ),
            (
                NetworkDistance::Network,
                "10.1.2.3 172.16.0.1 172.31.255.255 192.168.1.1 100.64.0.1 198.18.0.1 fd00::1 64:ff9b:1::1",
            ),
            (NetworkDistance::Network, "::ffff:10.0.0.1 2002:a00:1::1 fec0::1"),
            (
                NetworkDistance::Internet,
                "1.1.1.1 172.32.0.1 100.128.0.1 192.169.0.1 2606:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808",
            ),
        ];
        for (reach, addresses) in cases {
            for address in addresses.split(' ') {
                assert_eq!(NetworkDistance::of(address.parse().expect("an address of this test")), reach, "{address}");
            }
        }
    }

    #[test]
    fn is_led_no_nearer() {
        let cases = [
            ("https://93.184.0.1/", "https://93.184.0.2/", true),
            ("https://93.184.0.1/", "https://10.0.0.1/", false),
            ("https://93.184.0.1/", "https://127.0.0.1/", false),
            ("https://93.184.0.1/", "https://2130706433/", false),
            ("https://93.184.0.1/", "https://[::1]/", false),
            ("https://93.184.0.1/", "https://localhost/", false),
            ("https://93.184.0.1/", "https://[::ffff:a9fe:a9fe]/", false),
            ("https://10.0.0.1/", "https://10.0.0.2/", true),
            ("https://10.0.0.1/", "https://93.184.0.1/", true),
            ("https://10.0.0.1/", "https://169.254.169.254/", false),
            ("http://127.0.0.1:5000/", "http://127.0.0.1:6000/", true),
            ("http://127.0.0.1:5000/", "http://10.0.0.1/", true),
            ("https://registry.example/", "https://192.168.0.1/", false),
            ("https://registry.example/", "https://registry.example/elsewhere", true),
            ("https://93.184.0.1/", "http://93.184.0.1/", false),
            ("http://93.184.0.1/", "https://93.184.0.1/", true),
            ("http://93.184.0.1/", "ftp://93.184.0.1/", false),
            ("http://93.184.0.1/", "file:///etc/passwd", false),
        ];
        for (from, to, fine) in cases {
            let (from, to) = (url(from), url(to));
            assert_eq!(
                RedirectPolicy::for_server(&from, None, &[]).check_step(&from, &to).is_ok(),
                fine,
                "{from} {to}"
            );
        }
    }

    #[test]
    fn named_urls_are_on_the_internet() {
        let policy = RedirectPolicy::for_named_urls(&["images.lan".to_owned()]);
        for (target, fine) in [
            ("https://93.184.0.1/a.png", true),
            ("https://images.lan/a.png", true),
            ("https://127.0.0.1/a.png", false),
            ("https://localhost/a.png", false),
            ("https://10.0.0.1/a.png", false),
            ("https://169.254.169.254/latest", false),
            ("http://93.184.0.1/a.png", true),
        ] {
            let target = url(target);
            assert_eq!(policy.check_step(&target, &target).is_ok(), fine, "{target}");
        }
        let near = "192.168.1.7".parse::<IpAddr>().expect("an address of this test");
        assert!(policy.allowed("router.example", vec![near]).is_err(), "names are checked when they are resolved");
        assert_eq!(policy.allowed("images.lan", vec![near]).expect("allowed here"), [near]);
    }

    #[test]
    fn holds_names_against_the_border_when_they_are_resolved() {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address of this test");
        let redirect_policy = RedirectPolicy::for_server(
            &url("https://registry.example/"),
            Some("http://me:word@proxy.corp:3128"),
            &["minio.corp".to_owned()],
        );
        let far = address("93.184.0.1");
        let near = address("10.0.0.1");
        assert!(redirect_policy.allowed("elsewhere.example", vec![near]).is_err(), "it is believed to be far");
        // It cannot use a near address of its own, neither in the same answer nor later.
        assert_eq!(redirect_policy.allowed("registry.example", vec![near, far]).expect("its own"), [far]);
        assert!(redirect_policy.allowed("registry.example", vec![near]).is_err());
        assert!(redirect_policy.allowed("elsewhere.example", vec![near]).is_err());
        assert_eq!(redirect_policy.allowed("elsewhere.example", vec![near, far]).expect("one of them"), [far]);
        assert_eq!(redirect_policy.allowed("proxy.corp", vec![near]).expect("chosen here"), [near]);
        assert_eq!(redirect_policy.allowed("MINIO.corp", vec![near]).expect("settings say so"), [near]);
        let base = url("https://registry.example/");
        assert!(redirect_policy.check_step(&base, &url("https://proxy.corp:8080/")).is_err(), "a proxy is not led to");
        assert!(redirect_policy.check_step(&base, &url("https://minio.corp/")).is_ok());
        let redirect_policy = RedirectPolicy::for_server(&url("https://registry.lan/"), None, &[]);
        redirect_policy.allowed("REGISTRY.lan", vec![near]).expect("its own");
        assert!(redirect_policy.allowed("storage.lan", vec![address("192.168.7.7")]).is_ok());
        assert!(redirect_policy.allowed("storage.lan", vec![address("127.0.0.1")]).is_err());
    }
}
