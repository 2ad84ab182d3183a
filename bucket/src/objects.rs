//! Requests to the storage: small objects with versions, bytes of blobs, lists.
//!
//! An object changes by compare-and-swap: a write names the version that it replaces. The storage
//! refuses the write if another one came first. If the response to a write is lost, the retry is
//! refused as well, although the first attempt succeeded. A refused write therefore reads the
//! object: every document has a nonce, so equal bytes are the writer's own.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};

use crate::Error;

/// A storage that has multipart uploads.
pub(crate) trait Engine: ObjectStore + MultipartStore {}

impl<T: ObjectStore + MultipartStore> Engine for T {}

/// Number of objects in one response to a list request, of all storages.
const LIST_PAGE: u64 = 1000;

/// The objects of a registry.
#[derive(Clone)]
pub(crate) struct Objects {
    engine: Arc<dyn Engine>,
    signer: Option<Arc<dyn Signer>>,
    /// The folder of all keys; empty for the whole bucket.
    prefix: String,
}

/// A small object.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) bytes: Bytes,
    pub(crate) version: Version,
    pub(crate) modified: SystemTime,
}

/// The version of an object. A write that names it succeeds only while the object has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Version(UpdateVersion);

/// An object in a list.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) size: u64,
    pub(crate) modified: SystemTime,
}

impl Objects {
    pub(crate) fn new(engine: Arc<dyn Engine>, signer: Option<Arc<dyn Signer>>, prefix: &str) -> Self {
        Self { engine, signer, prefix: prefix.trim_matches('/').to_owned() }
    }

    fn path(&self, key: &str) -> Path {
        if self.prefix.is_empty() { Path::from(key) } else { Path::from(format!("{}/{key}", self.prefix)) }
    }

    fn key(&self, path: &Path) -> String {
        let path = path.as_ref();
        path.strip_prefix(self.prefix.as_str()).unwrap_or(path).trim_start_matches('/').to_owned()
    }

    /// Reads a small object; `None` if there is none.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<Object>, Error> {
        count("get");
        let failed = |source| Error::request("read", key, source);
        let found = match self.engine.get(&self.path(key)).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(source) => return Err(failed(source)),
        };
        let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let modified = found.meta.last_modified.into();
        let bytes = found.bytes().await.map_err(failed)?;
        Ok(Some(Object { bytes, version: Version(version), modified }))
    }

    /// Writes an object that has `version`, or that does not exist (`None`), and returns its new
    /// version. Returns `None` if another writer has changed it.
    pub(crate) async fn swap(
        &self,
        key: &str,
        version: Option<&Version>,
        bytes: Bytes,
    ) -> Result<Option<Version>, Error> {
        count("put");
        let mode = version.map_or(PutMode::Create, |version| PutMode::Update(version.0.clone()));
        let options = PutOptions { mode, ..PutOptions::default() };
        match self.engine.put_opts(&self.path(key), bytes.clone().into(), options).await {
            Ok(written) => Ok(Some(Version(written.into()))),
            Err(object_store::Error::NotFound { source, path }) if version.is_none() => {
                Err(Error::request("write", key, object_store::Error::NotFound { source, path }))
            }
            Err(
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. }
                | object_store::Error::NotFound { .. },
            ) => Ok(self.get(key).await?.filter(|object| object.bytes == bytes).map(|object| object.version)),
            Err(source) => Err(Error::request("write", key, source)),
        }
    }

    /// Writes an object whose key is the writer's own, or whose content its key implies.
    pub(crate) async fn put(&self, key: &str, pieces: Vec<Bytes>) -> Result<(), Error> {
        count("put");
        let written = self.engine.put(&self.path(key), payload(pieces)).await;
        written.map(drop).map_err(|source| Error::request("write", key, source))
    }

    /// Deletes an object, if it exists.
    pub(crate) async fn delete(&self, key: &str) -> Result<(), Error> {
        count("delete");
        match self.engine.delete(&self.path(key)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(Error::request("delete", key, source)),
        }
    }

    /// Whether an object exists.
    pub(crate) async fn exists(&self, key: &str) -> Result<bool, Error> {
        Ok(self.size(key).await?.is_some())
    }

    /// The size of an object in bytes; `None` if it does not exist.
    pub(crate) async fn size(&self, key: &str) -> Result<Option<u64>, Error> {
        count("head");
        match self.engine.head(&self.path(key)).await {
            Ok(found) => Ok(Some(found.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(source) => Err(Error::request("look for", key, source)),
        }
    }

    /// Lists the objects of a folder in the order of their keys, beginning after the key `after`.
    pub(crate) fn list(&self, folder: &str, after: Option<&str>) -> BoxStream<'static, Result<Entry, Error>> {
        let (own, name) = (self.clone(), folder.to_owned());
        let prefix = self.path(folder);
        let listed = match after {
            Some(after) => self.engine.list_with_offset(Some(&prefix), &self.path(after)),
            None => self.engine.list(Some(&prefix)),
        };
        let mut number = 0;
        let counted = listed.inspect(move |_| {
            if number % LIST_PAGE == 0 {
                count("list");
            }
            number += 1;
        });
        counted
            .map(move |entry| {
                let entry = entry.map_err(|source| Error::request("list", &name, source))?;
                Ok(Entry { key: own.key(&entry.location), size: entry.size, modified: entry.last_modified.into() })
            })
            .boxed()
    }

    /// Streams a range of an object.
    pub(crate) async fn stream(
        &self,
        key: &str,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes, Error>>, Error> {
        if range.is_empty() {
            return Ok(futures_util::stream::empty().boxed());
        }
        count("get");
        let name = key.to_owned();
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        let found = self.engine.get_opts(&self.path(key), options).await;
        let found = found.map_err(|source| Error::request("read", key, source))?;
        Ok(found.into_stream().map_err(move |source| Error::request("read", &name, source)).boxed())
    }

    /// Reads a range of an object.
    pub(crate) async fn range(&self, key: &str, range: Range<u64>) -> Result<Bytes, Error> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        count("get");
        let bytes = self.engine.get_range(&self.path(key), range).await;
        bytes.map_err(|source| Error::request("read", key, source))
    }

    /// Begins a multipart upload and returns its id.
    pub(crate) async fn begin_parts(&self, key: &str) -> Result<String, Error> {
        count("multipart");
        let begun = self.engine.create_multipart(&self.path(key)).await;
        begun.map_err(|source| Error::request("begin parts of", key, source))
    }

    /// Sends a part and returns its id.
    pub(crate) async fn put_part(
        &self,
        key: &str,
        upload: &str,
        number: usize,
        pieces: Vec<Bytes>,
    ) -> Result<String, Error> {
        count("multipart");
        let sent = self.engine.put_part(&self.path(key), &upload.to_owned(), number, payload(pieces)).await;
        sent.map(|part| part.content_id).map_err(|source| Error::request("write a part of", key, source))
    }

    /// Makes an object of the parts of an upload.
    pub(crate) async fn complete_parts(&self, key: &str, upload: &str, parts: &[String]) -> Result<(), Error> {
        count("multipart");
        let parts = parts.iter().map(|id| PartId { content_id: id.clone() }).collect();
        let done = self.engine.complete_multipart(&self.path(key), &upload.to_owned(), parts).await;
        done.map(drop).map_err(|source| Error::request("complete", key, source))
    }

    /// Discards the parts of an upload, unless it was completed or discarded before.
    pub(crate) async fn abort_parts(&self, key: &str, upload: &str) -> Result<(), Error> {
        count("delete");
        match self.engine.abort_multipart(&self.path(key), &upload.to_owned()).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(source) => Err(Error::request("discard parts of", key, source)),
        }
    }

    /// A URL from which a client can read the object for a while; `None` if the storage has none.
    pub(crate) async fn link(&self, key: &str, life: Duration) -> Result<Option<String>, Error> {
        let Some(signer) = &self.signer else { return Ok(None) };
        let signed = signer.signed_url(http::Method::GET, &self.path(key), life).await;
        signed.map(|url| Some(url.into())).map_err(|source| Error::request("sign a link to", key, source))
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects")
            .field("engine", &self.engine.to_string())
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

fn payload(pieces: Vec<Bytes>) -> PutPayload {
    pieces.into_iter().collect()
}

/// Counts a request. Storages bill requests, and `docs/scale.md` has their number for each
/// operation.
fn count(operation: &'static str) {
    metrics::counter!("lode_storage_requests_total", "operation" => operation).increment(1);
}
