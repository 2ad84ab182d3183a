//! Allocation of arrays in the memory of a device, and their eviction. Pure logic: it owns the
//! memory but never accesses it.
//!
//! Arrays are allocated in slabs. An unused array stays until its room is needed; the least
//! recently used one is evicted first. A slab is freed with its last array.

use std::collections::{BTreeMap, HashMap};

/// Alignment of arrays, in bytes.
const ALIGNMENT: usize = 256;

/// Identifies an array of any model: the same key means the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ArrayKey {
    /// Name of the blob: its digest.
    pub(super) blob: String,
    pub(super) offset: u64,
    pub(super) size: usize,
}

/// Location of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArrayLocation {
    /// Number of its slab; numbers are never reused.
    pub(super) slab: u64,
    pub(super) offset: usize,
}

/// Result of an eviction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Evicted<M> {
    /// Nothing was evicted: all arrays are in use.
    Nothing,
    /// An array was evicted.
    Array,
    /// An array was evicted, and its slab, which it was the last to use.
    Slab(M),
}

/// Arrays in slabs of memory `M`.
#[derive(Debug)]
pub(super) struct Arrays<M> {
    slabs: BTreeMap<u64, Slab<M>>,
    by_key: HashMap<ArrayKey, Array>,
    /// Unused arrays, by the time of their last use.
    unused: BTreeMap<u64, ArrayKey>,
    /// Total size of the unused arrays.
    unused_bytes: u64,
    /// Number of slabs ever added.
    count: u64,
    /// Logical time: number of events so far.
    clock: u64,
}

#[derive(Debug)]
struct Slab<M> {
    memory: M,
    size: usize,
    /// Free ranges, from offset to size; adjacent ranges are merged.
    free: BTreeMap<usize, usize>,
}

#[derive(Debug)]
struct Array {
    place: ArrayLocation,
    users: usize,
    /// Time at which a user was last added or removed.
    used: u64,
}

impl<M> Arrays<M> {
    pub(super) fn new() -> Self {
        Self {
            slabs: BTreeMap::new(),
            by_key: HashMap::new(),
            unused: BTreeMap::new(),
            unused_bytes: 0,
            count: 0,
            clock: 0,
        }
    }

    /// Adds a user to an array that is on the device, and returns its place.
    pub(super) fn find(&mut self, key: &ArrayKey) -> Option<ArrayLocation> {
        self.clock += 1;
        let array = self.by_key.get_mut(key)?;
        if array.users == 0 {
            self.unused.remove(&array.used);
            self.unused_bytes -= room(key.size) as u64;
        }
        (array.users, array.used) = (array.users + 1, self.clock);
        Some(array.place)
    }

    /// Adds a user to all arrays on the device whose blob `is_meant`, and returns their keys.
    pub(super) fn claim(&mut self, is_meant: impl Fn(&str) -> bool) -> Vec<ArrayKey> {
        let keys: Vec<ArrayKey> = self.by_key.keys().filter(|key| is_meant(&key.blob)).cloned().collect();
        for key in &keys {
            self.find(key);
        }
        keys
    }

    /// Allocates an array with its first user; `None` if no slab has room.
    pub(super) fn place(&mut self, key: &ArrayKey) -> Option<ArrayLocation> {
        let needed = room(key.size);
        let fits = |slab: &Slab<M>| slab.free.iter().find(|(_, size)| **size >= needed).map(|(at, size)| (*at, *size));
        let (slab, (offset, size)) = self.slabs.iter().find_map(|(number, slab)| Some((*number, fits(slab)?)))?;
        let free = &mut self.slabs.get_mut(&slab)?.free;
        free.remove(&offset);
        if size > needed {
            free.insert(offset + needed, size - needed);
        }
        self.clock += 1;
        let place = ArrayLocation { slab, offset };
        self.by_key.insert(key.clone(), Array { place, users: 1, used: self.clock });
        Some(place)
    }

    /// Adds a slab, and returns its number.
    pub(super) fn add(&mut self, memory: M, size: usize) -> u64 {
        let number = self.count;
        self.count += 1;
        self.slabs.insert(number, Slab { memory, size, free: BTreeMap::from([(0, size)]) });
        number
    }

    /// Returns the memory of a slab and its size.
    pub(super) fn slab(&self, number: u64) -> Option<(&M, usize)> {
        self.slabs.get(&number).map(|slab| (&slab.memory, slab.size))
    }

    /// Removes a user from each array; returns the bytes of arrays that are unused now.
    pub(super) fn release_all(&mut self, keys: &[ArrayKey]) -> u64 {
        keys.iter().map(|key| self.release(key)).sum()
    }

    /// Removes a user from an array; returns its bytes if it is unused now, else 0.
    pub(super) fn release(&mut self, key: &ArrayKey) -> u64 {
        self.clock += 1;
        let Some(array) = self.by_key.get_mut(key) else { return 0 };
        (array.users, array.used) = (array.users.saturating_sub(1), self.clock);
        if array.users > 0 {
            return 0;
        }
        let bytes = room(key.size) as u64;
        self.unused.insert(self.clock, key.clone());
        self.unused_bytes += bytes;
        bytes
    }

    /// Removes an array even if it has users, since its bytes could not be written.
    pub(super) fn forget(&mut self, key: &ArrayKey) -> Option<M> {
        let array = self.by_key.remove(key)?;
        if array.users == 0 {
            self.unused.remove(&array.used);
            self.unused_bytes -= room(key.size) as u64;
        }
        self.free(array.place, room(key.size))
    }

    /// Evicts the least recently used array.
    pub(super) fn evict(&mut self) -> Evicted<M> {
        let Some((_, key)) = self.unused.first_key_value() else { return Evicted::Nothing };
        let key = key.clone();
        self.forget(&key).map_or(Evicted::Array, Evicted::Slab)
    }

    fn free(&mut self, place: ArrayLocation, size: usize) -> Option<M> {
        let slab = self.slabs.get_mut(&place.slab)?;
        let (mut begin, mut end) = (place.offset, place.offset + size);
        if let Some((at, before)) = slab.free.range(..begin).next_back().map(|(at, size)| (*at, *size))
            && at + before == begin
        {
            slab.free.remove(&at);
            begin = at;
        }
        if let Some(behind) = slab.free.remove(&end) {
            end += behind;
        }
        if end - begin < slab.size {
            slab.free.insert(begin, end - begin);
            return None;
        }
        self.slabs.remove(&place.slab).map(|slab| slab.memory)
    }

    /// Returns the total size of the slabs.
    pub(super) fn size(&self) -> u64 {
        self.slabs.values().map(|slab| slab.size as u64).sum()
    }

    /// Returns the total size of unused arrays.
    pub(super) fn unused(&self) -> u64 {
        self.unused_bytes
    }

    /// Returns the total size of arrays, used or not, whose blob `is_meant`.
    pub(super) fn there_of(&self, is_meant: impl Fn(&str) -> bool) -> u64 {
        self.by_key.keys().filter(|key| is_meant(&key.blob)).map(|key| room(key.size) as u64).sum()
    }

    /// Returns the blob and offset of each array.
    pub(super) fn places(&self) -> impl Iterator<Item = (&str, u64)> {
        self.by_key.keys().map(|key| (key.blob.as_str(), key.offset))
    }

    /// Returns whether the array is on the device.
    pub(super) fn has(&self, key: &ArrayKey) -> bool {
        self.by_key.contains_key(key)
    }

    /// Returns the total size of used arrays whose blob `is_meant`.
    pub(super) fn used_of(&self, is_meant: impl Fn(&str) -> bool) -> u64 {
        let meant = self.by_key.iter().filter(|(key, array)| array.users > 0 && is_meant(&key.blob));
        meant.map(|(key, _)| room(key.size) as u64).sum()
    }
}

/// Returns the number of bytes that an array takes of a slab.
pub(super) fn room(size: usize) -> usize {
    size.max(1).next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    fn key(name: u8, size: usize) -> ArrayKey {
        ArrayKey { blob: format!("sha256:{name}"), offset: 0, size }
    }

    #[test]
    fn what_was_used_least_recently_gives_way_and_what_is_used_stays() {
        let mut arrays = Arrays::new();
        arrays.add("slab", 1024);
        let all: Vec<ArrayKey> = (0..4).map(|name| key(name, 200)).collect();
        assert!(all.iter().all(|key| arrays.find(key).is_none() && arrays.place(key).is_some()));
        assert_eq!(arrays.place(&key(9, 1)), None, "it is full");
        for key in &all[1..] {
            arrays.release(key);
        }
        assert_eq!((arrays.unused(), arrays.used_of(|_| true)), (768, 256));
        // Used again and released, so it is now the last to be evicted.
        arrays.find(&all[1]).expect("it is there");
        arrays.release(&all[1]);
        assert_eq!(arrays.evict(), Evicted::Array);
        assert!(arrays.find(&all[2]).is_none() && arrays.find(&all[1]).is_some());
        assert_eq!(arrays.evict(), Evicted::Array);
        assert_eq!(arrays.evict(), Evicted::Nothing, "all are in use");
        // The two were adjacent, so their free ranges are merged.
        assert_eq!(arrays.place(&key(8, 512)), Some(ArrayLocation { slab: 0, offset: 512 }));
    }

    proptest! {
        /// Used arrays never move, arrays never overlap, and a slab is freed with its last array.
        #[test]
        fn arrays_never_overlap(steps in prop::collection::vec((0u8..12, 0u8..5), 1..200)) {
            let mut arrays = Arrays::new();
            let alive = Rc::new(());
            let mut users: HashMap<u8, (ArrayLocation, usize)> = HashMap::new();
            for (name, what) in steps {
                let own = key(name, 100 * usize::from(name) + 1);
                match what {
                    0..=2 => {
                        let place = arrays.find(&own).or_else(|| arrays.place(&own)).unwrap_or_else(|| {
                            arrays.add(alive.clone(), room(own.size).max(2048));
                            arrays.place(&own).expect("a new slab has room")
                        });
                        let user = users.entry(name).or_insert((place, 0));
                        prop_assert_eq!(user.0, place);
                        user.1 += 1;
                    }
                    3 => {
                        if let Some(user) = users.get_mut(&name) {
                            arrays.release(&own);
                            user.1 -= 1;
                            if user.1 == 0 {
                                users.remove(&name);
                            }
                        }
                    }
                    _ => drop(arrays.evict()),
                }
                let mut all: Vec<_> =
                    users.iter().map(|(name, (place, _))| (place.slab, place.offset, 100 * usize::from(*name) + 1)).collect();
                all.sort_unstable();
                prop_assert!(all.windows(2).all(|two| two[0].0 < two[1].0 || two[0].1 + two[0].2 <= two[1].1));
            }
            while arrays.evict() != Evicted::Nothing {}
            for (name, (_, count)) in users {
                (0..count).for_each(|_| { arrays.release(&key(name, 100 * usize::from(name) + 1)); });
            }
            while arrays.evict() != Evicted::Nothing {}
            prop_assert_eq!((arrays.size(), Rc::strong_count(&alive)), (0, 1));
        }
    }
}
