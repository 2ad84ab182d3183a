//! Re-encoding of rows: in pieces that fit into the fastest cache, on all cores.
//!
//! A piece is a number of complete groups or blocks, so its codes do not depend on the rest of the
//! row.
//! The results do not depend on how rows are divided.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use super::target::{Bytes, EncodedBuffers, EncodingTarget};
use super::{affine, float, ggml, micro};
use crate::{Dtype, Encoding, Weight};

/// Elements that are expanded at a time, if the source allows it; a multiple of every group and
/// block.
const PIECE: usize = 2048;

/// Minimum number of elements per core; fewer are not worth distributing.
const SHARE: usize = 1 << 16;

/// Source of the numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum NumberSource<'a> {
    /// Whole rows of float32.
    Floats(&'a [f32]),
    /// An encoded weight.
    Weight(&'a Weight<'a>),
}

/// Some rows of a source, and how they are encoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct EncodingRows<'a> {
    source: NumberSource<'a>,
    target: EncodingTarget,
    /// Index of the first row.
    start: usize,
    /// Number of rows.
    count: usize,
    /// Elements per row.
    columns: usize,
    /// Bytes of an encoded row.
    row: Bytes,
    /// Bytes of an encoded piece.
    piece: Bytes,
}

/// Rows that a thread takes and encodes.
type Share<'a, 'b> = Mutex<Option<(EncodingRows<'a>, EncodedBuffers<'b>)>>;

/// Permits for threads beside the callers of encoders. All encoders of the process together use at
/// most as many as there are further cores, since an import encodes several tensors at a time.
struct Helpers {
    count: usize,
}

impl Helpers {
    /// Acquires up to `wanted` permits; none if all are in use.
    fn acquire(wanted: usize) -> Self {
        static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, NonZero::get));
        let free = |used: usize| wanted.min((*CORES - 1).saturating_sub(used));
        let used = HELPERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| Some(used + free(used)));
        Self { count: free(used.unwrap_or_default()) }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        HELPERS.fetch_sub(self.count, Ordering::Relaxed);
    }
}

/// Permits of [`Helpers`] in use.
static HELPERS: AtomicUsize = AtomicUsize::new(0);

impl<'a> EncodingRows<'a> {
    /// Selects all rows of a source.
    ///
    /// # Panics
    /// If the target has no encoder, or the rows are not whole groups.
    pub(super) fn all(source: NumberSource<'a>, columns: usize, target: EncodingTarget) -> Self {
        assert!(super::can_encode(target.encoding), "there is no encoder for {}", target.encoding);
        assert!(float::can_encode(target.float), "sources of type {} cannot be encoded", target.float);
        let row = target.bytes(columns).unwrap_or_else(|e| panic!("cannot encode to {}: {e}", target.encoding));
        let piece = target.bytes(PIECE).unwrap_or_else(|e| panic!("cannot encode to {}: {e}", target.encoding));
        let count = match source {
            NumberSource::Floats(_) if columns == 0 => 0,
            NumberSource::Floats(values) => {
                assert!(values.len().is_multiple_of(columns), "{} elements are not rows of {columns}", values.len());
                values.len() / columns
            }
            NumberSource::Weight(weight) => weight.rows(),
        };
        Self { source, target, start: 0, count, columns, row, piece }
    }

    /// Returns the bytes of all encoded rows.
    pub(super) fn bytes(&self) -> Bytes {
        self.bytes_of(self.count)
    }

    fn bytes_of(&self, rows: usize) -> Bytes {
        Bytes { data: self.row.data * rows, scale: self.row.scale * rows, bias: self.row.bias * rows }
    }

    /// Encodes the rows, on several cores if there are enough of them.
    pub(super) fn encode(self, out: EncodedBuffers<'_>) {
        let shares = (self.count * self.columns / SHARE).min(self.count);
        if shares < 2 {
            return self.encode_here(out);
        }
        let helpers = Helpers::acquire(shares - 1);
        // Several shares for each thread, so that a slow core delays the others little.
        let shares = self.divided(out, shares.min(4 * (helpers.count + 1)));
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(share) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
                let share = share.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some((rows, out)) = share {
                    rows.encode_here(out);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..helpers.count {
                // If the system refuses a thread, the other threads encode its shares.
                if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
    }

    /// Divides the rows into shares of almost the same size.
    fn divided(mut self, mut out: EncodedBuffers<'_>, shares: usize) -> Vec<Share<'a, '_>> {
        let mut divided = Vec::with_capacity(shares);
        for left in (1..=shares).rev() {
            let count = self.count / left;
            let (upper, lower) = out.split_at(self.bytes_of(count));
            divided.push(Mutex::new(Some((Self { count, ..self }, upper))));
            (self.start, self.count) = (self.start + count, self.count - count);
            out = lower;
        }
        divided
    }

    /// Encodes on the current core. A row has complete groups or blocks, and rows are contiguous.
    /// A source without groups can therefore be encoded across row boundaries.
    fn encode_here(self, out: EncodedBuffers<'_>) {
        if self.count == 0 {
            return;
        }
        match self.source {
            NumberSource::Floats(values) => {
                self.encode_pieces(&values[self.start * self.columns..][..self.count * self.columns], out);
            }
            NumberSource::Weight(weight) => match weight.encoding() {
                Encoding::Plain(dtype) => {
                    let rows = weight.rows_of(weight.data, self.start, self.count);
                    self.encode_plain(dtype, rows, out);
                }
                _ => self.encode_anew(weight, out),
            },
        }
    }

    /// Expands and encodes row by row.
    fn encode_anew(&self, weight: &Weight<'_>, mut out: EncodedBuffers<'_>) {
        let mut buffer = vec![0.0; self.columns];
        for row in self.start..self.start + self.count {
            let (this, rest) = out.split_at(self.row);
            weight.decode_row(row, &mut buffer);
            self.encode_pieces(&buffer, this);
            out = rest;
        }
    }

    /// Expands and encodes plain elements piece by piece.
    fn encode_plain(&self, dtype: Dtype, bytes: &[u8], mut out: EncodedBuffers<'_>) {
        let mut buffer = [0.0; PIECE];
        let size = (dtype.bits() / 8) as usize;
        for piece in bytes.chunks(PIECE * size) {
            let values = &mut buffer[..piece.len() / size];
            float::decode(dtype, piece, values);
            out = self.encode_first(values, out);
        }
    }

    fn encode_pieces(&self, values: &[f32], mut out: EncodedBuffers<'_>) {
        for values in values.chunks(PIECE) {
            out = self.encode_first(values, out);
        }
    }

    /// Encodes a piece to the beginning of `out` and returns the rest of `out`.
    fn encode_first<'o>(&self, values: &[f32], out: EncodedBuffers<'o>) -> EncodedBuffers<'o> {
        if values.len() < PIECE {
            // The last piece uses all remaining space.
            encode_piece(values, self.target, out);
            return EncodedBuffers { data: &mut [], scale: &mut [], bias: &mut [] };
        }
        let (first, rest) = out.split_at(self.piece);
        encode_piece(values, self.target, first);
        rest
    }
}

/// Encodes whole groups or blocks.
fn encode_piece(values: &[f32], target: EncodingTarget, out: EncodedBuffers<'_>) {
    match target.encoding {
        Encoding::Plain(dtype) => float::encode(dtype, values, out.data),
        Encoding::Blocks(kind) => ggml::encode(kind, values, out.data),
        Encoding::Affine { bits, group } => {
            let layout = affine::CodeLayout { bits: usize::from(bits), group: group as usize };
            affine::encode(values, layout, target, out);
        }
        Encoding::Micro(micro) => micro::encode(values, micro, target, out),
        Encoding::BlockFp8 { .. } => unreachable!("`EncodingRows::all` refuses it"),
    }
}
