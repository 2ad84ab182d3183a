//! The memory of one device: arrays in it, what runners take beside, and what is kept of those that nobody uses.

use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result};
use device::{Slab, Vault};

use super::arrays::{Arrays, Evicted, Key, Place, room};
use crate::failure;

/// Bytes of a slab, at most, where its first array is no larger.
const SLAB: usize = 64 << 20;
/// Slabs that a device has room for, at least, so that small ones are not taken whole by one.
const SLABS: u64 = 256;

/// A runner, from its session's beginning to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionId(pub(super) u64);

/// The memory of a device.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    vault: Vault,
    arrays: Arrays<Slab>,
    /// Bytes that runners take for themselves.
    reserved: HashMap<SessionId, u64>,
    /// Bytes of arrays that stay though nobody uses them, at most.
    keep: u64,
}

/// An array for a runner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) place: Place,
    /// Bytes that were copied for it: none where it was there.
    pub(super) copied: usize,
}

impl DeviceMemory {
    pub(super) fn new(vault: Vault, keep: u64) -> Self {
        Self { vault, arrays: Arrays::new(), reserved: HashMap::new(), keep }
    }

    fn taken(&self) -> u64 {
        self.reserved.values().fold(self.arrays.size(), |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Bytes that nobody has or uses, and all.
    pub(super) fn free(&self) -> Result<(u64, u64)> {
        let (free, total) = self.vault.memory(self.taken())?;
        // What is not in use of slabs is free for other arrays, or goes.
        let in_use = self.arrays.used_of(|_| true);
        Ok((free + self.arrays.size().saturating_sub(in_use), total))
    }

    /// Bytes of arrays in use of such blobs.
    pub(super) fn shared(&self, blobs: &[String]) -> u64 {
        let blobs: HashSet<&str> = blobs.iter().map(String::as_str).collect();
        self.arrays.used_of(|blob| blobs.contains(blob))
    }

    /// Makes room for what a runner takes for itself, as far as others leave it.
    pub(super) fn reserve(&mut self, session: SessionId, bytes: u64) -> Result<()> {
        while self.vault.memory(self.taken())?.0 < bytes && self.evict()? {}
        self.reserved.insert(session, bytes);
        Ok(())
    }

    /// An array for one more user: where it is, or where it is being copied to.
    ///
    /// # Errors
    /// There is no room for it, or the device has failed.
    pub(super) fn array(&mut self, key: &Key, bytes: &[u8]) -> Result<Found> {
        if let Some(place) = self.arrays.find(key) {
            return Ok(Found { place, copied: 0 });
        }
        let place = loop {
            if let Some(place) = self.arrays.place(key) {
                break place;
            }
            self.make_room(room(key.size))?;
        };
        let slab = self.arrays.slab(place.slab).context("invariant: an array is in a slab")?.0;
        if let Err(error) = self.vault.write(slab, place.offset, bytes) {
            self.vault.finish()?;
            drop(self.arrays.forget(key));
            return Err(error);
        }
        Ok(Found { place, copied: bytes.len() })
    }

    /// Adds a slab, or takes an array away that nobody uses.
    fn make_room(&mut self, needed: usize) -> Result<()> {
        let (free, total) = self.vault.memory(self.taken())?;
        let granularity = self.vault.granularity();
        let usual = usize::try_from(total / SLABS).unwrap_or(SLAB).min(SLAB);
        let sizes = [usual.max(needed), needed].map(|size| size.next_multiple_of(granularity));
        let fitting = sizes.into_iter().find(|size| *size as u64 <= free);
        match fitting.map(|size| self.vault.slab(size).map(|slab| (slab, size))) {
            Some(Ok((slab, size))) => {
                self.arrays.add(slab, size);
                Ok(())
            }
            // What the driver refuses may be free once others have given something up.
            refused => {
                if self.evict()? {
                    return Ok(());
                }
                let error = match refused {
                    Some(Err(error)) => error,
                    _ => anyhow::anyhow!("{needed} bytes of weights, {free} of {total} are free"),
                };
                Err(failure::out_of_memory(&error.context("the device has no room for the model's weights")))
            }
        }
    }

    /// Takes the array away that nobody has used for the longest; `false` where all are in use.
    fn evict(&mut self) -> Result<bool> {
        match self.arrays.evict() {
            Evicted::Nothing => return Ok(false),
            Evicted::Array => {}
            Evicted::Slab(memory) => {
                // It may still be written to.
                self.vault.finish()?;
                drop(memory);
            }
        }
        Ok(true)
    }

    /// The memory of a slab, for who maps it.
    pub(super) fn slab(&self, number: u64) -> Option<(&Slab, usize)> {
        self.arrays.slab(number)
    }

    /// Waits until all arrays are there.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.vault.finish()
    }

    /// A runner has ended: what it used stays within the bound.
    pub(super) fn end(&mut self, session: SessionId, used: &[Key]) {
        self.reserved.remove(&session);
        for key in used {
            self.arrays.release(key);
        }
        while self.arrays.unused() > self.keep && self.evict().unwrap_or(false) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn key(name: usize, size: usize) -> Key {
        Key { blob: format!("sha256:{name}"), offset: 8, size }
    }

    fn load(memory: &mut DeviceMemory, names: std::ops::Range<usize>) -> Result<(usize, Vec<Key>)> {
        let mut copied = 0;
        let keys: Vec<Key> = names.map(|name| key(name, MIB)).collect();
        for key in &keys {
            copied += memory.array(key, &vec![1; MIB])?.copied;
        }
        memory.finish()?;
        Ok((copied / MIB, keys))
    }

    #[test]
    fn two_models_share_what_they_have_in_common_and_coming_back_costs_nothing() {
        let mut memory = DeviceMemory::new(Vault::emulated(64 << 20), 64 << 20);
        memory.reserve(SessionId(0), 4 << 20).expect("room");
        let (copied, first) = load(&mut memory, 0..20).expect("room");
        assert_eq!(copied, 20);
        let before = memory.free().expect("it works").0;
        let (copied, second) = load(&mut memory, 2..22).expect("room");
        assert_eq!(copied, 2, "what the second has and the first has not");
        assert!(before - memory.free().expect("it works").0 <= 3 << 20);
        assert_eq!(memory.shared(&["sha256:3".to_owned(), "sha256:40".to_owned()]), 1 << 20);
        memory.end(SessionId(0), &first);
        memory.end(SessionId(1), &second);
        assert_eq!(load(&mut memory, 0..22).expect("room").0, 0, "all of it stayed");
    }

    #[test]
    fn nothing_stays_beyond_the_bound_and_room_is_made_for_others() {
        let mut memory = DeviceMemory::new(Vault::emulated(16 << 20), 5 << 20);
        let (_, first) = load(&mut memory, 0..10).expect("room");
        memory.end(SessionId(0), &first);
        assert_eq!(memory.arrays.unused(), 5 << 20);
        assert_eq!(memory.free().expect("it works").0, 16 << 20, "what nobody uses is free for others");
        let (copied, second) = load(&mut memory, 20..36).expect("what is kept gives way");
        assert_eq!(copied, 16);
        let error = load(&mut memory, 40..41).expect_err("all is in use");
        assert!(format!("{error:#}").contains("no room for the model's weights"), "{error:#}");
        memory.end(SessionId(1), &second);
        memory.reserve(SessionId(2), 14 << 20).expect("it works");
        assert_eq!(memory.arrays.unused(), 2 << 20, "what a runner takes makes others' go");
    }
}
