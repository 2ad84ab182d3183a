//! What the holder does for one runner.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use protocol::{ArrayCall, ArrayReply, Blob, Reserved, passing};

use super::Devices;
use super::arrays::Key;
use super::memory::{DeviceMemory, Found, SessionId};
use crate::failure;
use crate::files::Files;
use crate::mapped::{self, Blobs};

/// A runner's session.
pub(super) struct Session {
    id: SessionId,
    devices: Arc<Devices>,
    runner: UnixStream,
    /// What it uses of each device.
    used: HashMap<String, Used>,
    copied: u64,
}

struct Used {
    memory: Arc<Mutex<DeviceMemory>>,
    arrays: Vec<Key>,
    /// Slabs that it has the descriptors of.
    slabs: HashSet<u64>,
}

impl Session {
    pub(super) fn new(id: SessionId, devices: Arc<Devices>, runner: UnixStream) -> Self {
        Self { id, devices, runner, used: HashMap::new(), copied: 0 }
    }

    /// Serves the runner until it closes its socket.
    pub(super) fn run(mut self, blobs: &[Blob], reserved: &[Reserved], mut files: Files) {
        let served = self.reserve(reserved).and_then(|()| {
            // Mappings of several models at a time.
            let mapped = Blobs::take(blobs, mapped::most_maps() / 4, || files.next())?;
            self.serve(blobs, &mapped)
        });
        if let Err(error) = served {
            tracing::warn!("weights are not held for a runner: {error:#}");
            self.refuse(&error);
        }
        // Until the runner has ended it may compute with what it was told of.
        while let Ok(Some(_)) = passing::receive::<ArrayCall>(&self.runner) {
            self.refuse(&anyhow::anyhow!("the session is over"));
        }
        for used in self.used.values() {
            lock(&used.memory).end(self.id, &used.arrays);
        }
        self.devices.end(self.id);
    }

    fn refuse(&self, error: &anyhow::Error) {
        let reply = ArrayReply::Failed { kind: failure::kind(error), error: format!("{error:#}") };
        // A runner that has gone is seen by who reads its socket.
        let _ = passing::send(&self.runner, &reply, &[]);
    }

    fn reserve(&mut self, reserved: &[Reserved]) -> Result<()> {
        for Reserved { device, bytes } in reserved {
            let id = self.id;
            lock(&self.used(device)?.memory).reserve(id, *bytes)?;
        }
        Ok(())
    }

    fn used(&mut self, device: &str) -> Result<&mut Used> {
        if !self.used.contains_key(device) {
            let memory = self.devices.memory(device)?;
            self.used.insert(device.to_owned(), Used { memory, arrays: Vec::new(), slabs: HashSet::new() });
        }
        self.used.get_mut(device).context("invariant: it has just been put there")
    }

    /// Until all arrays are there, or the runner has gone; files are unmapped then.
    fn serve(&mut self, blobs: &[Blob], mapped: &Blobs) -> Result<()> {
        while let Some((call, _)) = passing::receive::<ArrayCall>(&self.runner)? {
            match call {
                ArrayCall::Array { device, blob, offset, size } => {
                    let bytes = mapped.get(blob)?;
                    let place = usize::try_from(offset).ok().zip(usize::try_from(size).ok());
                    let bytes = place.and_then(|(offset, size)| bytes.get(offset..offset.checked_add(size)?));
                    let bytes = bytes
                        .with_context(|| format!("{size} bytes at {offset} are not in blob `{}`", blobs[blob].name))?;
                    let key = Key { blob: blobs[blob].name.clone(), offset, size: bytes.len() };
                    self.array(&device, &key, bytes)?;
                }
                ArrayCall::Finish => {
                    for used in self.used.values() {
                        lock(&used.memory).finish()?;
                    }
                    passing::send(&self.runner, &ArrayReply::Finished { copied: self.copied }, &[])?;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn array(&mut self, device: &str, key: &Key, bytes: &[u8]) -> Result<()> {
        let used = self.used(device)?;
        let memory = used.memory.clone();
        let mut memory = lock(&memory);
        let Found { place, copied } = memory.array(key, bytes)?;
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

fn lock(memory: &Mutex<DeviceMemory>) -> std::sync::MutexGuard<'_, DeviceMemory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}
