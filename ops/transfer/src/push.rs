//! Pushing a model: sends the blobs that the registry lacks, then the manifest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use content::ensure;
use content::operation::{Context, OperationError, Result, Unclassified};
use content::{Descriptor, Digest, Provider};
use library::{Library, Model};
use manifests::{Document, ModelRef};
use registry::client::{Pushed, Pusher};
use store::Hold;
use tokio::task::JoinSet;

use crate::hosts::{Hosts, repository};
use crate::meter::Meter;
use crate::resolve::named_blobs;

/// The planned or completed action of a push for one layer.
#[derive(Clone, Debug)]
pub struct PushedBlob {
    /// The layer's name, or `config`.
    pub name: String,
    /// Digest, size and type.
    pub descriptor: Descriptor,
    /// The action.
    pub how: Pushed,
}

/// A push that is ready to start.
pub struct Push {
    library: Library,
    /// `host/repository`, as the registry names it.
    place: String,
    pusher: Pusher<Library>,
    model: Model,
    target: String,
    /// Every blob once, with its name.
    blobs: Vec<(String, Descriptor)>,
    /// For each blob, other repositories of the registry that are known to have it.
    siblings: Arc<BTreeMap<Digest, Vec<String>>>,
    parallel: usize,
    /// Keeps the blobs while they are sent, even if the name is removed.
    _hold: Hold,
}

impl Push {
    /// Checks the model, and the known limits of the destination. Nothing is sent.
    pub async fn prepare(library: &Library, hosts: &Hosts, name: &ModelRef, destination: &ModelRef) -> Result<Self> {
        let target = destination.tag().context("a push needs a name with a tag, not a digest alone")?.to_owned();
        let (own, wanted, to) = (library.clone(), name.clone(), destination.clone());
        let found = tokio::task::spawn_blocking(move || {
            let (model, hold) = own.find_held(&wanted)?;
            let siblings = siblings(&own, &to);
            Ok::<_, OperationError>((model, hold, siblings))
        });
        let (model, hold, siblings) = found.await.internal()??;
        let host = hosts.host(destination)?;
        let parallel = host.settings().parallel;
        let pusher = Pusher::new(library.clone(), host, &repository(destination));
        pusher.check_limits(model.manifest.raw(), model.manifest.layers().len())?;
        let mut seen = BTreeSet::new();
        let mut blobs: Vec<(String, Descriptor)> = named_blobs(&model.manifest)
            .filter(|(_, blob)| seen.insert(blob.digest))
            .map(|(name, blob)| (name.to_owned(), blob.clone()))
            .collect();
        blobs.sort_by_key(|(_, blob)| std::cmp::Reverse(blob.size));
        for (name, blob) in &blobs {
            let there = library.stat(&blob.digest).await?.map(|found| found.size);
            ensure!(
                there == Some(blob.size),
                "blob `{}` (`{name}`) is {} bytes, its descriptor says {}; run `lode repair`",
                blob.digest,
                there.map_or("no".to_owned(), |size| size.to_string()),
                blob.size
            );
        }
        let place = format!("{}/{}", destination.host(), repository(destination));
        Ok(Self {
            library: library.clone(),
            place,
            pusher,
            model,
            target,
            blobs,
            siblings: Arc::new(siblings),
            _hold: hold,
            parallel,
        })
    }

    /// Returns the actions of the push. It only queries the registry.
    pub async fn plan(&self) -> Result<Vec<PushedBlob>> {
        let siblings = self.siblings.clone();
        self.each(move |pusher, _, blob| {
            let siblings = siblings.clone();
            async move {
                if pusher.has(&blob.digest).await? {
                    return Ok(Pushed::Present);
                }
                Ok(if siblings.contains_key(&blob.digest) { Pushed::Mounted } else { Pushed::Sent })
            }
        })
        .await
    }

    /// Sends the missing blobs, then the manifest.
    pub async fn execute(&self, meter: &Arc<Meter>) -> Result<Vec<PushedBlob>> {
        meter.expect(self.blobs.iter().map(|(_, blob)| blob.size).sum(), 0);
        let (siblings, whole) = (self.siblings.clone(), meter.clone());
        let pushed = self
            .each(move |pusher, name, blob| {
                let (siblings, counter) = (siblings.clone(), whole.blob(&name, &blob));
                async move {
                    let from = siblings.get(&blob.digest).map_or(&[][..], Vec::as_slice);
                    let pushed = pusher.push(&blob, from, &counter).await;
                    pushed.with_context(|| format!("layer `{name}`"))
                }
            })
            .await?;
        meter.status("pushing manifest");
        let manifest = &self.model.manifest;
        let raw = bytes::Bytes::copy_from_slice(manifest.raw());
        self.pusher.put_manifest(&self.target, manifest.media_type().as_str(), raw).await?;
        let (library, digest, place) = (self.library.clone(), *manifest.digest(), self.place.clone());
        tokio::task::spawn_blocking(move || remember(&library, &digest, place)).await.internal()?;
        Ok(pushed)
    }

    /// Applies `work` to every blob, several at a time.
    async fn each<W, F>(&self, work: W) -> Result<Vec<PushedBlob>>
    where
        W: Fn(Pusher<Library>, String, Descriptor) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Pushed>> + Send,
    {
        let queue = Arc::new(Mutex::new(VecDeque::from(self.blobs.clone())));
        let mut running = JoinSet::new();
        for _ in 0..self.parallel.min(self.blobs.len()) {
            let (queue, pusher, work) = (queue.clone(), self.pusher.clone(), work.clone());
            running.spawn(async move {
                let mut done = Vec::new();
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    let Some((name, descriptor)) = next else { return Ok::<_, OperationError>(done) };
                    let how = work(pusher.clone(), name.clone(), descriptor.clone()).await?;
                    done.push(PushedBlob { name, descriptor, how });
                }
            });
        }
        let mut all = Vec::new();
        while let Some(ended) = running.join_next().await {
            all.extend(ended.internal()??);
        }
        all.sort_by(|a: &PushedBlob, b| a.name.cmp(&b.name));
        Ok(all)
    }
}

/// The kind of note that lists where a manifest was pushed to, one place a line.
const PUSHED: &str = "pushed";
/// Maximum number of places that are recorded for a manifest.
const PLACES: usize = 20;

fn pushed_to(library: &Library, manifest: &Digest) -> Vec<String> {
    let note = library.notes().get(PUSHED, manifest).unwrap_or_default();
    String::from_utf8_lossy(&note).lines().map(str::to_owned).collect()
}

/// Records where a manifest was pushed to: later pushes can mount its blobs from there.
fn remember(library: &Library, manifest: &Digest, place: String) {
    let mut places = pushed_to(library, manifest);
    places.retain(|known| *known != place);
    places.insert(0, place);
    places.truncate(PLACES);
    library.notes().set(PUSHED, manifest, places.join("\n").as_bytes());
}

/// For each blob, the other repositories of the destination's registry that are known to have it:
/// repositories of local models with that registry's host, and places that models were pushed to.
fn siblings(library: &Library, destination: &ModelRef) -> BTreeMap<Digest, Vec<String>> {
    let prefix = format!("{}/", destination.host());
    let own = repository(destination);
    let mut siblings: BTreeMap<Digest, Vec<String>> = BTreeMap::new();
    for tag in library.names().list() {
        let Ok(reference) = tag.name.parse::<ModelRef>() else { continue };
        let mut names: Vec<String> = pushed_to(library, &tag.digest)
            .iter()
            .filter_map(|place| place.strip_prefix(&prefix).map(str::to_owned))
            .collect();
        if reference.host() == destination.host() {
            names.push(repository(&reference));
        }
        names.retain(|name| *name != own);
        if names.is_empty() {
            continue;
        }
        // A model that cannot be read offers no mounts.
        let Ok(raw) = library.blobs().read(&tag.digest, manifests::MAX_MANIFEST as u64) else { continue };
        let Ok(document) = Document::parse(&raw) else { continue };
        for blob in document.children().blobs {
            let repositories = siblings.entry(blob).or_default();
            repositories.extend(names.iter().filter(|name| !repositories.contains(*name)).cloned().collect::<Vec<_>>());
        }
    }
    siblings
}
