//! Sizes of the parts of uploads.
//!
//! A part is in memory until it is sent, and the last one delays the commit, so parts are small. A
//! storage takes at most 10,000 of them, so later ones are larger. Cloudflare R2 requires equal
//! sizes.

/// How large the parts of an upload are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartSizes {
    /// 8 MiB, later 32 and 128 MiB: together at most 406 GiB.
    Growing,
    /// 32 MiB: together at most 312 GiB.
    Equal,
    /// A few bytes, for tests.
    #[cfg(test)]
    Tiny,
}

/// Number of parts of an upload that all storages accept.
pub(crate) const MOST_PARTS: usize = 10_000;
const GROWN: usize = 4_000;
const GROWN_AGAIN: usize = 8_000;

impl PartSizes {
    /// Bytes of the part with this number, counted from 0. The last part may be shorter.
    pub(crate) fn size(self, number: usize) -> u64 {
        match self {
            Self::Growing if number < GROWN => 8 << 20,
            Self::Growing if number >= GROWN_AGAIN => 128 << 20,
            Self::Growing | Self::Equal => 32 << 20,
            #[cfg(test)]
            Self::Tiny => 5,
        }
    }

    /// The maximum size of a blob.
    pub(crate) fn most(self) -> u64 {
        (0..MOST_PARTS).map(|number| self.size(number)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_models_have_room() {
        assert!(PartSizes::Growing.most() > 400 << 30);
        assert_eq!(PartSizes::Equal.most(), 10_000 * (32 << 20));
    }
}
