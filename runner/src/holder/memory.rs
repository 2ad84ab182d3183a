//! The memory of one device: arrays in it, what runners take beside, and what is kept of those that nobody uses.

use std::collections::{BTreeSet, HashMap, HashSet};

use anyhow::{Context, Result, anyhow};
use device::{Slab, SlabUse, Vault};

use super::arrays::{Arrays, Evicted, Key, Place, room};
use crate::failure;

/// Bytes of a slab, at most, where its first array is no larger.
const SLAB: usize = 64 << 20;
/// Slabs that a device has room for, at least, so that small ones are not taken whole by one.
const SLABS: u64 = 256;

/// A runner, from its session's beginning to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionId(pub(super) u64);

/// What a runner was promised.
#[derive(Debug, Default)]
struct Promise {
    /// For itself.
    own: u64,
    /// For arrays that have not come yet.
    coming: u64,
    /// Arrays of its model that were there, which nobody takes away before it has asked for them.
    claimed: Vec<Key>,
}

/// The memory of a device.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    vault: Vault,
    arrays: Arrays<Slab>,
    /// Bytes that runners take.
    reserved: HashMap<SessionId, Promise>,
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

    /// Bytes that nobody has and nobody was promised, but for the arrays of a session, and all. Of slabs so many bytes count as free.
    fn left(&self, session: Option<SessionId>, spare: u64) -> Result<(u64, u64)> {
        let others = |id: &SessionId, promise: &Promise| {
            let coming = if Some(*id) == session { 0 } else { promise.coming };
            promise.own.saturating_add(coming)
        };
        let promised = self.reserved.iter().fold(0, |sum: u64, (id, own)| sum.saturating_add(others(id, own)));
        self.vault.memory(SlabUse { size: self.arrays.size(), spare }, promised)
    }

    /// Bytes that nobody has or uses, and all.
    pub(super) fn free(&self) -> Result<(u64, u64)> {
        // What is not in use of slabs is free for other arrays, or goes.
        let in_use = self.arrays.used_of(|_| true);
        self.left(None, self.arrays.size().saturating_sub(in_use))
    }

    /// Bytes of arrays in use of such blobs.
    pub(super) fn shared(&self, blobs: &[String]) -> u64 {
        let blobs: HashSet<&str> = blobs.iter().map(String::as_str).collect();
        self.arrays.used_of(|blob| blobs.contains(blob))
    }

    /// Makes room for what a runner takes for itself, as far as others leave it, and keeps it for him, with that of arrays that are to come. What is
    /// there of its blobs stays until it has asked for it, as long as there is other room.
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

    /// All arrays of a session have come.
    pub(super) fn is_complete(&mut self, session: SessionId) {
        self.give_up_claims(session);
        if let Some(promise) = self.reserved.get_mut(&session) {
            promise.coming = 0;
        }
    }

    /// Has a session's claims go; `false` where it has none.
    fn give_up_claims(&mut self, session: SessionId) -> bool {
        let Some(promise) = self.reserved.get_mut(&session) else { return false };
        let claimed = std::mem::take(&mut promise.claimed);
        self.arrays.release_all(&claimed);
        !claimed.is_empty()
    }

    /// Has claims go for a session that finds no other room: its own, then those of one that came later or earlier, who has no better right to what
    /// nobody uses than who was promised its room.
    fn give_up_any_claims(&mut self, session: SessionId) -> bool {
        let others = self.reserved.iter().filter(|(id, promise)| **id != session && !promise.claimed.is_empty());
        let other = others.map(|(id, _)| *id).next();
        self.give_up_claims(session) || other.is_some_and(|other| self.give_up_claims(other))
    }

    /// Whether an array is there.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.arrays.has(key)
    }

    /// The blobs and offsets of all arrays that are there.
    pub(super) fn places(&self) -> BTreeSet<(&str, u64)> {
        self.arrays.places().collect()
    }

    /// Bytes of arrays that are there of such blobs, whether or not somebody uses them.
    pub(super) fn there(&self, blobs: &[String]) -> u64 {
        let blobs: HashSet<&str> = blobs.iter().map(String::as_str).collect();
        self.arrays.there_of(|blob| blobs.contains(blob))
    }

    /// An array for one more user: where it is, or where it is being copied to.
    ///
    /// # Errors
    /// There is no room for it, or the device has failed.
    pub(super) fn array(&mut self, session: SessionId, key: &Key, bytes: &[u8]) -> Result<Found> {
        if let Some(place) = self.arrays.find(key) {
            return Ok(Found { place, copied: 0 });
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
        Ok(Found { place, copied: bytes.len() })
    }

    /// Adds a slab, or takes an array away that nobody uses.
    fn make_room(&mut self, session: SessionId, needed: usize) -> Result<()> {
        let (free, total) = self.left(Some(session), 0)?;
        let granularity = self.vault.granularity();
        let usual = usize::try_from(total / SLABS).unwrap_or(SLAB).min(SLAB);
        // What is left of a slab behind a large array is of use to small ones only.
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
            anyhow!("the device has no room for the model's weights: {needed} bytes, {free} of {total} are free");
        Err(failure::out_of_memory(&lack))
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

    /// A runner has ended: nobody uses what it used, until [`trim`](Self::trim).
    pub(super) fn end(&mut self, session: SessionId, used: &[Key]) {
        self.give_up_claims(session);
        self.reserved.remove(&session);
        self.arrays.release_all(used);
    }

    /// Has arrays go that nobody uses, beyond the bound; their bytes.
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

    fn key(name: usize, size: usize) -> Key {
        Key { blob: format!("sha256:{name}"), offset: 8, size }
    }

    fn load(memory: &mut DeviceMemory, session: SessionId, names: std::ops::Range<usize>) -> Result<(usize, Vec<Key>)> {
        let mut copied = 0;
        let keys: Vec<Key> = names.map(|name| key(name, MIB)).collect();
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
        // Somebody comes back for what was left: it is not kept from who was promised its room.
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
        assert!(format!("{error:#}").contains("no room for the model's weights"), "{error:#}");
        memory.end(SessionId(1), &second);
        memory.trim();
        memory.reserve(SessionId(2), 14 << 20, 0, &[]).expect("it works");
        assert_eq!(memory.arrays.unused(), 2 << 20, "what a runner takes makes others' go");
    }

    /// Models that take turns where there is room for one of them, whatever stays of what nobody uses.
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

    /// A model of which only a part is wanted here: what it claimed and does not ask for gives way to what it asks for.
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
