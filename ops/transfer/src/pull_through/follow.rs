//! The bytes of a blob that is being copied, for a client: as they arrive, and then from the
//! storage.

use std::ops::Range;

use bytes::Bytes;
use content::{Descriptor, Error};
use futures_util::{StreamExt, TryStreamExt, stream};
use registry::server::{BlobStream, Storage};

use super::transfers::Transfer;
use crate::repository_target::RepositoryTarget;

struct Follower<S> {
    transfer: Transfer,
    target: RepositoryTarget<S>,
    blob: Descriptor,
    /// The bytes that are missing.
    range: Range<u64>,
    stored: Option<BlobStream>,
}

/// Streams a range of a blob during its transfer. The first bytes are awaited before this returns,
/// so that the response can have the status of an error.
pub(super) async fn stream<S: Storage>(
    transfer: Transfer,
    target: RepositoryTarget<S>,
    blob: Descriptor,
    range: Range<u64>,
) -> Result<BlobStream, Error> {
    let mut follower = Follower { transfer, target, blob, range, stored: None };
    let first = follower.next().await?;
    let others = stream::try_unfold(follower, |mut follower| async move {
        Ok(follower.next().await?.map(|piece| (piece, follower)))
    });
    Ok(stream::iter(first.map(Ok)).chain(others).boxed())
}

impl<S: Storage> Follower<S> {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if let Some(fed) = &mut self.transfer.fed {
            if let Some(piece) = fed.recv().await {
                self.range.start += piece.len() as u64;
                return Ok(Some(piece));
            }
            self.transfer.fed = None;
        }
        if self.stored.is_none() {
            self.transfer.finished().await?;
            let RepositoryTarget { storage, repository } = &self.target;
            self.stored = Some(storage.stream(repository, &self.blob, self.range.clone()).await?);
        }
        match &mut self.stored {
            Some(stored) => stored.try_next().await,
            None => Ok(None),
        }
    }
}
