//! What a power cut takes away, and the random numbers by which it chooses.

/// What of that which was not synced is lost. What was synced is never lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// Only what was synced is there.
    Everything,
    /// All is there, as if the process had been killed and the machine went on.
    Nothing,
    /// All names are there, files have the content of their last sync: a new one is empty.
    Data,
    /// All names are there and files have their length, but what they grew by since their last sync is zeros. Bytes
    /// that were there before and were overwritten are the old ones.
    Zeros,
    /// All data is there, under the names of the last sync of each folder.
    Names,
    /// Each folder keeps a random first part of its changes; each change of a file's content is kept, lost or torn. The
    /// same seed loses the same of the same disk.
    Random(u64),
}

impl Loss {
    /// All but the random ones.
    pub(super) const CERTAIN: [Self; 5] = [Self::Everything, Self::Nothing, Self::Data, Self::Zeros, Self::Names];
}

/// Splitmix64: the numbers are the same everywhere and at any time, so that a seed repeats a failure.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    /// The numbers for one object. Each has its own, so that what one loses does not depend on the others.
    pub(super) fn of(seed: u64, object: usize) -> Self {
        let (seed, object) = (Self(seed).draw(), Self(object as u64).draw());
        Self(seed ^ object.rotate_left(32))
    }

    /// A number below `limit`, which is not zero.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.draw() % limit as u64) as usize
    }

    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
