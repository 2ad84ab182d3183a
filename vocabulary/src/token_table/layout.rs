//! Layout of a token table, and the lookup in its hash tables.

use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read};
use std::ops::Range;

use super::VERSION;
use crate::Error;

const MAGIC: &[u8; 8] = b"LODETOKS";

/// Bytes of the head: magic, version, seed, count, offset and length of seven sections, checksum.
pub(super) const HEAD: usize = 8 + 16 + 8 + 8 + 7 * 16 + 8;

/// Bytes that are hashed at a time.
const CHUNK: usize = 1 << 16;

/// Exclusive upper limit of the number of tokens.
pub(super) const MOST_TOKENS: u32 = u32::MAX;

/// A slot without a merge.
pub(super) const FREE: [u8; 16] = [0xff; 16];

/// The head of a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Head {
    pub(super) seed: u64,
    /// Number of distinct texts.
    pub(super) count: u64,
    pub(super) settings: Range<usize>,
    pub(super) texts: Range<usize>,
    pub(super) ends: Range<usize>,
    pub(super) kinds: Range<usize>,
    pub(super) scores: Range<usize>,
    pub(super) ids: Range<usize>,
    pub(super) merges: Range<usize>,
}

impl Head {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Error> {
        let damaged = |what: &str| Error(format!("its token table is damaged: {what}"));
        let head = bytes.get(..HEAD).ok_or_else(|| damaged("it is cut off"))?;
        if !head.starts_with(MAGIC) {
            return Err(damaged("it does not begin as one"));
        }
        if &head[8..24] != VERSION.as_bytes() {
            return Err(Error("its token table was made by another build".to_owned()));
        }
        let mut numbers = head[24..].as_chunks().0.iter().map(|number| u64::from_le_bytes(*number));
        let mut number = || numbers.next().unwrap_or_default();
        let (seed, count) = (number(), number());
        let mut section = || {
            let (start, length) = (number(), number());
            let end = start.checked_add(length).filter(|end| *end <= bytes.len() as u64);
            end.map(|end| start as usize..end as usize).ok_or_else(|| damaged("a section lies outside"))
        };
        let head = Self {
            seed,
            count,
            settings: section()?,
            texts: section()?,
            ends: section()?,
            kinds: section()?,
            scores: section()?,
            ids: section()?,
            merges: section()?,
        };
        let tokens = head.kinds.len();
        let fits = |section: &Range<usize>, of: usize| section.len() == of * 4;
        if !fits(&head.ends, tokens) || !(head.scores.is_empty() || fits(&head.scores, tokens)) {
            return Err(damaged("its sections have different numbers of tokens"));
        }
        let merges = head.merges.len() / 16;
        if !(head.ids.len() / 4).is_power_of_two() || !(merges == 0 || merges.is_power_of_two()) {
            return Err(damaged("its slots are not a power of two"));
        }
        Ok(head)
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = [&MAGIC[..], VERSION.as_bytes()].concat();
        let sections = [&self.settings, &self.texts, &self.ends, &self.kinds, &self.scores, &self.ids, &self.merges];
        let places = sections.into_iter().flat_map(|section| [section.start as u64, section.len() as u64]);
        for number in [self.seed, self.count].into_iter().chain(places) {
            out.extend(number.to_le_bytes());
        }
        out.resize(HEAD, 0);
        out
    }
}

/// Writes the checksum of a table into its head.
pub(super) fn seal(table: &mut [u8]) {
    let (head, rest) = table.split_at_mut(HEAD);
    let mut hasher = DefaultHasher::new();
    hasher.write(&head[..HEAD - 8]);
    for chunk in rest.chunks(CHUNK) {
        hasher.write(chunk);
    }
    head[HEAD - 8..].copy_from_slice(&hasher.finish().to_le_bytes());
}

/// Whether the bytes of a table match its checksum and this build wrote it.
pub(super) fn is_sealed(mut table: impl Read) -> io::Result<bool> {
    let mut next = |most: usize| {
        let mut bytes = Vec::with_capacity(most);
        table.by_ref().take(most as u64).read_to_end(&mut bytes).map(|_| bytes)
    };
    let head = next(HEAD)?;
    let Some((own, sum)) = head.split_last_chunk::<8>().filter(|_| head.len() == HEAD) else { return Ok(false) };
    if own[8..24] != *VERSION.as_bytes() {
        return Ok(false);
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(own);
    loop {
        let chunk = next(CHUNK)?;
        if chunk.is_empty() {
            return Ok(hasher.finish().to_le_bytes() == *sum);
        }
        hasher.write(&chunk);
    }
}

/// Returns the little-endian number at an offset.
pub(super) fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|number| u32::from_le_bytes(*number))
}

/// Returns a pair of ids in the form of the first half of a slot.
pub(super) fn pair(left: u32, right: u32) -> [u8; 8] {
    let mut pair = [0; 8];
    pair[..4].copy_from_slice(&left.to_le_bytes());
    pair[4..].copy_from_slice(&right.to_le_bytes());
    pair
}

/// Returns the slot that contains a key, else the free slot where it would be inserted. `holds`
/// returns whether a slot contains the key, or `None` for a free slot. Returns `None` if there is
/// neither, as in a table without slots.
pub(super) fn find<S>(slots: &[S], seed: u64, key: &[u8], holds: impl Fn(&S) -> Option<bool>) -> Option<usize> {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(seed);
    hasher.write(key);
    let mask = slots.len().checked_sub(1)?;
    let first = hasher.finish() as usize & mask;
    (0..slots.len()).map(|step| (first + step) & mask).find(|slot| holds(&slots[*slot]) != Some(false))
}
