//! A regular file of the disk model: its content at the last sync, and all changes since.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock};

use super::loss::{Loss, Random};

/// The longest file that is recorded. A longer one indicates an error in the log, and would not fit
/// into memory.
const LONGEST: u64 = 1 << 30;

/// The bytes of a file. States with the same content share them, and their hash is computed once.
#[derive(Debug, Clone, Default)]
pub(super) struct Content {
    bytes: Vec<u8>,
    hash: OnceLock<u64>,
}

impl Content {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, hash: OnceLock::new() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn resize(&mut self, length: usize) {
        self.hash.take();
        self.bytes.resize(length, 0);
    }

    fn grow(&mut self, length: usize) {
        self.resize(length.max(self.bytes.len()));
    }

    /// Writes bytes at `offset`, and fills the gap after the old end with zeros.
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        self.grow(end);
        self.bytes[offset..end].copy_from_slice(bytes);
    }
}

impl Hash for Content {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let hash = self.hash.get_or_init(|| {
            let mut hasher = DefaultHasher::new();
            hasher.write(&self.bytes);
            hasher.finish()
        });
        state.write_u64(*hash);
    }
}

/// An unsynced change of content. Its end was checked to be at most [`LONGEST`].
#[derive(Debug, Clone)]
enum Change {
    Write { offset: usize, bytes: Arc<[u8]> },
    Resize { length: usize },
}

impl Change {
    fn apply(&self, content: &mut Content) {
        match self {
            Self::Write { offset, bytes } => content.write(*offset, bytes),
            Self::Resize { length } => content.resize(*length),
        }
    }

    /// Applies only the length.
    fn apply_length(&self, content: &mut Content) {
        match self {
            Self::Write { bytes, .. } if bytes.is_empty() => {}
            Self::Write { offset, bytes } => content.grow(offset + bytes.len()),
            Self::Resize { length } => content.resize(*length),
        }
    }

    /// Applies only the first half of a write. A change of length cannot be torn, so it is lost.
    fn apply_half(&self, content: &mut Content) {
        match self {
            Self::Write { offset, bytes } => content.write(*offset, &bytes[..bytes.len() / 2]),
            Self::Resize { .. } => {}
        }
    }
}

/// Invariant: `current` is `durable` with all of `pending` applied in order.
#[derive(Debug, Clone, Default)]
pub(super) struct File {
    durable: Arc<Content>,
    current: Arc<Content>,
    pending: Vec<Change>,
}

impl File {
    /// Returns a file that existed before the recording.
    pub(super) fn durable(bytes: Vec<u8>) -> Self {
        let content = Arc::new(Content::new(bytes));
        Self { durable: Arc::clone(&content), current: content, pending: Vec::new() }
    }

    /// Writes bytes. Fails if the file would exceed [`LONGEST`].
    pub(super) fn write(&mut self, offset: u64, bytes: &Arc<[u8]>) -> Result<(), String> {
        let end = offset.saturating_add(bytes.len() as u64);
        within_longest(end)?;
        self.change(Change::Write { offset: offset as usize, bytes: Arc::clone(bytes) });
        Ok(())
    }

    /// Sets the length. Fails like [`File::write`].
    pub(super) fn resize(&mut self, length: u64) -> Result<(), String> {
        within_longest(length)?;
        self.change(Change::Resize { length: length as usize });
        Ok(())
    }

    fn change(&mut self, change: Change) {
        change.apply(Arc::make_mut(&mut self.current));
        self.pending.push(change);
    }

    pub(super) fn sync(&mut self) {
        self.durable = Arc::clone(&self.current);
        self.pending.clear();
    }

    /// Returns the content after a power cut. `object` is the file's number on its disk.
    pub(super) fn content(&self, loss: Loss, object: usize) -> Arc<Content> {
        match loss {
            Loss::Everything | Loss::Data => Arc::clone(&self.durable),
            Loss::Nothing | Loss::Names => Arc::clone(&self.current),
            Loss::Zeros => self.replay(Change::apply_length),
            Loss::Random(seed) => {
                let mut random = Random::of(seed, object);
                self.replay(|change, content| match random.below(3) {
                    0 => {}
                    1 => change.apply_half(content),
                    _ => change.apply(content),
                })
            }
        }
    }

    fn replay(&self, mut apply: impl FnMut(&Change, &mut Content)) -> Arc<Content> {
        if self.pending.is_empty() {
            return Arc::clone(&self.durable);
        }
        let mut content = Content::clone(&self.durable);
        for change in &self.pending {
            apply(change, &mut content);
        }
        Arc::new(content)
    }
}

fn within_longest(length: u64) -> Result<(), String> {
    if length > LONGEST {
        return Err(format!("the file would have {length} bytes, the model holds at most {LONGEST}"));
    }
    Ok(())
}
