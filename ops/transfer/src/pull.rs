//! Pulling a model.
//!
//! ```text
//! resolve ──▶ lease ──▶ plan against the store ──▶ fetch ──▶ describe ──▶ tag
//!  manifest     │       blobs in the store         in parallel,           visible only
//!               │       are not fetched            verified, resumable    from here on
//!               └── keeps the blobs from collection
//! ```
//! An interrupted pull leaves complete blobs, partial ingests and a lease. The next pull resumes
//! from there.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use build::Created;
use content::operation::{Context, ErrorClass, OperationError, RemoteClass, Result, Unclassified};
use content::{Amount, Descriptor, Digest, IngestId};
use content::{bail, ensure};
use import::ReadAt;
use library::{
    ExternalFile, LayerSplit, Layout, Library, MAX_DOCUMENT, RangeReader, RangeSource, Windows, classify, split_layers,
};
use manifests::{Document, Manifest, ModelConfig, ModelRef, annotations, media_types};
use registry::client::{Fetcher, Remote};
use tokio::task::JoinSet;

use crate::document::store_document;
use crate::hosts::Hosts;
use crate::http_file::Endpoint;
use crate::hub::HubReference;
use crate::hub_settings::HubSettings;
use crate::meter::{Meter, MeterObserver, Watched};
use crate::pull_external::{ExternalModel, Hub, adopt, expand, pull_external, pull_hub};
use crate::remote_blob::remote_blob;
use crate::resolve::{blobs, check_names, named_blobs, resolve};

/// How long the blobs of a pull are kept, so that the pull can be resumed.
const LEASE: Duration = Duration::from_hours(24);
/// Number of blob fetches for each allowed request: while one writes to the disk, another can use
/// its request.
const FETCHES_PER_REQUEST: usize = 2;

/// The result of a pull.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// Blobs that were fetched.
    pub fetched: Amount,
    /// Blobs that were in the store already.
    pub present: Amount,
}

/// A model to pull.
#[derive(Debug)]
struct PullPlan {
    /// The tag that the model gets.
    key: String,
    manifest: Manifest,
    /// Every blob once.
    blobs: Vec<Descriptor>,
}

impl PullPlan {
    /// Keeps the model's blobs from collection for the duration of the lease.
    fn lease(&self, library: &Library) -> Result<()> {
        let all: Vec<Digest> = self.blobs.iter().map(|blob| blob.digest).chain([*self.manifest.digest()]).collect();
        Ok(library.leases().set(&lease_id(&self.manifest)?, &all, SystemTime::now() + LEASE)?)
    }
}

/// Pulls the model `name` from its registry.
///
/// # Errors
/// The registry or the store fails.
pub async fn pull(library: &Library, hosts: &Hosts, name: &ModelRef, meter: &Arc<Meter>) -> Result<Pulled> {
    let called = |digest: &Digest| {
        let name = with_tag(name, digest)?;
        Ok(LocalName { reference: name.to_string(), name })
    };
    pull_as(library, hosts, name, called, meter).await
}

/// The local name of a pulled model.
#[derive(Debug)]
pub(crate) struct LocalName {
    pub(crate) name: ModelRef,
    /// The original reference, for a model that is converted.
    pub(crate) reference: String,
}

/// Pulls the model `name` from its registry. `called` returns the local name for the digest.
pub(crate) async fn pull_as(
    library: &Library,
    hosts: &Hosts,
    name: &ModelRef,
    called: impl FnOnce(&Digest) -> Result<LocalName>,
    meter: &Arc<Meter>,
) -> Result<Pulled> {
    meter.status("pulling manifest");
    let (remote, parallel) = hosts.remote(name)?;
    let (digest, manifest) = resolve(&remote, name).await?;
    let called = called(&digest)?;
    check_names(&manifest, &called.name)?;
    let source = PullSource { remote, parallel, meter: meter.clone() };
    // The registry has the model, so a later failure does not mean that the name is unknown.
    pull_resolved(library, &source, called, manifest).await.map_err(|error| match error.class() {
        ErrorClass::Remote(_) => error.with_class(ErrorClass::Remote(RemoteClass::Refused)),
        _ => error,
    })
}

/// Pulls a model whose manifest is known.
async fn pull_resolved(
    library: &Library,
    source: &PullSource,
    called: LocalName,
    manifest: Manifest,
) -> Result<Pulled> {
    let name = &called.name;
    match classify(&manifest) {
        Layout::Lode => {
            let (wanted, pulled) = transfer(library, source, name, manifest, None).await?;
            source.meter.status("writing manifest");
            let library = library.clone();
            let note = tokio::task::spawn_blocking(move || finish(&library, &wanted)).await.internal()??;
            if let Some(note) = note {
                source.meter.status(note);
            }
            Ok(pulled)
        }
        Layout::OllamaTensors => adopted(library, source, called, manifest).await,
        Layout::Files(files) => converted(library, source, called, manifest, files).await,
        Layout::Unknown(reason) => bail!("`{name}` is not a model that can be run here: {reason}"),
    }
}

/// Pulls a model from a hub.
///
/// # Errors
/// The hub or the store fails.
pub async fn pull_from_hub(
    library: &Library,
    hub: &HubSettings,
    reference: HubReference,
    name: Option<ModelRef>,
    meter: &Arc<Meter>,
) -> Result<Pulled> {
    let endpoint = Endpoint::new(&hub.endpoint, hub.token.clone())?.paced(hub.pace.clone());
    let hub = Hub { address: hub.endpoint.clone(), endpoint };
    import(library, meter, move |library, observer| pull_hub(library, &hub, &reference, name, observer)).await
}

/// Runs an import on a thread. If the caller is dropped, it stops at its next step or within a
/// request.
async fn import(
    library: &Library,
    meter: &Arc<Meter>,
    work: impl FnOnce(&Library, &MeterObserver) -> Result<Created> + Send + 'static,
) -> Result<Pulled> {
    let (library, watched) = (library.clone(), Watched::new(meter));
    let observer = watched.observer();
    let created = tokio::task::spawn_blocking(move || work(&library, &observer)).await.internal()??;
    drop(watched);
    Ok(Pulled { fetched: created.new, present: created.shared })
}

/// Pulls a model with Ollama's tensor layers. Its blobs are used unchanged.
async fn adopted(library: &Library, source: &PullSource, called: LocalName, manifest: Manifest) -> Result<Pulled> {
    let LocalName { name, reference } = called;
    let (wanted, pulled) = transfer(library, source, &name, manifest, None).await?;
    import(library, &source.meter, move |library, observer| {
        adopt(library, &wanted.manifest, &name, &reference, observer)?;
        release(library, &wanted)?;
        Ok(Created { new: pulled.fetched, shared: pulled.present })
    })
    .await
}

/// Pulls a model of another tool. Its weights are read by range requests and become tensor blobs.
async fn converted(
    library: &Library,
    source: &PullSource,
    called: LocalName,
    manifest: Manifest,
    files: Vec<ExternalFile>,
) -> Result<Pulled> {
    let LocalName { name, reference } = called;
    let digest = *manifest.digest();
    let (own, wanted) = (library.clone(), name.clone());
    let known = tokio::task::spawn_blocking(move || came_from(&own, &wanted)).await.internal()?;
    if let Some((_, present)) = known.filter(|(origin, _)| *origin == digest) {
        source.meter.status("this model is already in the store");
        return Ok(Pulled { fetched: Amount::default(), present });
    }
    let LayerSplit { split, kept } = split_layers(files);
    let config = manifest.config().clone();
    let copied = kept.iter().map(|layer| layer.descriptor.clone()).chain([config.clone()]).collect();
    let (wanted, _) = transfer(library, source, &name, manifest, Some(copied)).await?;
    let split: Vec<_> = split.into_iter().map(|file| (source.file(&file), file)).collect();
    import(library, &source.meter, move |library, observer| {
        let windows = Windows::for_workers();
        let remote = |(source, file)| -> (ExternalFile, Arc<dyn ReadAt>) {
            (file, Arc::new(RangeReader::new(source, observer.requests().clone(), windows.clone())))
        };
        let files = expand(split.into_iter().map(remote).collect(), observer)?;
        // A config of another kind has no fields that Lode knows.
        let config = ModelConfig::parse(&library.blobs().read(&config.digest, MAX_DOCUMENT)?).unwrap_or_default();
        let model = ExternalModel { name, files, kept, manifest: Some(digest), config, reference };
        let created = pull_external(library, &model, observer)?;
        release(library, &wanted)?;
        Ok(created)
    })
    .await
}

/// The manifest that a model in the store was converted from, and the model's tensor blobs.
fn came_from(library: &Library, name: &ModelRef) -> Option<(Digest, Amount)> {
    let model = library.find(name).ok()?;
    let here = |layer: &manifests::Layer| library.blobs().size(layer.digest()).ok().flatten() == Some(layer.size());
    if !model.manifest.layers().iter().all(here) {
        return None;
    }
    let origin = model.manifest.annotations().get(annotations::ORIGIN_MANIFEST)?.parse().ok()?;
    let tensors = model.manifest.layers_of(media_types::TENSOR);
    Some((origin, tensors.map(|layer| Amount::of_blob(layer.size())).sum()))
}

/// The source of a pull.
struct PullSource {
    remote: Remote,
    parallel: usize,
    meter: Arc<Meter>,
}

impl PullSource {
    /// A layer that is read by range requests.
    fn file(&self, file: &ExternalFile) -> RangeSource {
        remote_blob(&self.remote, &file.name, &file.layer.descriptor)
    }
}

/// Leases and fetches blobs of a manifest: all of them, or only the blobs in `only`.
async fn transfer(
    library: &Library,
    source: &PullSource,
    name: &ModelRef,
    manifest: Manifest,
    only: Option<Vec<Descriptor>>,
) -> Result<(Arc<PullPlan>, Pulled)> {
    let key = name.tag_key().context("a pulled model needs a tag")?;
    let blobs = match only {
        Some(blobs) => blobs,
        None => blobs(&manifest)?,
    };
    let wanted = Arc::new(PullPlan { key, manifest, blobs });
    let missing = begin(library, &wanted).await?;
    let amount = |blobs: &[Descriptor]| blobs.iter().map(|blob| Amount::of_blob(blob.size)).sum::<Amount>();
    let (all, fetched) = (amount(&wanted.blobs), amount(&missing));
    let present = Amount { blobs: all.blobs - fetched.blobs, bytes: all.bytes - fetched.bytes };
    let pulled = Pulled { fetched, present };
    // Counts the whole model, so that a resumed pull continues at its earlier percentage.
    source.meter.expect(all.bytes, present.bytes);
    let fetcher = Fetcher::new(source.remote.clone(), source.parallel);
    let mut names: HashMap<Digest, &str> = HashMap::new();
    for (name, blob) in named_blobs(&wanted.manifest) {
        names.entry(blob.digest).or_insert(name);
    }
    let name_of = |blob: Descriptor| (names.get(&blob.digest).map(|name| (*name).to_owned()).unwrap_or_default(), blob);
    let missing = missing.into_iter().map(name_of).collect();
    tokio::select! {
        fetched = fetch(library, fetcher, missing, source.parallel, &source.meter) => fetched?,
        () = keep(library, &wanted) => {}
    }
    // The bytes were verified while they streamed; clients expect this line.
    source.meter.status("verifying sha256 digest");
    Ok((wanted, pulled))
}

/// The local name of a model. A name with a digest alone gets a tag made from the digest.
fn with_tag(name: &ModelRef, digest: &Digest) -> Result<ModelRef> {
    if name.tag().is_some() {
        return Ok(name.clone());
    }
    Ok(format!("{}/{}:sha256-{}", name.host(), name.repository(), digest.short()).parse()?)
}

/// Leases the model's blobs; returns the missing ones.
async fn begin(library: &Library, wanted: &Arc<PullPlan>) -> Result<Vec<Descriptor>> {
    let (library, wanted) = (library.clone(), wanted.clone());
    tokio::task::spawn_blocking(move || {
        // A collection that has already started does not see the lease; the guard protects the
        // blobs until it ends.
        let guard = library.guard();
        wanted.lease(&library)?;
        let mut missing = Vec::new();
        for blob in &wanted.blobs {
            match guard.keep(&blob.digest)? {
                Some(size) if size == blob.size => {}
                None => missing.push(blob.clone()),
                Some(size) => {
                    let (digest, said) = (blob.digest, blob.size);
                    bail!(
                        "blob `{digest}` has {size} bytes in the store, the manifest of `{}` says {said}; run `lode fsck` to check \
                         the local blob",
                        wanted.key
                    )
                }
            }
        }
        let ingested = |blob: &Descriptor| library.blobs().ingest_size(&IngestId::of(&blob.digest));
        let left = |blob: &Descriptor| blob.size.saturating_sub(ingested(blob));
        let bytes: u64 = missing.iter().fold(0, |sum, blob| left(blob).saturating_add(sum));
        library.ensure_room(bytes, &format!("the missing blobs of `{}`", wanted.key))?;
        Ok(missing)
    })
    .await
    .internal()?
}

fn lease_id(manifest: &Manifest) -> Result<IngestId> {
    Ok(IngestId::parse(&format!("pull-{}", manifest.digest().hex()))?)
}

/// Fetches blobs with several workers for each allowed request. Each worker takes the next blob
/// from the queue.
async fn fetch(
    library: &Library,
    fetcher: Fetcher,
    missing: VecDeque<(String, Descriptor)>,
    parallel: usize,
    meter: &Arc<Meter>,
) -> Result<()> {
    let workers = (parallel * FETCHES_PER_REQUEST).min(missing.len());
    let queue = Arc::new(Mutex::new(missing));
    // If the job is stopped, this is dropped, which ends the workers.
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let (library, fetcher, queue, meter) = (library.clone(), fetcher.clone(), queue.clone(), meter.clone());
        running.spawn(async move {
            loop {
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                let Some((name, blob)) = next else { return Ok::<_, OperationError>(()) };
                fetcher.fetch(&library, &blob, &meter.blob(&name, &blob)).await?;
                // It was verified while it streamed.
                metrics::counter!("lode_pulled_bytes_total").increment(blob.size);
                metrics::counter!("lode_verified_bytes_total").increment(blob.size);
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.internal()??;
    }
    Ok(())
}

/// Renews the lease until this is dropped.
async fn keep(library: &Library, wanted: &Arc<PullPlan>) {
    loop {
        tokio::time::sleep(LEASE / 8).await;
        let (library, wanted) = (library.clone(), wanted.clone());
        let renewed = tokio::task::spawn_blocking(move || {
            let _guard = library.guard();
            wanted.lease(&library)
        });
        if let Ok(Err(error)) = renewed.await {
            tracing::warn!("the lease of a long pull was not renewed: {error:#}");
        }
    }
}

/// Makes the model visible under its name. Returns a note for the user if it cannot be run.
fn finish(library: &Library, wanted: &PullPlan) -> Result<Option<String>> {
    let manifest = &wanted.manifest;
    {
        let guard = library.guard();
        for blob in &wanted.blobs {
            let there = guard.keep(&blob.digest)? == Some(blob.size);
            ensure!(there, "blob `{}` of `{}` was removed meanwhile; pull again", blob.digest, wanted.key);
        }
        store_document(library, &guard, manifest.digest(), manifest.raw())?;
        library.describe(manifest.digest(), &Document::parse(manifest.raw())?);
        // The config is checked before the tag is set: an unreadable model must not replace
        // another.
        ModelConfig::parse(&library.blobs().read(&manifest.config().digest, MAX_DOCUMENT)?)?;
        library.catalogue(manifest)?;
        library.names().set(&library.key_of(&wanted.key)?, manifest.digest())?;
    }
    release(library, wanted)?;
    tracing::info!(model = wanted.key, digest = %manifest.digest(), "pulled");
    Ok(library.obstacle(manifest)?.note())
}

/// Ends the lease: the tag keeps the blobs now.
fn release(library: &Library, wanted: &PullPlan) -> Result<()> {
    library.leases().end(&lease_id(&wanted.manifest)?)?;
    Ok(())
}
