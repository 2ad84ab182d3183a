//! Sizes of the parts of uploads.
//!
//! A part is in memory until it is sent, so parts are small. The last one delays the commit, so it
//! is smaller still if the size of the upload is known; all others have 5 MiB at least, as S3
//! demands. A storage takes at most 10,000 parts, so later ones are larger. Cloudflare R2 requires
//! equal sizes.

/// How large the parts of an upload are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartSizes {
    /// 8 MiB, later 32 and 128 MiB: together at most 406 GiB. If the size is known, the last but
    /// one has 5 MiB and the last one 2 MiB.
    Growing,
    /// 32 MiB: together at most 312 GiB.
    Equal,
    /// A few bytes, for tests.
    #[cfg(test)]
    Tiny,
}

/// Number of parts of an upload that all storages accept.
pub(crate) const MOST_PARTS: usize = 10_000;
/// The size of the first parts.
const FIRST: u64 = 8 << 20;
/// The smallest part that may be followed by another one.
const LEAST: u64 = 5 << 20;
/// The size of the last part of an upload of a known size.
const LAST: u64 = 2 << 20;
const GROWN: usize = 4_000;
const GROWN_AGAIN: usize = 8_000;

impl PartSizes {
    /// Bytes of the part with this number, if `left` bytes are likely to follow from its beginning.
    /// Fewer bytes are the last part.
    pub(crate) fn next(self, number: usize, left: Option<u64>) -> u64 {
        match left {
            Some(left) if self == Self::Growing && number < GROWN => planned(left),
            _ => self.size(number),
        }
    }

    /// Bytes of the part with this number, counted from 0, if nothing is known about the upload.
    fn size(self, number: usize) -> u64 {
        match self {
            Self::Growing if number < GROWN => FIRST,
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

/// Bytes of the next part, so that the last two are small. The last but one is still being sent
/// when the last bytes arrive.
fn planned(left: u64) -> u64 {
    let before = left.saturating_sub(LEAST + LAST);
    if before >= FIRST + LEAST || left < LEAST + LAST {
        FIRST
    } else if before >= 2 * LEAST {
        before / 2
    } else if before >= LEAST {
        before
    } else {
        left - LAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of the parts of an upload of a known size.
    fn parts(size: u64) -> Vec<u64> {
        let (mut parts, mut begin) = (Vec::new(), 0);
        loop {
            let part = PartSizes::Growing.next(parts.len(), Some(size - begin));
            if size - begin < part {
                parts.push(size - begin);
                return parts;
            }
            parts.push(part);
            begin += part;
        }
    }

    #[test]
    fn the_last_part_is_small() {
        for size in (0..64 << 20).step_by(99_991).chain([LAST + LEAST, LAST + 2 * LEAST, LAST + LEAST + FIRST]) {
            let parts = parts(size);
            let (last, others) = parts.split_last().expect("a part");
            assert!(others.iter().all(|part| (LEAST..=2 * LEAST).contains(part)), "{size}: {parts:?}");
            let most = if others.is_empty() { LAST + LEAST } else { LAST };
            assert!(*last <= most, "{size}: {parts:?}");
            assert!(others.len() < 2 || others.last() == Some(&LEAST), "{size}: {parts:?}");
            assert_eq!(parts.iter().sum::<u64>(), size);
        }
        assert_eq!(PartSizes::Equal.next(0, Some(33 << 20)), 32 << 20);
    }

    #[test]
    fn the_largest_models_have_room() {
        assert!(PartSizes::Growing.most() > 400 << 30);
        assert_eq!(PartSizes::Equal.most(), 10_000 * (32 << 20));
    }
}
