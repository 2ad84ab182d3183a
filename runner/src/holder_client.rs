//! Weights that the holder process keeps on devices. The runner requests them by their place in the
//! model's files, and maps and reads them.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use device::{GpuRuntime, MappedSlab, Memory};
use protocol::{ArrayCall, ArrayReply, BlobPart, passing};

use crate::failure;
use crate::mapped::{ArrayKey, Blobs};

/// A session with the holder, for one model. The holder considers its arrays in use until the last
/// clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct HolderClient(Arc<Mutex<Session>>);

#[derive(Debug)]
struct Session {
    socket: UnixStream,
    /// Indexes of blobs in the load plan, by [`ArrayKey::blob`].
    blobs: HashMap<usize, usize>,
    /// Mapped slabs, by device and number.
    slabs: HashMap<(String, u64), MappedSlab>,
}

impl HolderClient {
    /// Creates a session over a socket to the holder, which has these files.
    pub(crate) fn new(socket: UnixStream, blobs: &Blobs) -> Self {
        Self(Arc::new(Mutex::new(Session { socket, blobs: blobs.places(), slabs: HashMap::new() })))
    }

    /// Announces the parts that will be requested on a device, in this order, so that the holder
    /// reads them from the disk in advance.
    ///
    /// # Errors
    /// Fails if the holder has ended.
    pub(crate) fn coming(&self, device: &str, parts: Vec<BlobPart>) -> Result<()> {
        let session = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        passing::send(&session.socket, &ArrayCall::Coming { device: device.to_owned(), parts }, &[])
            .map_err(|_| ended())
    }

    /// Requests an array of the model on a device. Its contents are complete when
    /// [`finish`](Self::finish) returns.
    ///
    /// # Errors
    /// Fails if the device has no room for it, or the holder has ended.
    pub(crate) fn array(&self, machine: &GpuRuntime, device: &str, key: ArrayKey) -> Result<Memory> {
        let mut session = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let blob = *session.blobs.get(&key.blob).context("invariant: an array is in a blob of the plan")?;
        let (offset, size) = (key.offset as u64, key.size as u64);
        passing::send(&session.socket, &ArrayCall::Array { device: device.to_owned(), blob, offset, size }, &[])
            .map_err(|_| ended())?;
        let (reply, descriptors) = passing::receive(&session.socket)?.ok_or_else(ended)?;
        let (slab, slab_size, offset) = match reply {
            ArrayReply::At { slab, slab_size, offset } => (slab, usize::try_from(slab_size)?, usize::try_from(offset)?),
            other => return Err(refused(other)),
        };
        let number = (device.to_owned(), slab);
        if let Some(descriptor) = descriptors.first() {
            session.slabs.insert(number.clone(), machine.map(descriptor, slab_size)?);
        }
        let slab = session.slabs.get(&number).context("the holder named memory without its descriptor")?;
        machine.within(slab, offset, key.size)
    }

    /// Waits until all arrays are complete; returns the bytes that were copied for this model.
    ///
    /// # Errors
    /// Fails if the device has failed, or the holder has ended.
    pub(crate) fn finish(&self) -> Result<u64> {
        let session = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        passing::send(&session.socket, &ArrayCall::Finish, &[]).map_err(|_| ended())?;
        let (reply, _) = passing::receive(&session.socket)?.ok_or_else(ended)?;
        match reply {
            ArrayReply::Finished { copied } => Ok(copied),
            other => Err(refused(other)),
        }
    }
}

fn ended() -> anyhow::Error {
    anyhow::anyhow!("the process that holds weights on devices has ended; the next load starts another")
}

fn refused(reply: ArrayReply) -> anyhow::Error {
    match reply {
        ArrayReply::Failed { kind, error } => failure::of_kind(kind, &anyhow::anyhow!("{error}")),
        other => anyhow::anyhow!("unexpected reply from the holder: {other:?}"),
    }
}
