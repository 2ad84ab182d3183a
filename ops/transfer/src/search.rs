//! Search: lists the models that registries and the hub offer, if they support listing.

use std::collections::BTreeSet;
use std::time::Duration;

use content::operation::{Context, OperationError, Result, Unclassified};
use futures_util::future::join_all;
use library::Library;
use manifests::ModelRef;
use manifests::reference::DEFAULT_HOST;
use registry::client::{Host, catalog};
use serde::Deserialize;

use crate::hosts::Hosts;
use crate::http_file::Endpoint;
use crate::hub::search_url;
use crate::hub_settings::HubSettings;

/// Maximum number of repositories of a source whose tags are listed. Each takes a request.
const MOST_REPOSITORIES: usize = 50;
/// Maximum number of tags that are returned for a repository.
const MOST_TAGS: usize = 1000;
/// Timeout for one source.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum length of a hub's response in bytes.
const MAX_ANSWER: u64 = 8 << 20;

/// A model that can be pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The name for `pull`.
    pub name: String,
    /// The registry or hub that offers it.
    pub source: String,
    /// Number of downloads, if the source reports it.
    pub downloads: Option<u64>,
}

/// The results of a search, and the sources that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Sorted by source, then by name; results of the hub are in its own order.
    pub offered: Vec<Offered>,
    /// Sources that failed, with the reason.
    pub silent: Vec<(String, String)>,
}

/// Searches the registries in the settings, the registries of local models, their mirrors, and the
/// hub for models whose name contains `text`. The hub is skipped if `text` is empty: it would list
/// a million models.
///
/// # Errors
/// The settings of registries cannot be read.
pub async fn search(library: &Library, hosts: &Hosts, hub: &HubSettings, text: &str) -> Result<Search> {
    let names = known(library, hosts).await?;
    let sources =
        names.iter().map(|name| hosts.sources(name).map(|sources| (name, sources))).collect::<Result<Vec<_>>>()?;
    let sources = sources.into_iter().flat_map(|(name, sources)| sources.into_iter().map(move |source| (name, source)));
    let asked = join_all(sources.map(|(name, source)| async move {
        let late = |_| Err(OperationError::text(format!("it did not respond within {} s", PATIENCE.as_secs())));
        let found = tokio::time::timeout(PATIENCE, in_registry(name, &source, text)).await.unwrap_or_else(late);
        (source.name().to_owned(), found)
    }));
    let (mut all, hub) =
        tokio::join!(asked, async { if text.is_empty() { None } else { Some(in_hub(hub, text).await) } });
    all.extend(hub.map(|found| (hub_name(), found)));
    let mut search = Search::default();
    for (source, found) in all {
        match found {
            Ok(found) => search.offered.extend(found),
            Err(error) => search.silent.push((source, format!("{error:#}"))),
        }
    }
    Ok(search)
}

/// The hosts in the settings, the hosts of local models, and the default host.
async fn known(library: &Library, hosts: &Hosts) -> Result<Vec<String>> {
    let mut names: BTreeSet<String> = hosts.configured()?.into_iter().collect();
    let library = library.clone();
    let tags = tokio::task::spawn_blocking(move || library.names().list()).await.internal()?;
    let host = |name: &str| name.parse::<ModelRef>().ok().map(|name| name.host().to_owned());
    names.extend(tags.iter().filter_map(|tag| host(&tag.name)).filter(|host| *host != hub_name()));
    names.insert(DEFAULT_HOST.to_owned());
    Ok(names.into_iter().collect())
}

fn hub_name() -> String {
    crate::hub::HOSTS[0].to_owned()
}

/// The models of a registry, or of a mirror of it, whose name contains `text`.
async fn in_registry(registry: &str, source: &Host, text: &str) -> Result<Vec<Offered>> {
    let text = text.to_lowercase();
    let mut repositories = catalog::repositories(source).await?;
    repositories.retain(|repository| repository.to_lowercase().contains(&text));
    repositories.sort();
    repositories.truncate(MOST_REPOSITORIES);
    let mut offered = Vec::new();
    for repository in repositories {
        let mut tags = match catalog::tags(source, &repository).await {
            Ok(tags) => tags,
            // Many registries also list repositories that were deleted or that are private.
            Err(error) => {
                tracing::debug!(registry, repository, "its tags cannot be listed: {error}");
                continue;
            }
        };
        tags.sort();
        tags.truncate(MOST_TAGS);
        for tag in tags {
            // A name that Lode cannot parse cannot be pulled.
            if let Ok(name) = format!("{registry}/{repository}:{tag}").parse::<ModelRef>() {
                offered.push(Offered { name: name.to_string(), source: source.name().to_owned(), downloads: None });
            }
        }
    }
    Ok(offered)
}

#[derive(Deserialize)]
struct HubModel {
    #[serde(alias = "modelId")]
    id: String,
    #[serde(default)]
    downloads: Option<u64>,
}

async fn in_hub(hub: &HubSettings, text: &str) -> Result<Vec<Offered>> {
    let endpoint = Endpoint::new(&hub.endpoint, hub.token.clone())?;
    let raw = endpoint.document(&search_url(&hub.endpoint, text), MAX_ANSWER).await?;
    let models: Vec<HubModel> = serde_json::from_slice(&raw).internal().context("its answer cannot be read")?;
    let offered = |model: HubModel| {
        let (name, source) = (format!("{}/{}", hub_name(), model.id), hub_name());
        Offered { name, source, downloads: model.downloads }
    };
    Ok(models.into_iter().map(offered).collect())
}
