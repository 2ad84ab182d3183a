//! The n-grams of Qwen4-Exp: the sizes of their tables and the multipliers of their hashes, which
//! follow from the config, or are keys of a GGUF file.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::blueprint::check::{MAX_NGRAM, MAX_NGRAM_TABLES, MAX_NGRAM_TABLES_IN_ALL};
use crate::blueprint::{NgramEmbedding, Tensor};
use crate::config_json::{Config, fail};
use crate::gguf_keys::{self, Keys};
use crate::{Error, TensorNames};

/// Name of the tables of a GGUF file, which has them for one layer.
pub(super) const TABLE: &str = "model.ngram_embedding.weight";

/// The n-grams of a layer.
pub(super) struct Ngrams {
    pub(super) layer: usize,
    /// Number of positions that the convolution multiplies.
    pub(super) kernel: u64,
    pub(super) embedding: NgramEmbedding,
}

/// Reads the n-grams of a GGUF file; `None` if it has none.
pub(super) fn of_gguf(keys: Keys<'_>, layers: usize) -> Result<Option<Ngrams>, Error> {
    let Some(listed) = keys.numbers("ple.layers", 1)?.filter(|listed| !listed.is_empty()) else { return Ok(None) };
    let layer = usize::try_from(listed[0]).ok().filter(|layer| *layer < layers);
    let layer = layer.ok_or_else(|| {
        let name = keys.name("ple.layers");
        gguf_keys::fail(format!("`{name}` has {}, expected a layer from 0 to {}", listed[0], layers - 1))
    })?;
    let list = |key: &str, count: u64| -> Result<Vec<u64>, Error> {
        let found = keys.numbers(key, count as usize)?.filter(|found| found.len() as u64 == count);
        found.ok_or_else(|| gguf_keys::fail(format!("`{}` is no list of {count} numbers", keys.name(key))))
    };
    let (size, heads) = (keys.required("ple.ngram_size")?, keys.required("ple.heads_per_ngram")?);
    let tables = check_tables(size, heads).map_err(gguf_keys::fail)?;
    let sizes = list("ple.head_vocab_sizes", tables)?;
    // Each table follows the one before it.
    let mut end = 0u64;
    for (first, size) in list("ple.head_offsets", tables)?.into_iter().zip(&sizes) {
        if first != end {
            let name = keys.name("ple.head_offsets");
            return Err(gguf_keys::fail(format!("`{name}` has {first}, expected {end}, the end of the table before")));
        }
        end = end.saturating_add(*size);
    }
    // The token in place of a picture; pictures are not read yet.
    keys.unsigned("ple.image_token_id")?;
    let embedding = NgramEmbedding {
        tables: vec![Tensor::named(TABLE)],
        width: keys.required("embedding_length_per_layer_input")?,
        multipliers: list("ple.layer_multipliers", size)?,
        sizes,
        end: keys.required("ple.eos_token_id")?,
    };
    Ok(Some(Ngrams { layer, kernel: keys.required("ple.conv_kernel")?, embedding }))
}

/// Returns the number of tables of n-grams of up to `size` tokens, `heads` of each.
fn check_tables(size: u64, heads: u64) -> Result<u64, String> {
    let tables = heads.saturating_mul(size.saturating_sub(1));
    if (2..=MAX_NGRAM as u64).contains(&size) && (1..=MAX_NGRAM_TABLES).contains(&tables) {
        return Ok(tables);
    }
    Err(format!(
        "there are {heads} tables of each of the n-grams of 2 to {size} tokens, at most {MAX_NGRAM_TABLES} in all"
    ))
}

/// Reads the n-grams of a config; `layers` is the number of layers.
pub(super) fn of_config(
    config: Config<'_>,
    names: &TensorNames,
    [vocabulary, layers]: [u64; 2],
) -> Result<Vec<Ngrams>, Error> {
    let with_ngrams = layers_with_ngrams(config, layers)?;
    if with_ngrams.is_empty() {
        return Ok(Vec::new());
    }
    let mut sizes = TableSizes::read(config, vocabulary)?;
    let tables = sizes.tables().saturating_mul(with_ngrams.len() as u64);
    if tables > MAX_NGRAM_TABLES_IN_ALL {
        return Err(fail(format!("there are {tables} tables of n-grams, at most {MAX_NGRAM_TABLES_IN_ALL}")));
    }
    let of_layer = |layer: usize| {
        let module = format!("model.layers.{layer}.ple.ple_embedding.ngram_embedding");
        Ok(Ngrams { layer, kernel: sizes.kernel, embedding: sizes.next(names, &module)? })
    };
    with_ngrams.into_iter().map(of_layer).collect()
}

/// Returns the indexes of the layers with n-grams, in ascending order. The config counts layers
/// from 1.
fn layers_with_ngrams(config: Config<'_>, layers: u64) -> Result<BTreeSet<usize>, Error> {
    let listed = config.list("ple_layer_ids")?.unwrap_or_default();
    let index = |id: &Value| {
        let own = id.as_u64().filter(|own| (1..=layers).contains(own));
        let own = own.ok_or_else(|| fail(format!("`ple_layer_ids` has {id}, expected layers from 1 to {layers}")))?;
        Ok(own as usize - 1)
    };
    listed.iter().map(index).collect()
}

/// Parameters of n-grams, and the tables that are made next.
struct TableSizes {
    /// Greatest number of tokens of an n-gram.
    size: usize,
    /// Number of tables of n-grams of each number of tokens.
    heads: u64,
    /// Elements of the embedding of a token.
    embedded: u64,
    kernel: u64,
    /// Number of tensors of a layer's tables.
    parts: u64,
    seed: u64,
    vocabulary: u64,
    end: u64,
    /// Number of layers with n-grams so far.
    layer: u64,
    /// The sizes of tables are the primes that follow this number.
    last: u64,
}

impl TableSizes {
    fn read(config: Config<'_>, vocabulary: u64) -> Result<Self, Error> {
        let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
        let (size, heads) = (number("ngram_size", 3)?, number("heads_per_ngram", 8)?);
        let base = number("ngram_vocab_size_base", 20_000_000)?;
        let hidden = config.required("hidden_size")?;
        check_tables(size, heads).map_err(fail)?;
        if base == 0 || base > MAX_TABLE_ROWS {
            return Err(fail(format!("`ngram_vocab_size_base` is {base}, expected 1 to {MAX_TABLE_ROWS}")));
        }
        let end = match config.value("eos_token_id") {
            Some(Value::Array(all)) => all.first().and_then(Value::as_u64),
            other => other.and_then(Value::as_u64),
        };
        Ok(Self {
            size: size as usize,
            heads,
            embedded: number("ple_embed_dim", hidden)?,
            kernel: number("ple_conv_kernel_size", 4)?,
            parts: number("split_ngram_parts", 512)?,
            seed: number("seed", 1234)?,
            vocabulary,
            end: end.ok_or_else(|| fail("`eos_token_id` is missing, which n-grams need"))?,
            layer: 0,
            last: base - 1,
        })
    }

    /// Returns the number of tables of a layer.
    fn tables(&self) -> u64 {
        self.heads * (self.size as u64 - 1)
    }

    /// Returns the tables of the next layer, below a module.
    fn next(&mut self, names: &TensorNames, module: &str) -> Result<NgramEmbedding, Error> {
        let tables = self.tables();
        let sizes: Vec<u64> = (0..tables).map(|_| self.next_prime()).collect();
        let whole = format!("{module}.weight");
        let tensors = if names.has(&whole) {
            vec![Tensor::named(whole)]
        } else {
            // transformers stores as many tensors as there are parts, or fewer for small tables.
            let parts = (0..self.parts.min(MAX_PARTS)).map(|part| format!("{module}.shard_{part}.weight"));
            parts
                .take_while(|name| *name == format!("{module}.shard_0.weight") || names.has(name))
                .map(Tensor::named)
                .collect()
        };
        let multipliers = self.multipliers();
        self.layer += 1;
        Ok(NgramEmbedding {
            tables: tensors,
            width: self.embedded.checked_div(tables).filter(|width| width * tables == self.embedded).ok_or_else(
                || fail(format!("`ple_embed_dim` is {}, expected a multiple of the {tables} tables", self.embedded)),
            )?,
            multipliers,
            sizes,
            end: self.end,
        })
    }

    fn next_prime(&mut self) -> u64 {
        self.last += 1;
        while !is_prime(self.last) {
            self.last += 1;
        }
        self.last
    }

    /// Returns odd numbers whose products with token ids are less than 2⁶³.
    fn multipliers(&self) -> Vec<u64> {
        let half = (i64::MAX as u64 / self.vocabulary.max(1) / 2).max(1);
        let base = self.seed.wrapping_add(LAYER_STEP.wrapping_mul(self.layer));
        let number = |index: u64| split_mix(base.wrapping_add(STEP.wrapping_mul(index)));
        (1..=self.size as u64).map(|index| 2 * (number(index) % half) + 1).collect()
    }
}

/// Limit of `ngram_vocab_size_base`: bounds the time for finding primes.
const MAX_TABLE_ROWS: u64 = 1 << 32;
/// Limit of the number of tensors of a layer's tables.
const MAX_PARTS: u64 = 1 << 16;
/// Distance of the seeds of two layers.
const LAYER_STEP: u64 = 10_007;
/// Step of the generator `SplitMix64` (Steele, Lea and Flood 2014).
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The output function of `SplitMix64`, with a step before it.
fn split_mix(number: u64) -> u64 {
    let mut x = number.wrapping_add(STEP);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn is_prime(number: u64) -> bool {
    if number < 3 || number.is_multiple_of(2) {
        return number == 2;
    }
    (3..).step_by(2).take_while(|divisor| divisor * divisor <= number).all(|divisor| !number.is_multiple_of(divisor))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The buffers that transformers 5.24 makes for `ngram_size` 3, two heads, a vocabulary of 320,
    /// sizes from 64 on, and two layers.
    #[test]
    fn hashes_are_those_of_transformers() {
        let mut sizes = TableSizes {
            size: 3,
            heads: 2,
            embedded: 16,
            kernel: 4,
            parts: 1,
            seed: 1234,
            vocabulary: 320,
            end: 3,
            layer: 0,
            last: 63,
        };
        let first = sizes.next(&TensorNames::default(), "a").expect("tables");
        let second = sizes.next(&TensorNames::default(), "b").expect("tables");
        assert_eq!((first.sizes, first.width), (vec![67, 71, 73, 79], 4));
        assert_eq!(second.sizes, [83, 89, 97, 101]);
        assert_eq!(first.multipliers, MULTIPLIERS[0]);
        assert_eq!(second.multipliers, MULTIPLIERS[1]);
        assert_eq!(first.tables, [Tensor::named("a.shard_0.weight")]);
    }

    const MULTIPLIERS: [[u64; 3]; 2] = [
        [25_912_437_101_140_037, 21_043_097_849_633_001, 26_491_075_874_708_125],
        [10_031_986_262_627_403, 17_031_287_529_366_677, 4_282_197_419_670_581],
    ];
}
