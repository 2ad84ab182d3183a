//! Objects that a collection removes in two steps: pointers of blobs, and links of repositories.
//!
//! ```text
//!           ┌──────────── upload, mount ◀───────────┐
//!           ▼                                       │
//! absent ─▶ live ◀─rescue── condemned ──collector─▶ gone
//!           └──collector──────▲
//! ```
//! A collector condemns an object to which nothing refers, looks again, and only then empties it. A
//! writer that needs a condemned object makes it live again, and the collector's write fails.
//! `collect.rs` has the whole protocol. A gone object stays as an empty one: a storage cannot
//! delete an object on the condition that it has a certain version.
//!
//! Every document has a new nonce. Versions of S3 are hashes of the content; without the nonce, an
//! object that went from live to condemned and back would have its old version again.

use std::time::SystemTime;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::objects::{Objects, Version};
use crate::{Error, keys};

/// How often a change is tried when other writers come first.
const ATTEMPTS: usize = 32;

/// A state that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MarkState {
    Live,
    Condemned,
}

/// The document of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Marked<T> {
    pub(crate) state: MarkState,
    #[serde(flatten)]
    pub(crate) content: T,
    nonce: String,
}

/// Where the bytes of a blob are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Data {
    /// The last part of the key below `data/`.
    pub(crate) data: String,
    pub(crate) size: u64,
}

/// A link puts a blob into a repository; it has no content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {}

impl<T> Marked<T> {
    pub(crate) fn new(state: MarkState, content: T) -> Self {
        Self { state, content, nonce: keys::random() }
    }

    /// The same content in another state, as a new version.
    pub(crate) fn with(self, state: MarkState) -> Self {
        Self::new(state, self.content)
    }
}

/// An object as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Seen<T> {
    /// The document; `None` if the object is absent or gone.
    pub(crate) value: Option<Marked<T>>,
    /// `None` if the object does not exist.
    version: Option<Version>,
    pub(crate) modified: Option<SystemTime>,
}

impl<T: Serialize + DeserializeOwned + Clone> Seen<T> {
    /// Reads an object.
    pub(crate) async fn read(objects: &Objects, key: &str) -> Result<Self, Error> {
        let Some(object) = objects.get(key).await? else {
            return Ok(Self { value: None, version: None, modified: None });
        };
        let value = match object.bytes.as_ref() {
            [] => None,
            bytes => Some(parse(key, bytes)?),
        };
        Ok(Self { value, version: Some(object.version), modified: Some(object.modified) })
    }

    /// Replaces what was read; `None` leaves an empty object. Returns `false` if another writer
    /// came first.
    pub(crate) async fn replace(&self, objects: &Objects, key: &str, by: Option<&Marked<T>>) -> Result<bool, Error> {
        let bytes = by.map_or_else(Bytes::new, document);
        Ok(objects.swap(key, self.version.as_ref(), bytes).await?.is_some())
    }
}

/// Reads an object and makes it live if it is condemned. Returns `None` if it is absent or gone.
pub(crate) async fn rescue<T>(objects: &Objects, key: &str) -> Result<Option<(T, SystemTime)>, Error>
where
    T: Serialize + DeserializeOwned + Clone,
{
    for _ in 0..ATTEMPTS {
        let seen = Seen::<T>::read(objects, key).await?;
        let (Some(value), Some(modified)) = (&seen.value, seen.modified) else { return Ok(None) };
        match value.state {
            MarkState::Live => return Ok(Some((value.content.clone(), modified))),
            MarkState::Condemned => {
                let live = value.clone().with(MarkState::Live);
                if seen.replace(objects, key, Some(&live)).await? {
                    return Ok(Some((live.content, SystemTime::now())));
                }
            }
        }
    }
    Err(Error::Contended { key: key.to_owned() })
}

/// Reads an object and condemns it if it is live. Returns `None` if it is absent or gone.
pub(crate) async fn condemn<T>(objects: &Objects, key: &str) -> Result<Option<Seen<T>>, Error>
where
    T: Serialize + DeserializeOwned + Clone,
{
    for _ in 0..ATTEMPTS {
        let seen = Seen::<T>::read(objects, key).await?;
        match seen.value.clone() {
            Some(value) if value.state == MarkState::Live => {
                seen.replace(objects, key, Some(&value.with(MarkState::Condemned))).await?;
            }
            Some(_) => return Ok(Some(seen)),
            None => return Ok(None),
        }
    }
    Err(Error::Contended { key: key.to_owned() })
}

/// Makes an object live. Returns its content (`content`, unless the object was present already),
/// and when it was written, if it was live already.
pub(crate) async fn publish<T>(objects: &Objects, key: &str, content: T) -> Result<(T, Option<SystemTime>), Error>
where
    T: Serialize + DeserializeOwned + Clone,
{
    // Most objects are new, so the first attempt reads nothing.
    let mut seen = Seen { value: None, version: None, modified: None };
    for _ in 0..ATTEMPTS {
        let live = match seen.value.clone() {
            Some(value) if value.state == MarkState::Live => return Ok((value.content, seen.modified)),
            Some(condemned) => condemned.with(MarkState::Live),
            None => Marked::new(MarkState::Live, content.clone()),
        };
        if seen.replace(objects, key, Some(&live)).await? {
            return Ok((live.content, None));
        }
        seen = Seen::<T>::read(objects, key).await?;
    }
    Err(Error::Contended { key: key.to_owned() })
}

/// Parses a document of the storage.
pub(crate) fn parse<T: DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|e| Error::Document { key: key.to_owned(), reason: e.to_string() })
}

/// The bytes of a document.
pub(crate) fn document<T: Serialize>(value: &T) -> Bytes {
    serde_json::to_vec(value).expect("invariant: documents of the storage are JSON").into()
}

/// Tries a change again while other writers come first.
pub(crate) async fn retry<T, F>(key: &str, attempt: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<Option<T>, Error>>,
{
    for _ in 0..ATTEMPTS {
        if let Some(done) = attempt().await? {
            return Ok(done);
        }
    }
    Err(Error::Contended { key: key.to_owned() })
}
