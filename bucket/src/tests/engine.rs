//! A storage in memory that yields between the steps of other tasks, or dies.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// The fault of each request.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// Other tasks of `shuttle` may run before and after it.
    Yield,
    /// Nothing.
    None,
    /// The responses to requests that make data are lost.
    LosesResponses,
    /// The process is killed after so many requests: all later ones fail.
    KilledAfter(Arc<AtomicUsize>),
}

/// A storage in memory with faults. Several of them may share one memory.
#[derive(Debug)]
pub(super) struct Faulty {
    pub(super) memory: Arc<InMemory>,
    pub(super) fault: Fault,
}

impl Faulty {
    async fn step(&self) -> Result<()> {
        match &self.fault {
            Fault::None | Fault::LosesResponses => {}
            Fault::Yield => shuttle::future::yield_now().await,
            Fault::KilledAfter(left) => {
                let before = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                before.map_err(|_| Error::Generic { store: "test", source: "the process was killed".into() })?;
            }
        }
        Ok(())
    }
}

impl Faulty {
    fn respond<T>(&self, done: Result<T>) -> Result<T> {
        match self.fault {
            Fault::LosesResponses => Err(Error::Generic { store: "test", source: "the response was lost".into() }),
            _ => done,
        }
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a storage with faults")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.step().await?;
        let written = self.memory.put_opts(location, payload, options).await;
        if location.as_ref().contains("/data/") { self.respond(written) } else { written }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.memory.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.step().await?;
        self.memory.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (memory, fault) = (self.memory.clone(), self.fault.clone());
        locations
            .then(move |location| {
                let own = Self { memory: memory.clone(), fault: fault.clone() };
                async move {
                    own.step().await?;
                    let location = location?;
                    object_store::ObjectStoreExt::delete(&*own.memory, &location).await.map(|()| location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (memory, fault) = (self.memory.clone(), self.fault.clone());
        let own = Self { memory, fault };
        let prefix = prefix.cloned();
        // The list is that of one moment, after the step.
        let listed = async move {
            match own.step().await {
                Ok(()) => own.memory.list(prefix.as_ref()),
                Err(error) => futures_util::stream::once(std::future::ready(Err(error))).boxed(),
            }
        };
        futures_util::stream::once(listed).flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.memory.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.memory.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl MultipartStore for Faulty {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.step().await?;
        self.memory.create_multipart(path).await
    }

    async fn put_part(&self, path: &Path, id: &MultipartId, number: usize, data: PutPayload) -> Result<PartId> {
        self.step().await?;
        self.memory.put_part(path, id, number, data).await
    }

    async fn complete_multipart(&self, path: &Path, id: &MultipartId, parts: Vec<PartId>) -> Result<PutResult> {
        self.step().await?;
        let completed = self.memory.complete_multipart(path, id, parts).await;
        self.respond(completed)
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.step().await?;
        // S3 reports that there is no such upload; the memory has another error.
        let missing = |error| Error::NotFound { path: path.to_string(), source: Box::new(error) };
        self.memory.abort_multipart(path, id).await.map_err(missing)
    }
}
