//! Intents: announcements of manifests that are about to be stored.
//!
//! A collection sees an intent or the manifest, whenever it looks: the intent is written before the
//! blobs are looked up, and deleted after the manifest is written. A replica that is killed leaves
//! its intent, which expires.

use std::time::{Duration, Instant};

use content::Digest;
use futures_util::TryStreamExt;
use manifests::Document;
use registry::RepositoryName;
use registry::server::Removal;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::keys::{self, RepositoryFolder};
use crate::marked::{document, parse};
use crate::objects::Objects;

/// How long a replica may take from the announcement of a manifest to storing it. An intent expires
/// much later, so that clocks need not agree.
const PATIENCE: Duration = Duration::from_hours(1);

/// The document of an intent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct IntentDocument {
    pub(crate) repository: String,
    pub(crate) blobs: Vec<String>,
}

/// An announcement of a manifest.
#[derive(Debug)]
pub struct Intent {
    /// The key of its object; `None` if the manifest has no blobs.
    key: Option<String>,
    begin: Instant,
}

impl Intent {
    pub(crate) async fn write(objects: &Objects, to: &RepositoryName, blobs: &[Digest]) -> Result<Self, Error> {
        let begin = Instant::now();
        if blobs.is_empty() {
            return Ok(Self { key: None, begin });
        }
        let key = keys::intent(&keys::random());
        let blobs = blobs.iter().map(ToString::to_string).collect();
        let text = document(&IntentDocument { repository: to.to_string(), blobs });
        objects.put(&key, vec![text]).await?;
        Ok(Self { key: Some(key), begin })
    }

    /// Whether a collection still sees the intent.
    pub(crate) fn is_fresh(&self) -> bool {
        self.begin.elapsed() < PATIENCE
    }

    pub(crate) async fn delete(self, objects: &Objects) -> Result<(), Error> {
        match &self.key {
            Some(key) => objects.delete(key).await,
            None => Ok(()),
        }
    }
}

/// Why a blob cannot be removed: a manifest of the repository refers to it, or is about to. Intents
/// are read before manifests.
pub(crate) async fn reference_to(
    objects: &Objects,
    of: &RepositoryName,
    blob: &Digest,
) -> Result<Option<Removal>, Error> {
    let (name, text) = (of.to_string(), blob.to_string());
    let mut intents = objects.list(keys::INTENTS, None);
    while let Some(entry) = intents.try_next().await? {
        let Some(object) = objects.get(&entry.key).await? else { continue };
        let intent: IntentDocument = parse(&entry.key, &object.bytes)?;
        if intent.repository == name && intent.blobs.contains(&text) {
            return Ok(Some(Removal::Announced));
        }
    }
    let mut manifests = objects.list(&RepositoryFolder::Manifests.of(of), None);
    while let Some(entry) = manifests.try_next().await? {
        let Some(object) = objects.get(&entry.key).await? else { continue };
        if references(&entry.key, &object.bytes)?.contains(blob) {
            return Ok(keys::digest(keys::last(&entry.key)).map(Removal::Referenced));
        }
    }
    Ok(None)
}

/// The blobs and manifests to which a manifest refers.
pub(crate) fn references(key: &str, raw: &[u8]) -> Result<Vec<Digest>, Error> {
    let document = Document::parse(raw).map_err(|e| Error::Document { key: key.to_owned(), reason: e.to_string() })?;
    Ok(document.children().all().into_iter().collect())
}
