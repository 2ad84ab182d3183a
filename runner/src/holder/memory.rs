//! Memory of one device: arrays, memory reserved by runners, and unused arrays that are kept.

use std::collections::{BTreeSet, HashMap, HashSet};

use anyhow::{Context, Result, anyhow};
use device::{Slab, SlabUse, Vault};

use super::arrays::{ArrayKey, ArrayLocation, Arrays, Evicted, room};
use crate::failure;

/// Greatest size of a slab, in bytes, unless its first array is larger.
const SLAB: usize = 64 << 20;
/// Least number of slabs that fit on a device, so that one slab does not fill a small device.
const SLABS: u64 = 256;

/// Identifies a runner's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionId(pub(super) u64);

/// Memory promised to a runner.
#[derive(Debug, Default)]
struct Promise {
    /// Bytes for the runner itself.
    own: u64,
    /// Bytes for arrays that are not on the device yet.
    coming: u64,
    /// Arrays of its model that were on the device already. They are not evicted before the runner
    /// has requested them, unless memory runs out.
    claimed: Vec<ArrayKey>,
}

/// Memory of a device.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    vault: Vault,
    arrays: Arrays<Slab>,
    /// Memory promised to each session.
    reserved: HashMap<SessionId, Promise>,
    /// Limit for unused arrays, in bytes.
    keep: u64,
}

/// An array for a runner.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimedArray {
    pub(super) place: ArrayLocation,
    /// Number of bytes that were copied; 0 if the array was on the device.
    pub(super) copied: usize,
}

impl DeviceMemory {
    pub(super) fn new(vault: Vault, keep: u64) -> Self {
        Self { vault, arrays: Arrays::new(), reserved: HashMap::new(), keep }
    }

    /// Returns free and total bytes of the device. Promised bytes count as used, except for arrays
    /// that `session` itself still expects. `spare` bytes inside slabs count as free.
    fn left(&self, session: Option<SessionId>, spare: u64) -> Result<(u64, u64)> {
        let others = |id: &SessionId, promise: &Promise| {
            let coming = if Some(*id) == session { 0 } else { promise.coming };
            promise.own.saturating_add(coming)
        };
        let promised = self.reserved.iter().fold(0, |sum: u64, (id, own)| sum.saturating_add(others(id, own)));
        self.vault.memory(SlabUse { size: self.arrays.size(), spare }, promised)
    }

    /// Returns free and total bytes of the device; unused arrays count as free.
    pub(super) fn free(&self) -> Result<(u64, u64)> {
        // Slab memory that is not in use can hold other arrays, or can be freed.
        let in_use = self.arrays.used_of(|_| true);
        self.left(None, self.arrays.size().saturating_sub(in_use))
    }

    /// Returns the bytes of used arrays that belong to these blobs.
    pub(super) fn shared(&self, blobs: &[String]) -> u64 {
        let blobs: HashSet<&str> = blobs.iter().map(String::as_str).collect();
        self.arrays.used_of(|blob| blobs.contains(blob))
    }

    /// Reserves `own` bytes for the runner itself and `coming` bytes for its arrays. Evicts unused
    /// arrays until `own` bytes are free, as far as possible. Arrays of its blobs that are on the
    /// device are claimed: they stay until the runner requests them, unless there is no other room.
    pub(super) fn reserve(&mut self, session: SessionId, own: u64, coming: u64, blobs: &[String]) -> Result<()> {
        let blobs: HashSet<&str> = blobs.iter().map(String::as_str).collect();
        let mut claimed = self.arrays.claim(|blob| blobs.contains(blob));
        let mut coming = coming;
        while self.left(None, 0)?.0 < own {
            if !self.evict()? {
                if claimed.is_empty() {
                    break;
                }
                coming += self.arrays.release_all(&std::mem::take(&mut claimed));
            }
        }
        self.reserved.insert(session, Promise { own, coming, claimed });
        Ok(())
    }

    /// Notes that all arrays of a session are on the device.
    pub(super) fn is_complete(&mut self, session: SessionId) {
        self.give_up_claims(session);
        if let Some(promise) = self.reserved.get_mut(&session) {
            promise.coming = 0;
        }
    }

    /// Releases a session's claims; returns `false` if it has none.
    fn give_up_claims(&mut self, session: SessionId) -> bool {
        let Some(promise) = self.reserved.get_mut(&session) else { return false };
        let claimed = std::mem::take(&mut promise.claimed);
        self.arrays.release_all(&claimed);
        !claimed.is_empty()
    }

    /// Releases claims for a session that finds no other room: first its own, then those of one
    /// other session. A claim on unused arrays never outranks promised memory.
    fn give_up_any_claims(&mut self, session: SessionId) -> bool {
        let others = self.reserved.iter().filter(|(id, promise)| **id != session && !promise.claimed.is_empty());
        let other = others.map(|(id, _)| *id).next();
        self.give_up_claims(session) || other.is_some_and(|other| self.give_up_claims(other))
    }

    /// Returns whether an array is on the device.
    pub(super) fn has(&self, key: &ArrayKey) -> bool {
        self.arrays.has(key)
    }

    /// Returns the blobs and offsets of all arrays on the device.
    pub(super) fn places(&self) -> BTreeSet<(&str, u64)> {
        self.arrays.places().collect()
    }

    /// Returns the bytes of arrays on the device that belong to these blobs, used or not.
    pub(super) fn there(&self, blobs: &[String]) -> u64 {
        let blobs: HashSet<&str> = blobs.iter().map(String::as_str).collect();
        self.arrays.there_of(|blob| blobs.contains(blob))
    }

    /// Adds a user to an array. Starts copying it if it is not on the device.
    ///
    /// # Errors
    /// There is no room for it, or the device has failed.
    pub(super) fn array(&mut self, session: SessionId, key: &ArrayKey, bytes: &[u8]) -> Result<ClaimedArray> {
        if let Some(place) = self.arrays.find(key) {
            return Ok(ClaimedArray { place, copied: 0 });
        }
        let place = loop {
            if let Some(place) = self.arrays.place(key) {
                break place;
            }
            self.make_room(session, room(key.size))?;
        };
        let slab = self.arrays.slab(place.slab).context("invariant: an array is in a slab")?.0;
        if let Err(error) = self.vault.write(slab, place.offset, bytes) {
            let forgotten = self.arrays.forget(key);
            self.vault.finish()?;
            drop(forgotten);
            return Err(error);
        }
        if let Some(promise) = self.reserved.get_mut(&session) {
            promise.coming = promise.coming.saturating_sub(bytes.len() as u64);
        }
        Ok(ClaimedArray { place, copied: bytes.len() })
    }

    /// Adds a slab, or evicts an unused array.
    fn make_room(&mut self, session: SessionId, needed: usize) -> Result<()> {
        let (free, total) = self.left(Some(session), 0)?;
        let granularity = self.vault.granularity();
        let usual = usize::try_from(total / SLABS).unwrap_or(SLAB).min(SLAB);
        // The rest of a slab behind a large array fits small arrays only.
        let usual = if needed > usual / 8 { needed } else { usual };
        let sizes = [usual, needed].map(|size| size.next_multiple_of(granularity));
        let fitting = sizes.into_iter().find(|size| *size as u64 <= free);
        if let Some(size) = fitting
            && let Some(slab) = self.vault.slab(size)?
        {
            self.arrays.add(slab, size);
            return Ok(());
        }
        if self.evict()? || self.give_up_any_claims(session) {
            return Ok(());
        }
        let lack =
            anyhow!("not enough device memory for the model's weights: {needed} bytes needed, {free} of {total} free");
        Err(failure::out_of_memory(&lack))
    }

    /// Evicts the least recently used array; returns `false` if all arrays are in use.
    fn evict(&mut self) -> Result<bool> {
        match self.arrays.evict() {
            Evicted::Nothing => return Ok(false),
            Evicted::Array => {}
            Evicted::Slab(memory) => {
                // A copy to it may still be running.
                self.vault.finish()?;
                drop(memory);
            }
        }
        Ok(true)
    }

    /// Returns the memory of a slab, so that a runner can map it, and its size.
    pub(super) fn slab(&self, number: u64) -> Option<(&Slab, usize)> {
        self.arrays.slab(number)
    }

    /// Waits until all copies are complete.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.vault.finish()
    }

    /// Ends a session: releases its arrays, which stay until [`trim`](Self::trim).
    pub(super) fn end(&mut self, session: SessionId, used: &[ArrayKey]) {
        self.give_up_claims(session);
        self.reserved.remove(&session);
        self.arrays.release_all(used);
    }

    /// Evicts unused arrays beyond the limit; returns their bytes.
    pub(super) fn trim(&mut self) -> u64 {
        let before = self.arrays.unused();
        while self.arrays.unused() > self.keep && self.evict().unwrap_or(false) {}
        before - self.arrays.unused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn key(name: usize, size: usize) -> ArrayKey {
        ArrayKey { blob: format!("sha256:{name}"), offset: 8, size }
    }

    fn load(
        memory: &mut DeviceMemory,
        session: SessionId,
        names: std::ops::Range<usize>,
    ) -> Result<(usize, Vec<ArrayKey>)> {
        let mut copied = 0;
        let keys: Vec<ArrayKey> = names.map(|name| key(name, MIB)).collect();
        for key in &keys {
            copied += memory.array(session, key, &vec![1; MIB])?.copied;
        }
        memory.finish()?;
        Ok((copied / MIB, keys))
    }

    #[test]
    fn two_models_share_what_they_have_in_common_and_coming_back_costs_nothing() {
        let mut memory = DeviceMemory::new(Vault::emulated(64 << 20), 64 << 20);
        memory.reserve(SessionId(0), 4 << 20, 0, &[]).expect("room");
        let (copied, first) = load(&mut memory, SessionId(9), 0..20).expect("room");
        assert_eq!(copied, 20);
        let before = memory.free().expect("it works").0;
        let (copied, second) = load(&mut memory, SessionId(9), 2..22).expect("room");
        assert_eq!(copied, 2, "what the second has and the first has not");
        assert!(before - memory.free().expect("it works").0 <= 3 << 20);
        assert_eq!(memory.shared(&["sha256:3".to_owned(), "sha256:40".to_owned()]), 1 << 20);
        memory.end(SessionId(0), &first);
        memory.end(SessionId(1), &second);
        assert_eq!(load(&mut memory, SessionId(9), 0..22).expect("room").0, 0, "all of it stayed");
    }

    #[test]
    fn large_arrays_fill_their_slabs_and_what_is_promised_is_nobody_else_s() {
        const GIB: u64 = 1 << 30;
        let mut memory = DeviceMemory::new(Vault::emulated(64 * GIB), 0);
        let large = vec![0; 50 * MIB];
        for name in 0..4 {
            memory.array(SessionId(0), &key(name, large.len()), &large).expect("room");
        }
        assert_eq!(memory.arrays.size(), 4 * large.len() as u64, "nothing is lost between them");
        memory.reserve(SessionId(1), GIB, 40 * GIB, &[]).expect("room");
        assert!(memory.free().expect("it works").0 < 23 * GIB, "two loads do not plan with the same bytes");
        memory.array(SessionId(1), &key(9, large.len()), &large).expect("its own promise is no obstacle");
        memory.is_complete(SessionId(1));
        assert!(memory.free().expect("it works").0 > 62 * GIB);
    }

    #[test]
    fn what_was_promised_is_nobody_s_even_where_others_left_it() {
        let mut memory = DeviceMemory::new(Vault::emulated(100 << 20), 100 << 20);
        let (_, left) = load(&mut memory, SessionId(0), 0..40).expect("room");
        memory.end(SessionId(0), &left);
        memory.reserve(SessionId(1), 5 << 20, 90 << 20, &[]).expect("it works");
        assert_eq!(memory.free().expect("it works").0, 5 << 20);
        // Another session claims the unused arrays, but the promise of session 1 outranks the
        // claim.
        let blobs: Vec<_> = (0..40).map(|name| format!("sha256:{name}")).collect();
        memory.reserve(SessionId(2), 0, 0, &blobs).expect("it works");
        let (copied, _) = load(&mut memory, SessionId(1), 100..190).expect("the room that was promised");
        assert_eq!(copied, 90);
        assert_eq!(memory.free().expect("it works").0, 5 << 20, "what it was promised for itself");
    }

    #[test]
    fn nothing_stays_beyond_the_bound_and_room_is_made_for_others() {
        let mut memory = DeviceMemory::new(Vault::emulated(16 << 20), 5 << 20);
        let (_, first) = load(&mut memory, SessionId(9), 0..10).expect("room");
        memory.end(SessionId(0), &first);
        assert_eq!(memory.arrays.unused(), 10 << 20, "who comes at once finds all of it");
        assert_eq!((memory.trim(), memory.trim(), memory.arrays.unused()), (5 << 20, 0, 5 << 20));
        assert_eq!(memory.free().expect("it works").0, 16 << 20, "what nobody uses is free for others");
        let (copied, second) = load(&mut memory, SessionId(9), 20..36).expect("what is kept gives way");
        assert_eq!(copied, 16);
        let error = load(&mut memory, SessionId(9), 40..41).expect_err("all is in use");
        assert!(format!("{error:#}").contains("not enough device memory for the model's weights"), "{error:#}");
        memory.end(SessionId(1), &second);
        memory.trim();
        memory.reserve(SessionId(2), 14 << 20, 0, &[]).expect("it works");
        assert_eq!(memory.arrays.unused(), 2 << 20, "what a runner takes makes others' go");
    }

    /// Models alternate, with memory for one of them and a limit of 0 for unused arrays.
    #[test]
    fn swapping_models_costs_what_differs() {
        let blobs = |names: std::ops::Range<usize>| names.map(|name| format!("sha256:{name}")).collect::<Vec<_>>();
        let mut memory = DeviceMemory::new(Vault::emulated(22 << 20), 0);
        let (mut used, models) = (Vec::new(), [0..18, 2..20, 0..18, 2..20]);
        for (turn, names) in models.into_iter().enumerate() {
            let session = SessionId(turn as u64);
            memory.end(SessionId(turn as u64 - u64::from(turn > 0)), &used);
            memory.reserve(session, 4 << 20, 2 << 20, &blobs(names.clone())).expect("it works");
            memory.trim();
            let copied;
            (copied, used) = load(&mut memory, session, names).expect("room");
            assert_eq!(copied, if turn == 0 { 18 } else { 2 }, "turn {turn}");
            memory.is_complete(session);
        }
    }

    /// A runner requests only a part of a model. Its remaining claims yield to its own requests.
    #[test]
    fn claims_are_no_obstacle_to_who_made_them() {
        let mut memory = DeviceMemory::new(Vault::emulated(8 << 20), 8 << 20);
        let (_, first) = load(&mut memory, SessionId(0), 0..8).expect("room");
        memory.end(SessionId(0), &first);
        let blobs: Vec<_> = (0..8).map(|name| format!("sha256:{name}")).collect();
        memory.reserve(SessionId(1), 0, 0, &blobs).expect("it works");
        assert_eq!(memory.free().expect("it works").0, 0, "nobody else plans with it");
        let (copied, _) = load(&mut memory, SessionId(1), 6..10).expect("its own claims give way");
        assert_eq!(copied, 2);
        memory.reserve(SessionId(2), 8 << 20, 0, &blobs).expect("it works");
        memory.end(SessionId(1), &[]);
        assert!(memory.reserved[&SessionId(2)].claimed.is_empty(), "what a runner takes for itself goes first");
    }
}
