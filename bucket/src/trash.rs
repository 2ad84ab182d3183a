//! Data of removed blobs, which stays until links to it that were signed before have expired.
//!
//! An entry is written before the pointer lets go of the data. If its writer is killed in between,
//! or the pointer becomes live again, the entry names data that is in use; so the pointer is read
//! again before data is deleted. A pointer that does not name the data will never name it again.
//! Each entry has its own key, so that no other writer's entry is deleted.

use std::time::SystemTime;

use content::Digest;
use futures_util::TryStreamExt;
use serde::{Deserialize, Serialize};

use crate::marked::{Data, MarkState, Seen, document, parse};
use crate::objects::Objects;
use crate::{Error, keys};

/// The document of an entry.
#[derive(Debug, Serialize, Deserialize)]
struct TrashDocument {
    /// The digest whose pointer named the data.
    blob: String,
    data: String,
}

/// Adds data to the trash.
pub(crate) async fn add(objects: &Objects, blob: &Digest, data: &Data) -> Result<(), Error> {
    let key = format!("{}/{}", keys::TRASH, keys::random());
    let entry = TrashDocument { blob: blob.to_string(), data: data.data.clone() };
    objects.put(&key, vec![document(&entry)]).await
}

/// Deletes the data of entries that are old enough, and returns its number.
pub(crate) async fn empty(objects: &Objects, is_old: impl Fn(SystemTime) -> bool) -> Result<u64, Error> {
    let mut deleted = 0;
    let mut entries = objects.list(keys::TRASH, None);
    while let Some(entry) = entries.try_next().await? {
        if !is_old(entry.modified) {
            continue;
        }
        // Another collector may have deleted it.
        let Some(object) = objects.get(&entry.key).await? else { continue };
        let trash: TrashDocument = parse(&entry.key, &object.bytes)?;
        let wrong =
            |e: content::digest::ParseDigestError| Error::Document { key: entry.key.clone(), reason: e.to_string() };
        let blob: Digest = trash.blob.parse().map_err(wrong)?;
        let pointer = Seen::<Data>::read(objects, &keys::pointer(&blob)).await?;
        match pointer.value.filter(|value| value.content.data == trash.data).map(|value| value.state) {
            // A collector may be about to empty the pointer.
            Some(MarkState::Condemned) => continue,
            Some(MarkState::Live) => {}
            None => {
                objects.delete(&keys::data(&trash.data)).await?;
                deleted += 1;
            }
        }
        objects.delete(&entry.key).await?;
    }
    Ok(deleted)
}
