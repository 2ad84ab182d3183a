//! Which arrays lie where in the memory of a device, and which give way: pure, but for the memory itself, which it only has.
//!
//! Arrays lie in slabs. An array that nobody uses stays until its room is needed; the one that was used least recently goes first. A slab goes
//! when its last array does, so that others get the memory.

use std::collections::{BTreeMap, HashMap};

/// Where arrays begin: at multiples of this.
const ALIGNMENT: usize = 256;

/// An array of a model, whoever has it: the same key is the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// The blob's name: its digest.
    pub(super) blob: String,
    pub(super) offset: u64,
    pub(super) size: usize,
}

/// Where an array is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The number of its slab; no number is given twice.
    pub(super) slab: u64,
    pub(super) offset: usize,
}

/// What was given up.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Evicted<M> {
    /// Nothing: all arrays are in use.
    Nothing,
    /// An array.
    Array,
    /// An array and with it its slab, whose last it was.
    Slab(M),
}

/// Arrays in slabs of memory `M`.
#[derive(Debug)]
pub(super) struct Arrays<M> {
    slabs: BTreeMap<u64, Slab<M>>,
    by_key: HashMap<Key, Array>,
    /// Those that nobody uses, by when somebody last did.
    unused: BTreeMap<u64, Key>,
    /// Bytes of them.
    unused_bytes: u64,
    /// Slabs there have been.
    count: u64,
    /// Uses there have been.
    clock: u64,
}

#[derive(Debug)]
struct Slab<M> {
    memory: M,
    size: usize,
    /// What is free, by where it begins; neighbours are one.
    free: BTreeMap<usize, usize>,
}

#[derive(Debug)]
struct Array {
    place: Place,
    users: usize,
    /// When somebody began or ended to use it.
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

    /// An array that is there, for one more user.
    pub(super) fn find(&mut self, key: &Key) -> Option<Place> {
        self.clock += 1;
        let array = self.by_key.get_mut(key)?;
        if array.users == 0 {
            self.unused.remove(&array.used);
            self.unused_bytes -= room(key.size) as u64;
        }
        (array.users, array.used) = (array.users + 1, self.clock);
        Some(array.place)
    }

    /// All arrays that are there of blobs that are meant, each for one more user.
    pub(super) fn claim(&mut self, is_meant: impl Fn(&str) -> bool) -> Vec<Key> {
        let keys: Vec<Key> = self.by_key.keys().filter(|key| is_meant(&key.blob)).cloned().collect();
        for key in &keys {
            self.find(key);
        }
        keys
    }

    /// Room for an array that is not there, with its first user; `None` where no slab has any.
    pub(super) fn place(&mut self, key: &Key) -> Option<Place> {
        let needed = room(key.size);
        let fits = |slab: &Slab<M>| slab.free.iter().find(|(_, size)| **size >= needed).map(|(at, size)| (*at, *size));
        let (slab, (offset, size)) = self.slabs.iter().find_map(|(number, slab)| Some((*number, fits(slab)?)))?;
        let free = &mut self.slabs.get_mut(&slab)?.free;
        free.remove(&offset);
        if size > needed {
            free.insert(offset + needed, size - needed);
        }
        self.clock += 1;
        let place = Place { slab, offset };
        self.by_key.insert(key.clone(), Array { place, users: 1, used: self.clock });
        Some(place)
    }

    /// Adds memory for arrays; its number.
    pub(super) fn add(&mut self, memory: M, size: usize) -> u64 {
        let number = self.count;
        self.count += 1;
        self.slabs.insert(number, Slab { memory, size, free: BTreeMap::from([(0, size)]) });
        number
    }

    /// The memory of a slab and its bytes.
    pub(super) fn slab(&self, number: u64) -> Option<(&M, usize)> {
        self.slabs.get(&number).map(|slab| (&slab.memory, slab.size))
    }

    /// Arrays have one user less; bytes of those that have none now.
    pub(super) fn release_all(&mut self, keys: &[Key]) -> u64 {
        keys.iter().map(|key| self.release(key)).sum()
    }

    /// An array has one user less; its bytes where it has none now.
    pub(super) fn release(&mut self, key: &Key) -> u64 {
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

    /// Forgets an array, whoever uses it: its bytes never came.
    pub(super) fn forget(&mut self, key: &Key) -> Option<M> {
        let array = self.by_key.remove(key)?;
        if array.users == 0 {
            self.unused.remove(&array.used);
            self.unused_bytes -= room(key.size) as u64;
        }
        self.free(array.place, room(key.size))
    }

    /// Gives up the array that nobody has used for the longest.
    pub(super) fn evict(&mut self) -> Evicted<M> {
        let Some((_, key)) = self.unused.first_key_value() else { return Evicted::Nothing };
        let key = key.clone();
        self.forget(&key).map_or(Evicted::Array, Evicted::Slab)
    }

    fn free(&mut self, place: Place, size: usize) -> Option<M> {
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

    /// Bytes of all slabs.
    pub(super) fn size(&self) -> u64 {
        self.slabs.values().map(|slab| slab.size as u64).sum()
    }

    /// Bytes of arrays that nobody uses.
    pub(super) fn unused(&self) -> u64 {
        self.unused_bytes
    }

    /// Bytes of arrays that are there, used or not, and of a blob that `is_meant`.
    pub(super) fn there_of(&self, is_meant: impl Fn(&str) -> bool) -> u64 {
        self.by_key.keys().filter(|key| is_meant(&key.blob)).map(|key| room(key.size) as u64).sum()
    }

    /// Where arrays that are there lie in their blobs.
    pub(super) fn places(&self) -> impl Iterator<Item = (&str, u64)> {
        self.by_key.keys().map(|key| (key.blob.as_str(), key.offset))
    }

    /// Whether an array is there.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    /// Bytes of arrays that somebody uses and that are of a blob that `is_meant`.
    pub(super) fn used_of(&self, is_meant: impl Fn(&str) -> bool) -> u64 {
        let meant = self.by_key.iter().filter(|(key, array)| array.users > 0 && is_meant(&key.blob));
        meant.map(|(key, _)| room(key.size) as u64).sum()
    }
}

/// What an array takes of a slab.
pub(super) fn room(size: usize) -> usize {
    size.max(1).next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    fn key(name: u8, size: usize) -> Key {
        Key { blob: format!("sha256:{name}"), offset: 0, size }
    }

    #[test]
    fn what_was_used_least_recently_gives_way_and_what_is_used_stays() {
        let mut arrays = Arrays::new();
        arrays.add("slab", 1024);
        let all: Vec<Key> = (0..4).map(|name| key(name, 200)).collect();
        assert!(all.iter().all(|key| arrays.find(key).is_none() && arrays.place(key).is_some()));
        assert_eq!(arrays.place(&key(9, 1)), None, "it is full");
        for key in &all[1..] {
            arrays.release(key);
        }
        assert_eq!((arrays.unused(), arrays.used_of(|_| true)), (768, 256));
        // Used again, and given back: it is the last to go now.
        arrays.find(&all[1]).expect("it is there");
        arrays.release(&all[1]);
        assert_eq!(arrays.evict(), Evicted::Array);
        assert!(arrays.find(&all[2]).is_none() && arrays.find(&all[1]).is_some());
        assert_eq!(arrays.evict(), Evicted::Array);
        assert_eq!(arrays.evict(), Evicted::Nothing, "all are in use");
        // The two lay beside one another, and are one hole.
        assert_eq!(arrays.place(&key(8, 512)), Some(Place { slab: 0, offset: 512 }));
    }

    proptest! {
        /// Arrays in use are where they were, nothing overlaps, and memory goes with the last array of a slab.
        #[test]
        fn arrays_never_overlap(steps in prop::collection::vec((0u8..12, 0u8..5), 1..200)) {
            let mut arrays = Arrays::new();
            let alive = Rc::new(());
            let mut users: HashMap<u8, (Place, usize)> = HashMap::new();
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
