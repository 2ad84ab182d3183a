//! Selection of the best logits on the device, after a generation's changes. So only a few tokens
//! are read back, not a row of the whole vocabulary.

use anyhow::{Result, ensure};
use candle_core::Tensor;

use crate::arguments::{Change, SelectArguments, SelectRow};
use crate::machine::{COUNTERS, GpuRuntime, Grid, bytes_of};

/// Greatest number of tokens that are selected of a row.
pub const MOST_BEST: usize = 1024;
/// Number of logits in a thread block, and of its threads, see `select.cuh`.
const SLICE: usize = 2048;
const THREADS: usize = 256;

/// Selection parameters of a row of logits.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    /// Number of tokens to select, at most [`MOST_BEST`].
    pub count: usize,
    /// Changes of logits, at most one for each token.
    pub changes: &'a [Change],
    /// Bit mask of allowed tokens, from the lowest bit on; tokens beyond it are not allowed.
    /// `None`: all are.
    pub allowed: Option<&'a [u32]>,
}

/// Result of a selection.
#[derive(Clone, Debug, PartialEq)]
pub struct Best {
    /// Tokens with their changed logits, in descending order; among equal logits, the smaller token
    /// first.
    pub tokens: Vec<(u32, f32)>,
    /// The largest logit.
    pub largest: f32,
    /// `Σ exp(logit - largest)` over all allowed tokens.
    pub mass: f32,
    /// Whether a logit of an allowed token is NaN.
    pub is_broken: bool,
}

impl GpuRuntime {
    /// Selects the best of some rows of `logits`, `[rows, vocabulary]`.
    ///
    /// # Errors
    /// Too many tokens are requested, a row is out of range, memory is exhausted, or the device has
    /// failed.
    #[expect(unsafe_code, reason = "a kernel is launched")]
    pub fn best(&self, logits: &Tensor, wanted: &[(usize, Selection<'_>)]) -> Result<Vec<Best>> {
        let (rows, vocabulary) = logits.dims2()?;
        let most = wanted.iter().map(|(_, selection)| selection.count).max().unwrap_or(0);
        let is_known = (1..=MOST_BEST).contains(&most) && vocabulary > 0 && wanted.len() <= COUNTERS;
        ensure!(is_known, "invariant: up to {MOST_BEST} of the best, not {most} of {vocabulary}");
        let (mut places, mut changes, mut words) = (Vec::new(), Vec::new(), Vec::new());
        for (row, Selection { count, changes: own, allowed }) in wanted {
            ensure!(*row < rows, "invariant: row {row} of {rows}");
            places.push(SelectRow {
                row: *row as u32,
                count: *count as u32,
                first_change: changes.len() as u32,
                changes: own.len() as u32,
                first_word: words.len() as u32,
                words: allowed.map_or(0, |own| own.len() as u32),
                has_words: u32::from(allowed.is_some()),
                unused: 0,
            });
            changes.extend_from_slice(own);
            words.extend_from_slice(allowed.unwrap_or_default());
        }
        let mut bytes = bytes_of(&places).to_vec();
        let changes_at = bytes.len();
        bytes.extend_from_slice(bytes_of(&changes));
        let words_at = bytes.len();
        bytes.extend_from_slice(bytes_of(&words));
        let table = self.upload(&bytes)?;
        let (blocks, places) = (vocabulary.div_ceil(SLICE), wanted.len());
        let lists = self.memory(places * blocks * most * size_of::<u64>())?;
        let sums = self.memory(places * blocks * 4 * size_of::<f32>())?;
        let told = 4 + 2 * most;
        let out = self.memory(places * told * size_of::<u32>())?;
        let arguments = SelectArguments {
            logits: self.address(logits, rows * vocabulary)?,
            rows: table.address(),
            changes: table.address().after(changes_at),
            words: table.address().after(words_at),
            lists: lists.address(),
            sums: sums.address(),
            out: out.address(),
            done: self.counters()?,
            vocabulary: vocabulary as u32,
            most: most as u32,
        };
        let grid = Grid { blocks: [blocks, places, 1], threads: THREADS, shared: 0 };
        // SAFETY: rows are within the logits, changes and words are where the rows refer to, and
        // there is memory for the results of every block and row.
        unsafe { self.launch("select_best", grid, &arguments)? };
        let words = self.read(&out)?;
        let words: Vec<u32> =
            words.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
        Ok(words.chunks_exact(told).map(best).collect())
    }
}

/// Decodes the result of a row.
fn best(words: &[u32]) -> Best {
    let found = words[3] as usize;
    Best {
        tokens: words[4..].chunks_exact(2).take(found).map(|pair| (pair[0], f32::from_bits(pair[1]))).collect(),
        largest: f32::from_bits(words[0]),
        mass: f32::from_bits(words[1]),
        is_broken: words[2] != 0,
    }
}
