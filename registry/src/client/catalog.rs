//! Lists the repositories of a registry, the tags of a repository, and the manifests about another
//! one. Support is optional, and many registries lack it.

use content::Digest;
use reqwest::header::{HeaderMap, LINK};
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::Error;
use super::host::Host;
use super::payload::{Payload, Request};
use super::remote::protocol;
use super::scope::{Action, Scope};

/// Number of entries to request for each page.
const PAGE: usize = 1000;
/// Maximum size of a page in bytes.
const MAX_PAGE: usize = 4 << 20;
/// Maximum number of entries that are kept: a list may be endless, and pages may be longer than
/// requested.
const MAX_ENTRIES: usize = 50 * PAGE;

/// A page of names, or of manifests.
trait Page: DeserializeOwned {
    type Entry;

    fn entries(self) -> Vec<Self::Entry>;
}

#[derive(Deserialize)]
struct Names {
    #[serde(default, alias = "tags")]
    repositories: Option<Vec<String>>,
}

impl Page for Names {
    type Entry = String;

    fn entries(self) -> Vec<String> {
        self.repositories.unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<IndexedManifest>,
}

#[derive(Deserialize)]
struct IndexedManifest {
    digest: String,
}

impl Page for Index {
    type Entry = Digest;

    /// Digests of unknown algorithms are left out: their manifests could not be verified.
    fn entries(self) -> Vec<Digest> {
        self.manifests.iter().filter_map(|entry| entry.digest.parse().ok()).collect()
    }
}

/// Returns the repositories of a registry, in its order; at most fifty thousand.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Denied`] and the like if it does not support lists, and all errors
/// of [`Host::send`].
pub async fn repositories(host: &Host) -> Result<Vec<String>, Error> {
    list::<Names>(host, "/v2/_catalog", "", "the list of repositories").await
}

/// Returns the tags of a repository.
///
/// # Errors
/// See [`repositories`].
pub async fn tags(host: &Host, repository: &str) -> Result<Vec<String>, Error> {
    list::<Names>(host, &format!("/v2/{repository}/tags/list"), repository, &format!("the tags of `{repository}`"))
        .await
}

/// Returns the manifests of a repository about the manifest `subject`.
///
/// # Errors
/// See [`repositories`].
pub async fn referrers(host: &Host, repository: &str, subject: &Digest) -> Result<Vec<Digest>, Error> {
    let what = format!("the manifests of `{repository}` about `{subject}`");
    list::<Index>(host, &format!("/v2/{repository}/referrers/{subject}"), repository, &what).await
}

async fn list<P: Page>(host: &Host, path: &str, repository: &str, what: &str) -> Result<Vec<P::Entry>, Error> {
    let scope = Scope { repository: repository.to_owned(), actions: Action::Pull, mount_from: None };
    let (mut all, mut query) = (Vec::new(), format!("n={PAGE}"));
    // An empty page may be followed by another page.
    for _ in 0..MAX_ENTRIES / PAGE {
        let url = host.url(&format!("{path}?{query}"));
        let request =
            Request { method: Method::GET, url, headers: HeaderMap::new(), scope: &scope, payload: Payload::None };
        let response = host.send(request).await?;
        if response.status() != StatusCode::OK {
            return Err(host.refusal(what, response).await);
        }
        let next = next_query(response.headers());
        let body = host.body(response, MAX_PAGE).await?;
        let page: P =
            serde_json::from_slice(&body).map_err(|error| protocol(host, format!("{what} cannot be read: {error}")))?;
        all.extend(page.entries().into_iter().take(MAX_ENTRIES - all.len()));
        if all.len() == MAX_ENTRIES {
            break;
        }
        match next.filter(|next| *next != query) {
            Some(next) => query = next,
            None => break,
        }
    }
    Ok(all)
}

/// The query of the next page. The path is already known, so a registry cannot redirect us with it.
fn next_query(headers: &HeaderMap) -> Option<String> {
    let links =
        headers.get_all(LINK).into_iter().filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    let next = links.map(str::trim).find(|link| link.contains("rel=\"next\"") || link.contains("rel=next"))?;
    let (_, rest) = next.split_once('<')?;
    let (url, _) = rest.split_once('>')?;
    url.split_once('?').map(|(_, query)| query.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found_in_the_link() {
        for (link, expect) in [
            ("</v2/_catalog?n=2&last=b>; rel=\"next\"", Some("n=2&last=b")),
            ("<https://other.example/v2/_catalog?last=x>; rel=next", Some("last=x")),
            ("</v2/_catalog?n=1>; rel=\"prev\"", None),
            ("</v2/_catalog>; rel=\"next\"", None),
            ("nonsense", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(LINK, link.parse().expect("a header"));
            assert_eq!(next_query(&headers).as_deref(), expect, "{link}");
        }
    }
}
