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
    pub(super) fn run(mut self, blobs: &[Blob], mut files: Files) {
        // Mappings of several models at a time.
        let mapped = Blobs::take(blobs, mapped::most_maps() / 4, || files.next());
        let served = mapped.and_then(|mapped| self.serve(blobs, &mapped));
        if let Err(error) = served {
            return self.end_with(&error);
        }
        self.outlive();
    }

    /// Tells the runner why there is nothing more for it.
    pub(super) fn end_with(self, error: &anyhow::Error) {
        tracing::warn!("weights are not held for a runner: {error:#}");
        self.refuse(error);
        self.outlive();
    }

    /// Until the runner has ended it may compute with what it was told of.
    fn outlive(self) {
        while let Ok(Some(_)) = passing::receive::<ArrayCall>(&self.runner) {
            self.refuse(&anyhow::anyhow!("the session is over"));
        }
    }

    fn refuse(&self, error: &anyhow::Error) {
        let reply = ArrayReply::Failed { kind: failure::kind(error), error: format!("{error:#}") };
        // A runner that has gone is seen by who reads its socket.
        let _ = passing::send(&self.runner, &reply, &[]);
    }

    /// Keeps what the daemon has planned for the runner: before the next is planned.
    pub(super) fn reserve(&mut self, reserved: &[Reserved]) -> Result<()> {
        for Reserved { device, own, weights } in reserved {
            let memory = self.devices.memory(device)?;
            lock(&memory).reserve(self.id, *own, *weights)?;
            self.used.insert(device.clone(), Used { memory, arrays: Vec::new(), slabs: HashSet::new() });
        }
        Ok(())
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

    fn array(&mut self, device: &str, key: &Key, bytes: &[u8]) -> Result<()> {
        // The daemon says which devices there are.
        let used = self.used.get_mut(device).with_context(|| format!("nothing was planned on `{device}`"))?;
        let memory = used.memory.clone();
        if !lock(&memory).has(key) {
            // Nobody is to wait for a disk while the device is locked.
            read_in(bytes);
        }
        let mut memory = lock(&memory);
        let Found { place, copied } = memory.array(self.id, key, bytes)?;
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
    /// Whatever has ended it: what it used is given back.
    fn drop(&mut self) {
        for used in self.used.values() {
            lock(&used.memory).end(self.id, &used.arrays);
        }
        self.devices.end(self.id);
    }
}

/// Has all pages of a mapped array in memory.
fn read_in(bytes: &[u8]) {
    const PAGE: usize = 4096;
    let sum = bytes.iter().step_by(PAGE).fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    std::hint::black_box(sum);
}

fn lock(memory: &Mutex<DeviceMemory>) -> std::sync::MutexGuard<'_, DeviceMemory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}
