//! Registries whose repositories this server copies when a client asks for them.
//!
//! The repository `NAME` of `docker.io` is `docker.io/NAME` here. Names have no colons, so those of
//! `host:5000` begin with `host_5000/`. A client that uses this server as a mirror names the other
//! registry by the query parameter `ns` instead.

use manifests::ModelRef;

use crate::RepositoryName;

/// The registries that are copied; a host with its port, if it has one, in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopiedRegistries(Vec<CopiedRegistry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct CopiedRegistry {
    host: String,
    /// The first part of the names of its repositories here.
    prefix: String,
}

/// A repository of another registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopiedFrom<'a> {
    /// The host of the registry.
    pub host: &'a str,
    /// The name of the repository there.
    pub name: &'a str,
}

impl CopiedRegistries {
    /// Copies the repositories of these hosts.
    ///
    /// # Errors
    /// No repository here can have the name of a host, as of one that is an IPv6 address.
    pub fn new(hosts: &[String]) -> Result<Self, String> {
        let copied = hosts.iter().map(|host| {
            let prefix = host.replace(':', "_");
            if RepositoryName::parse(&prefix).is_err() || prefix.contains('/') {
                return Err(format!("`{host}` cannot be the first part of a repository's name; use a host name"));
            }
            // Other names have such a host only if it has a dot or a port.
            let is_host = format!("{host}/m").parse::<ModelRef>().is_ok_and(|name| name.host() == host);
            if is_host {
                Ok(CopiedRegistry { host: host.clone(), prefix })
            } else {
                Err(format!("`{host}` is not a registry: expected HOST with a dot, or HOST:PORT"))
            }
        });
        Ok(Self(copied.collect::<Result<_, String>>()?))
    }

    /// The repository of another registry that this one copies.
    pub fn source<'a>(&'a self, name: &'a RepositoryName) -> Option<CopiedFrom<'a>> {
        let (prefix, name) = name.as_str().split_once('/')?;
        let copied = self.0.iter().find(|copied| copied.prefix == prefix)?;
        Some(CopiedFrom { host: &copied.host, name })
    }

    /// The name here of a repository of `host`; `None` if the host is not copied, or if the name
    /// would be too long.
    pub(super) fn own_name(&self, host: &str, name: &RepositoryName) -> Option<RepositoryName> {
        let copied = self.0.iter().find(|copied| copied.host.eq_ignore_ascii_case(host))?;
        RepositoryName::parse(&format!("{}/{name}", copied.prefix)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> RepositoryName {
        RepositoryName::parse(text).expect(text)
    }

    #[test]
    fn names_and_sources_belong_together() {
        let copied = CopiedRegistries::new(&["docker.io".to_owned(), "host:5000".to_owned()]).expect("hosts");
        for (host, there, here) in
            [("docker.io", "library/alpine", "docker.io/library/alpine"), ("HOST:5000", "m", "host_5000/m")]
        {
            assert_eq!(copied.own_name(host, &name(there)), Some(name(here)));
            let own = name(here);
            let found = copied.source(&own).expect(here);
            assert_eq!((found.host, found.name), (host.to_ascii_lowercase().as_str(), there));
        }
        for other in ["docker.io", "team/docker.io/alpine", "docker.iox/alpine"] {
            assert_eq!(copied.source(&name(other)), None, "{other}");
        }
        assert_eq!(copied.own_name("ghcr.io", &name("m")), None);
        for wrong in ["[::1]:5000", "harbor", "my_host", "a.example/b", ""] {
            assert!(CopiedRegistries::new(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
