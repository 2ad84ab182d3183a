//! A session: the holder's service for one runner.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use protocol::{ArrayCall, ArrayReply, Blob, BlobPart, Reserved, passing};

use super::Devices;
use super::ahead::{AHEAD, Ahead, Coming};
use super::arrays::ArrayKey;
use super::memory::{ClaimedArray, DeviceMemory, SessionId};
use crate::failure;
use crate::files::Files;
use crate::mapped::{self, Blobs};

/// A runner's session.
pub(super) struct Session {
    id: SessionId,
    devices: Arc<Devices>,
    runner: UnixStream,
    /// Resources in use on each device.
    used: HashMap<String, Used>,
    copied: u64,
}

struct Used {
    memory: Arc<Mutex<DeviceMemory>>,
    arrays: Vec<ArrayKey>,
    /// Reads files before they are copied.
    ahead: Option<Ahead>,
    /// Slabs whose descriptors the runner has.
    slabs: HashSet<u64>,
}

impl Session {
    pub(super) fn new(id: SessionId, devices: Arc<Devices>, runner: UnixStream) -> Self {
        Self { id, devices, runner, used: HashMap::new(), copied: 0 }
    }

    /// Serves the runner until it closes its socket.
    pub(super) fn run(mut self, blobs: &[Blob], mut files: Files) {
        // Bounded, since several models may be mapped at the same time.
        let mapped = Blobs::take(blobs, mapped::most_maps() / 4, || files.next());
        let served = mapped.and_then(|mapped| self.serve(blobs, &mapped));
        self.used.values_mut().for_each(|used| used.ahead = None);
        if let Err(error) = served {
            return self.end_with(&error);
        }
        self.outlive();
    }

    /// Tells the runner why it gets no more arrays.
    pub(super) fn end_with(self, error: &anyhow::Error) {
        tracing::warn!("weights are not held for a runner: {error:#}");
        self.refuse(error);
        self.outlive();
    }

    /// Keeps the session's arrays until the runner closes its socket: it may still compute with
    /// them.
    fn outlive(self) {
        while let Ok(Some(_)) = passing::receive::<ArrayCall>(&self.runner) {
            self.refuse(&anyhow::anyhow!("the session has ended and accepts no requests"));
        }
    }

    fn refuse(&self, error: &anyhow::Error) {
        let reply = ArrayReply::Failed { kind: failure::kind(error), error: format!("{error:#}") };
        // If the runner has gone, the next read from its socket reports it.
        let _ = passing::send(&self.runner, &reply, &[]);
    }

    /// Reserves the memory that the daemon planned for this runner, before the next one is planned.
    pub(super) fn reserve(&mut self, reserved: &[Reserved], blobs: &[Blob]) -> Result<()> {
        let names: Vec<String> = blobs.iter().map(Blob::key).collect();
        for Reserved { device, own, weights } in reserved {
            let memory = self.devices.memory(device)?;
            lock(&memory).reserve(self.id, *own, *weights, &names)?;
            self.used.insert(device.clone(), Used { memory, arrays: Vec::new(), ahead: None, slabs: HashSet::new() });
        }
        Ok(())
    }

    /// Serves requests until all arrays are on the device, or the runner has gone. Files are
    /// unmapped after that.
    fn serve(&mut self, blobs: &[Blob], mapped: &Blobs) -> Result<()> {
        while let Some((call, _)) = passing::receive::<ArrayCall>(&self.runner)? {
            match call {
                ArrayCall::Coming { device, parts } => self.coming(&device, &parts, blobs, mapped)?,
                ArrayCall::Array { device, blob, offset, size } => {
                    let part = BlobPart { blob, offset, size };
                    let bytes = &mapped.get(blob)?[range(&part, blobs, mapped)?];
                    let key = ArrayKey { blob: blobs[blob].key(), offset, size: bytes.len() };
                    self.array(&device, (blob, &key), bytes)?;
                }
                ArrayCall::Finish => {
                    mapped.sources().check()?;
                    for used in self.used.values() {
                        let mut memory = lock(&used.memory);
                        memory.finish()?;
                        memory.is_complete(self.id);
                    }
                    passing::send(&self.runner, &ArrayReply::Finished { copied: self.copied }, &[])?;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns the resources on a device that the daemon planned for this session.
    fn used(&mut self, device: &str) -> Result<&mut Used> {
        self.used
            .get_mut(device)
            .with_context(|| format!("the daemon reserved no memory on `{device}` for this session"))
    }

    /// Starts reading the announced parts that are not on the device.
    fn coming(&mut self, device: &str, parts: &[BlobPart], blobs: &[Blob], mapped: &Blobs) -> Result<()> {
        let [announced, all] =
            [parts.iter().map(|part| part.size).fold(0, u64::saturating_add), blobs.iter().map(|blob| blob.size).sum()];
        ensure!(announced <= all, "the runner announced {announced} bytes, but its blobs have only {all}");
        let used = self.used(device)?;
        let places = {
            let memory = lock(&used.memory);
            let there = memory.places();
            let is_missing = |part: &&BlobPart| {
                let BlobPart { blob, offset, size } = **part;
                let name = blobs.get(blob).map(Blob::key).unwrap_or_default();
                there.range((name.as_str(), offset)..(name.as_str(), offset.saturating_add(size))).next().is_none()
            };
            parts.iter().filter(is_missing).cloned().collect::<Vec<_>>()
        };
        let coming = |part: &BlobPart| -> Result<Coming> {
            let range = range(part, blobs, mapped)?;
            let bytes = mapped.get(part.blob)?.clone();
            Ok(Coming { blob: part.blob, bytes, offset: range.start, size: range.len() })
        };
        let coming = places.iter().map(coming).collect::<Result<Vec<_>>>()?;
        used.ahead = Some(Ahead::begin(&coming, AHEAD));
        Ok(())
    }

    fn array(&mut self, device: &str, (blob, key): (usize, &ArrayKey), bytes: &[u8]) -> Result<()> {
        let id = self.id;
        let used = self.used(device)?;
        let memory = used.memory.clone();
        if !lock(&memory).has(key) {
            if let (Some(ahead), Ok(offset)) = (&used.ahead, usize::try_from(key.offset)) {
                ahead.copies(blob, offset);
            }
            // Reads pages before locking the device, so that no other session waits for the disk.
            read_in(bytes);
        }
        let mut memory = lock(&memory);
        let ClaimedArray { place, copied } = memory.array(id, key, bytes)?;
        used.arrays.push(key.clone());
        let (slab, slab_size) = memory.slab(place.slab).context("invariant: an array is in a slab")?;
        let descriptor = used.slabs.insert(place.slab).then(|| slab.descriptor()).transpose()?;
        let reply = ArrayReply::At { slab: place.slab, slab_size: slab_size as u64, offset: place.offset as u64 };
        let descriptors: Vec<_> = descriptor.iter().map(AsFd::as_fd).collect();
        drop(memory);
        self.copied += copied as u64;
        Ok(passing::send(&self.runner, &reply, &descriptors)?)
    }
}

impl Drop for Session {
    /// Releases the session's resources, however it ended.
    fn drop(&mut self) {
        for used in self.used.values() {
            lock(&used.memory).end(self.id, &used.arrays);
        }
        self.devices.end(self.id);
    }
}

/// Returns the range of a part in the mapping of its blob.
fn range(part: &BlobPart, blobs: &[Blob], mapped: &Blobs) -> Result<Range<usize>> {
    let BlobPart { blob, offset, size } = *part;
    let length = mapped.get(blob)?.len();
    let place = usize::try_from(offset).ok().zip(usize::try_from(size).ok());
    let range = place.and_then(|(offset, size)| Some(offset..offset.checked_add(size)?));
    let range = range.filter(|range| range.end <= length);
    range.with_context(|| format!("{size} bytes at {offset} exceed blob `{}`", blobs[blob].name))
}

/// Touches all pages of a mapped array, which reads them into memory.
fn read_in(bytes: &[u8]) {
    const PAGE: usize = 4096;
    let sum = bytes.iter().step_by(PAGE).fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    std::hint::black_box(sum);
}

fn lock(memory: &Mutex<DeviceMemory>) -> std::sync::MutexGuard<'_, DeviceMemory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}
