//! Qwen4-Exp (Qwen 3.8 Flash Next): the mixers and experts of Qwen 3.5 with several streams,
//! embeddings of hashed n-grams, and indexers that choose blocks of positions.

use serde_json::Value;

use super::{qwen3_5, qwen3_next};
use crate::blueprint::check::{MAX_NGRAM, MAX_NGRAM_TABLES};
use crate::blueprint::{
    BlockIndexer, BlockRule, Blueprint, ConnectedStreams, GateFunction, LayerStreams, Mixer, NgramEmbedding,
    NgramInput, Norm, NormKind, Residual, RouterScores, Rows, StreamConnection, StreamConnections, StreamMix, Streams,
    Tensor,
};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, layer_count, layer_norm, projection};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::{self, Keys};
use crate::name_tables::Table;
use crate::{Error, TensorNames, experts};

pub(super) const FAMILY: Family = Family {
    name: "qwen4_exp",
    model_types: &["qwen4_exp_text"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: NAMES,
        model_names: &[
            ("output_hc_norm.weight", "model.hyper_connection_mixer.hc_norm.weight"),
            ("output_hc_down.weight", "model.hyper_connection_mixer.input_mix_weight_down.weight"),
            ("output_hc_up.weight", "model.hyper_connection_mixer.input_mix_weight_up.weight"),
            ("per_layer_token_embd.weight", TABLE),
        ],
        ..GgufForm::not_yet("qwen4exp")
    },
    hugging_face: HuggingFaceForm::of("Qwen4ExpForCausalLM", "qwen4_exp_text"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(2), head_dim: Some(256), context: 32_768, theta: 10_000.0 };
const EXPERTS: experts::Defaults =
    experts::Defaults { count: 512, width: 512, top_k: 10, normalize: true, shared_width: Some(512) };
/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[("linear_num_value_heads", 32.0)];

/// Names of the tensors of layers in GGUF files.
const NAMES: Table = &[
    ("hc_attn_norm", "attn_hyper_connection.hc_norm"),
    ("hc_attn_down", "attn_hyper_connection.input_mix_weight_down"),
    ("hc_attn_up", "attn_hyper_connection.input_mix_weight_up"),
    ("hc_attn_inject", "attn_hyper_connection.block_inject_weight"),
    ("hc_ffn_norm", "mlp_hyper_connection.hc_norm"),
    ("hc_ffn_down", "mlp_hyper_connection.input_mix_weight_down"),
    ("hc_ffn_up", "mlp_hyper_connection.input_mix_weight_up"),
    ("hc_ffn_inject", "mlp_hyper_connection.block_inject_weight"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_a", "linear_attn.A"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
    ("indexer.q_proj", "self_attn.indexer.index_q_proj"),
    ("indexer.k_proj", "self_attn.indexer.index_k_proj"),
    ("indexer.q_norm", "self_attn.indexer.q_layernorm"),
    ("indexer.k_norm", "self_attn.indexer.k_layernorm"),
    ("ple_key", "ple.key_proj"),
    ("ple_value", "ple.value_proj"),
    ("ple_norm_key", "ple.norm_key"),
    ("ple_norm_query", "ple.norm_query"),
    ("ple_norm_conv", "ple.norm_conv"),
    ("ple_conv1d", "ple.conv1d"),
];
/// Name of the tables of a GGUF file, which has them for one layer.
const TABLE: &str = "model.ngram_embedding.weight";

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    let attends = attention_layers(config)?;
    let mut blueprint = qwen3_5::with_mixers_in(config, names, DEFAULTS, &attends)?;
    // Unlike in Qwen 3.5, heads are rotated as a whole unless the config states a part.
    if !config.says_rotated()? {
        for rope in blueprint.attentions_mut().filter_map(|attention| attention.rope.as_mut()) {
            rope.dimension = None;
        }
    }
    experts::from_config(config, names, &mut blueprint, &EXPERTS)?;
    let gate_function = match config.text("output_gate_type").or(config.text("hidden_act")).unwrap_or("silu") {
        "silu" => GateFunction::Silu,
        "sigmoid" => GateFunction::Sigmoid,
        other => return Err(fail(format!("`output_gate_type` is {other}, expected silu or sigmoid"))),
    };
    let shared = Shared {
        names,
        streams: config.unsigned("hc_count")?.unwrap_or(4),
        rank: config.unsigned("hc_lowrank")?.unwrap_or(320),
        epsilon: config.float("rms_norm_eps")?.unwrap_or(1e-6),
        offset: qwen3_next::norm_offset(config, names),
        gate_function,
    };
    let indexers = vec![IndexerSizes::read(config)?; attends.len()];
    let mut ngrams = Vec::new();
    let with_ngrams = ngram_layers(config, attends.len())?;
    if !with_ngrams.is_empty() {
        let mut tables = Tables::read(config, blueprint.vocabulary)?;
        for layer in with_ngrams {
            let module = format!("model.layers.{layer}.ple.ple_embedding.ngram_embedding");
            ngrams.push(Ngrams { layer, kernel: tables.kernel, embedding: tables.next(names, &module)? });
        }
    }
    Ok(shared.connected(blueprint, &indexers, ngrams))
}

/// Reads GGUF metadata with llama.cpp's constants: the gates of delta nets are sigmoids, and the
/// weights of the selected experts are divided by their sum. The converter adds the offset to the
/// weights of norms.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let mut blueprint = qwen3_5::with_mixers_of_gguf(keys, names)?;
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Softmax)?;
    let shared = Shared {
        names,
        streams: keys.required("hyper_connection.count")?,
        rank: keys.required("hyper_connection.low_rank")?,
        epsilon: keys.float("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5),
        offset: 0.0,
        gate_function: GateFunction::Sigmoid,
    };
    let indexers = IndexerSizes::of_gguf(keys, blueprint.layers.len())?;
    let ngrams = ngrams_of_gguf(keys, blueprint.layers.len())?;
    Ok(shared.connected(blueprint, &indexers, ngrams.into_iter().collect()))
}

/// Parameters that the layers share.
struct Shared<'a> {
    names: &'a TensorNames,
    streams: u64,
    rank: u64,
    epsilon: f64,
    /// Added to the weights of norms.
    offset: f64,
    /// Function of the gates of delta nets.
    gate_function: GateFunction,
}

/// The n-grams of a layer.
struct Ngrams {
    layer: usize,
    /// Number of positions that the convolution multiplies.
    kernel: u64,
    embedding: NgramEmbedding,
}

/// Returns for each layer whether it has attention. Published configs have another name for it.
fn attention_layers(config: Config<'_>) -> Result<Vec<bool>, Error> {
    let layers = layer_count(config.required("num_hidden_layers")?)? as u64;
    let attends = |kind: &Value| match kind.as_str() {
        Some("full_attention" | "indexed_attention") => Ok(true),
        Some("linear_attention") => Ok(false),
        _ => Err(fail(format!("`layer_types` has {kind}, expected linear_attention or indexed_attention"))),
    };
    let step = config.step("full_attention_interval", 4)?;
    let listed = config.per_layer("layer_types", layers, attends)?;
    Ok(listed.unwrap_or_else(|| (1..=layers).map(|layer| layer.is_multiple_of(step)).collect()))
}

impl Shared<'_> {
    /// Returns the model with the streams, the indexers of each layer and some n-grams.
    fn connected(&self, mut blueprint: Blueprint, indexers: &[Option<IndexerSizes>], ngrams: Vec<Ngrams>) -> Blueprint {
        for ((index, layer), indexer) in blueprint.layers.iter_mut().enumerate().zip(indexers) {
            let prefix = format!("model.layers.{index}");
            layer.streams = Some(LayerStreams::Connected(Box::new(StreamConnections {
                mixer: self.connection(&format!("{prefix}.attn_hyper_connection")),
                ffn: self.connection(&format!("{prefix}.mlp_hyper_connection")),
            })));
            (layer.mixer_residual, layer.ffn_residual) = (Residual::default(), Residual::default());
            match &mut layer.mixer {
                Mixer::DeltaNet(net) => net.gate_function = self.gate_function,
                Mixer::Attention(own) => {
                    let module = format!("{prefix}.self_attn.indexer");
                    own.indexer = indexer.map(|sizes| Box::new(self.indexer(&module, sizes)));
                }
                _ => {}
            }
        }
        for own in ngrams {
            let layer = own.layer;
            blueprint.layers[layer].ngrams = Some(Box::new(self.ngrams(&format!("model.layers.{layer}.ple"), own)));
        }
        let leave = self.mix("model.hyper_connection_mixer");
        blueprint.streams = Some(Streams::Connected(Box::new(ConnectedStreams { count: self.streams, leave })));
        // The mix of the streams is normalized.
        blueprint.norm = None;
        blueprint
    }

    fn norm(&self, module: &str) -> Norm {
        Norm { kind: NormKind::Rms, offset: self.offset, ..layer_norm(self.names, module, self.epsilon) }
    }

    fn mix(&self, module: &str) -> StreamMix {
        StreamMix {
            norm: self.norm(&format!("{module}.hc_norm")),
            rank: self.rank,
            down: projection(self.names, &format!("{module}.input_mix_weight_down")),
            up: projection(self.names, &format!("{module}.input_mix_weight_up")),
        }
    }

    fn connection(&self, module: &str) -> StreamConnection {
        let inject = projection(self.names, &format!("{module}.block_inject_weight"));
        StreamConnection { mix: self.mix(module), inject }
    }

    fn indexer(&self, module: &str, sizes: IndexerSizes) -> BlockIndexer {
        let IndexerSizes { heads, head_dim, block, count } = sizes;
        let own = |name: &str| projection(self.names, &format!("{module}.{name}"));
        let (both, queries) = (own("index_qk_proj"), heads.saturating_mul(head_dim));
        let [query, key] = if self.names.has(&format!("{module}.index_q_proj.weight")) {
            ["index_q_proj", "index_k_proj"].map(own)
        } else {
            [Rows::run(0, queries), Rows::run(queries, head_dim)].map(|rows| both.rows(rows))
        };
        BlockIndexer {
            heads,
            head_dim,
            block,
            count,
            rule: BlockRule::Mean,
            query,
            key,
            query_norm: self.norm(&format!("{module}.q_layernorm")),
            key_norm: self.norm(&format!("{module}.k_layernorm")),
        }
    }

    fn ngrams(&self, module: &str, ngrams: Ngrams) -> NgramInput {
        let own = |name: &str| projection(self.names, &format!("{module}.{name}"));
        let norm = |name: &str| self.norm(&format!("{module}.{name}"));
        NgramInput {
            key: own("key_proj"),
            value: own("value_proj"),
            key_norm: norm("norm_key"),
            query_norm: norm("norm_query"),
            convolution_norm: norm("norm_conv"),
            kernel: ngrams.kernel,
            dilation: ngrams.embedding.multipliers.len() as u64,
            convolution: Tensor::named(format!("{module}.conv1d.weight")),
            embedding: ngrams.embedding,
        }
    }
}

/// Sizes of the indexers.
#[derive(Clone, Copy)]
struct IndexerSizes {
    heads: u64,
    head_dim: u64,
    block: u64,
    count: u64,
}

impl IndexerSizes {
    /// Reads the sizes; `None` if there are no indexers.
    fn read(config: Config<'_>) -> Result<Option<Self>, Error> {
        const KEYS: [&str; 5] =
            ["indexer_n_heads", "indexer_head_dim", "indexer_compress_ratio", "indexer_budget", "indexer_kv_heads"];
        let mut sizes = [None; 5];
        for (size, key) in sizes.iter_mut().zip(KEYS) {
            *size = config.unsigned(key)?;
        }
        if sizes.iter().all(Option::is_none) {
            return Ok(None);
        }
        let [Some(heads), Some(head_dim), Some(block), Some(budget), Some(key_heads)] = sizes else {
            return Err(fail(format!("some of `{}` are missing, expected all of them", KEYS.join("`, `"))));
        };
        if key_heads != 1 {
            return Err(fail(format!("`indexer_kv_heads` is {key_heads}, expected 1")));
        }
        if block == 0 || !budget.is_multiple_of(block) {
            return Err(fail(format!(
                "`indexer_budget` is {budget}, expected a multiple of `indexer_compress_ratio`, {block}"
            )));
        }
        Ok(Some(Self { heads, head_dim, block, count: budget / block }))
    }

    /// Reads the sizes of each layer. Layers whose number of positions of a block is 0 have no
    /// indexer.
    fn of_gguf(keys: Keys<'_>, layers: usize) -> Result<Vec<Option<Self>>, Error> {
        let sizes = ["head_count", "key_length", "top_k"];
        let [heads, head_dim, budget] = sizes.map(|key| keys.required(&format!("attention.indexer.{key}")));
        let (heads, head_dim, budget) = (heads?, head_dim?, budget?);
        let blocks = keys.numbers_of_layers("attention.compress_ratios", layers)?;
        let of_layer = |block: u64| {
            let count = budget.checked_div(block)?;
            Some(Self { heads, head_dim, block, count })
        };
        Ok(blocks.map_or_else(|| vec![None; layers], |blocks| blocks.into_iter().map(of_layer).collect()))
    }
}

/// Reads the n-grams of a GGUF file; `None` if it has none.
fn ngrams_of_gguf(keys: Keys<'_>, layers: usize) -> Result<Option<Ngrams>, Error> {
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
    let rows = keys.gguf.tensors.iter().find(|tensor| tensor.name == "per_layer_token_embd.weight");
    let embedding = NgramEmbedding {
        tables: vec![Tensor::named(TABLE)],
        rows: rows.and_then(|tensor| tensor.dims.get(1).copied()).unwrap_or(end),
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

/// Returns the indexes of the layers with n-grams. The config counts layers from 1.
fn ngram_layers(config: Config<'_>, layers: usize) -> Result<Vec<usize>, Error> {
    let listed = config.list("ple_layer_ids")?.unwrap_or_default();
    let index = |id: &Value| {
        let index = id.as_u64().and_then(|id| usize::try_from(id.checked_sub(1)?).ok());
        index
            .filter(|index| *index < layers)
            .ok_or_else(|| fail(format!("`ple_layer_ids` has {id}, expected layers from 1 to {layers}")))
    };
    listed.iter().map(index).collect()
}

/// Parameters of n-grams, and the tables that are made next.
struct Tables {
    /// Greatest number of tokens of an n-gram.
    size: usize,
    /// Number of tables of n-grams of each number of tokens.
    heads: u64,
    /// Elements of the embedding of a token.
    embedded: u64,
    kernel: u64,
    /// The number of rows is a multiple of this one.
    multiple: u64,
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

impl Tables {
    fn read(config: Config<'_>, vocabulary: u64) -> Result<Self, Error> {
        let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
        let (size, heads) = (number("ngram_size", 3)?, number("heads_per_ngram", 8)?);
        let base = number("ngram_vocab_size_base", 20_000_000)?;
        let hidden = config.required("hidden_size")?;
        check_tables(size, heads).map_err(fail)?;
        if base == 0 || base > MOST_ROWS {
            return Err(fail(format!("`ngram_vocab_size_base` is {base}, expected 1 to {MOST_ROWS}")));
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
            multiple: number("make_ngram_vocab_size_divisible_by", 128)?.max(1),
            parts: number("split_ngram_parts", 512)?,
            seed: number("seed", 1234)?,
            vocabulary,
            end: end.ok_or_else(|| fail("`eos_token_id` is missing, which n-grams need"))?,
            layer: 0,
            last: base - 1,
        })
    }

    /// Returns the tables of the next layer, below a module.
    fn next(&mut self, names: &TensorNames, module: &str) -> Result<NgramEmbedding, Error> {
        let tables = self.heads * (self.size as u64 - 1);
        let sizes: Vec<u64> = (0..tables).map(|_| self.next_prime()).collect();
        let used: u64 = sizes.iter().sum();
        let whole = format!("{module}.weight");
        let tensors = if names.has(&whole) {
            vec![Tensor::named(whole)]
        } else {
            // transformers stores as many tensors as there are parts, or fewer for small tables.
            let parts = (0..self.parts.min(MOST_PARTS)).map(|part| format!("{module}.shard_{part}.weight"));
            parts
                .take_while(|name| *name == format!("{module}.shard_0.weight") || names.has(name))
                .map(Tensor::named)
                .collect()
        };
        let multipliers = self.multipliers();
        self.layer += 1;
        Ok(NgramEmbedding {
            tables: tensors,
            rows: used.next_multiple_of(self.multiple),
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
        let number = |index: u64| mixed(base.wrapping_add(STEP.wrapping_mul(index)));
        (1..=self.size as u64).map(|index| 2 * (number(index) % half) + 1).collect()
    }
}

/// Limit of `ngram_vocab_size_base`: bounds the time for finding primes.
const MOST_ROWS: u64 = 1 << 32;
/// Limit of the number of tensors of a layer's tables.
const MOST_PARTS: u64 = 1 << 16;
/// Distance of the seeds of two layers.
const LAYER_STEP: u64 = 10_007;
/// Step of the generator `SplitMix64` (Steele, Lea and Flood 2014).
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The output function of `SplitMix64`, with a step before it.
fn mixed(number: u64) -> u64 {
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
        let mut tables = Tables {
            size: 3,
            heads: 2,
            embedded: 16,
            kernel: 4,
            multiple: 8,
            parts: 1,
            seed: 1234,
            vocabulary: 320,
            end: 3,
            layer: 0,
            last: 63,
        };
        let first = tables.next(&TensorNames::default(), "a").expect("tables");
        let second = tables.next(&TensorNames::default(), "b").expect("tables");
        assert_eq!((first.sizes, first.rows, first.width), (vec![67, 71, 73, 79], 296, 4));
        assert_eq!((second.sizes, second.rows), (vec![83, 89, 97, 101], 376));
        assert_eq!(first.multipliers, MULTIPLIERS[0]);
        assert_eq!(second.multipliers, MULTIPLIERS[1]);
        assert_eq!(first.tables, [Tensor::named("a.shard_0.weight")]);
    }

    const MULTIPLIERS: [[u64; 3]; 2] = [
        [25_912_437_101_140_037, 21_043_097_849_633_001, 26_491_075_874_708_125],
        [10_031_986_262_627_403, 17_031_287_529_366_677, 4_282_197_419_670_581],
    ];
}
