//! Embeddings of hashed n-grams of tokens (Engram, arXiv 2601.07372).

use serde::{Deserialize, Serialize};

use super::{Norm, Projection, Tensor};

/// Part of a layer that adds the n-grams which end at a token to all streams, before the mixer.
///
/// With the embedding `e` of the n-grams, the normalized streams `q`, `k = key_norm(key(e))` and
/// `g = k[s] · q[s] / sqrt(hidden)` for each stream `s`, it computes
/// `v[s] = sigmoid(sign(g) · sqrt(max(|g|, 1e-6))) · value(e)` and adds
/// `v + silu(convolution(convolution_norm(v)))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NgramInput {
    /// Tables of embeddings and their hashes.
    pub embedding: NgramEmbedding,
    /// `[count · hidden, width of the embedding]`.
    pub key: Projection,
    /// `[hidden, width of the embedding]`.
    pub value: Projection,
    /// `[count · hidden]`: norms of the keys.
    pub key_norm: Norm,
    /// `[count · hidden]`: norms of the streams.
    pub query_norm: Norm,
    /// `[count · hidden]`: norms of the inputs of the convolution.
    pub convolution_norm: Norm,
    /// Number of positions that the convolution multiplies.
    pub kernel: u64,
    /// Distance of these positions.
    pub dilation: u64,
    /// `[count · hidden, kernel]`, or with a further dimension of 1 before or after `kernel`.
    pub convolution: Tensor,
}

/// Embeddings of n-grams: one row of each of several tables, side by side.
///
/// The row of an n-gram in a table is `(t₀·m₀ ⊕ t₁·m₁ ⊕ …) mod size`, with the token `t₀`, the
/// tokens before it, `t₁` and so on, the multipliers `m` and the exclusive or `⊕` of 64-bit
/// numbers. Tokens before the beginning of a text are `end`; a text begins behind each token `end`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NgramEmbedding {
    /// Tensors with rows of `width` elements: the rows of all tables, one table after the other,
    /// and perhaps unused ones behind them.
    pub tables: Vec<Tensor>,
    /// Elements of a row.
    pub width: u64,
    /// Multipliers of the token and of each token before it.
    pub multipliers: Vec<u64>,
    /// Number of rows of each table: first those of 2-grams, then those of 3-grams, and so on; as
    /// many tables of each.
    pub sizes: Vec<u64>,
    /// Token that ends a text.
    pub end: u64,
}

impl NgramEmbedding {
    /// Returns the number of rows of all tables.
    pub fn rows(&self) -> u64 {
        self.sizes.iter().fold(0, |sum, size| sum.saturating_add(*size))
    }

    /// Returns the number of elements of the embedding of a token.
    pub fn embedded(&self) -> u64 {
        self.width.saturating_mul(self.sizes.len() as u64)
    }

    /// Returns the rows of a token, one of each table. `token(n)` returns the `n`th token before
    /// it, or `None` if the sequence begins behind that.
    pub fn rows_of(&self, token: impl Fn(usize) -> Option<u32>) -> impl Iterator<Item = u64> {
        let mut hashes = Vec::with_capacity(self.multipliers.len());
        let (mut hash, mut has_ended) = (0, false);
        for (back, multiplier) in self.multipliers.iter().enumerate() {
            let own = token(back).map(u64::from).filter(|_| !has_ended).unwrap_or(self.end);
            has_ended |= back > 0 && own == self.end;
            hash ^= own.wrapping_mul(*multiplier);
            hashes.push(hash);
        }
        let each = self.sizes.len() / (self.multipliers.len() - 1).max(1);
        let mut first = 0;
        self.sizes.iter().enumerate().map(move |(table, size)| {
            let row = first + hashes[1 + table / each.max(1)] % size;
            first += size;
            row
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_begins_behind_the_token_that_ends_one() {
        let own =
            NgramEmbedding { tables: Vec::new(), width: 4, multipliers: vec![3, 5, 7], sizes: vec![11, 29], end: 2 };
        let rows = |text: &[u32]| -> Vec<u64> {
            own.rows_of(|back| text.len().checked_sub(back + 1).map(|at| text[at])).collect()
        };
        assert_eq!(rows(&[8, 9, 6]), [8, 18]);
        assert_eq!(rows(&[8, 2, 6]), rows(&[6]), "the tokens before the end do not count");
        assert_eq!(rows(&[6]), [2, 33]);
        assert_eq!(rows(&[8, 9, 2]), [10, 30], "the end belongs to its text");
        assert_eq!((own.embedded(), own.rows()), (8, 40));
    }
}
