//! Losses by a power cut, and the random numbers that select them.

/// The unsynced changes that are lost. Synced changes are never lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// All unsynced changes are lost.
    Everything,
    /// No change is lost, as after a kill of the process on a running machine.
    Nothing,
    /// All names remain. Files have the content of their last sync, so a new file is empty.
    Data,
    /// All names and file lengths remain, but bytes appended since the last sync are zeros.
    /// Overwritten bytes have their old values.
    Zeros,
    /// All file contents remain, under the names of each folder's last sync.
    Names,
    /// Each folder keeps a random prefix of its changes. Each change of a file's content is kept,
    /// lost or torn. A seed always gives the same losses for the same disk.
    Random(u64),
}

impl Loss {
    /// All losses except the random ones.
    pub(super) const CERTAIN: [Self; 5] = [Self::Everything, Self::Nothing, Self::Data, Self::Zeros, Self::Names];
}

/// Splitmix64, which is independent of the platform, so that a seed repeats a failure.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    /// Returns the generator for one object. Objects have independent generators, so that the
    /// losses of one do not depend on other objects.
    pub(super) fn of(seed: u64, object: usize) -> Self {
        let (seed, object) = (Self(seed).draw(), Self(object as u64).draw());
        Self(seed ^ object.rotate_left(32))
    }

    /// Returns a number below `limit`, which must not be zero.
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
