//! Qwen4-Exp (Qwen 3.8 Flash Next): the mixers and experts of Qwen 3.5 with several streams,
//! embeddings of hashed n-grams, and indexers that choose blocks of positions.

mod ngrams;

use ngrams::Ngrams;
use serde_json::Value;

use super::{qwen3_5, qwen3_next};

use crate::blueprint::{
    BlockIndexer, BlockRule, Blueprint, ConnectedStreams, GateFunction, LayerStreams, Mixer, NgramInput, Norm,
    NormKind, Residual, RouterScores, Rows, StreamConnection, StreamConnections, StreamMix, Streams, Tensor,
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
            ("per_layer_token_embd.weight", ngrams::TABLE),
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
    let ngrams = ngrams::of_config(config, names, [blueprint.vocabulary, attends.len() as u64])?;
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
    let ngrams = ngrams::of_gguf(keys, blueprint.layers.len())?;
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
        let count = blocks_of(budget, block).map_err(|reason| fail(format!("`indexer_budget` {reason}")))?;
        Ok(Some(Self { heads, head_dim, block, count }))
    }

    /// Reads the sizes of each layer. Layers whose number of positions of a block is 0 have no
    /// indexer.
    fn of_gguf(keys: Keys<'_>, layers: usize) -> Result<Vec<Option<Self>>, Error> {
        let sizes = ["head_count", "key_length", "top_k"];
        let [heads, head_dim, budget] = sizes.map(|key| keys.required(&format!("attention.indexer.{key}")));
        let (heads, head_dim, budget) = (heads?, head_dim?, budget?);
        let blocks = keys.numbers_of_layers("attention.compress_ratios", layers)?;
        let of_layer = |block: u64| -> Result<Option<Self>, Error> {
            if block == 0 {
                return Ok(None);
            }
            let name = keys.name("attention.indexer.top_k");
            let count = blocks_of(budget, block).map_err(|reason| gguf_keys::fail(format!("`{name}` {reason}")))?;
            Ok(Some(Self { heads, head_dim, block, count }))
        };
        blocks.map_or_else(|| Ok(vec![None; layers]), |blocks| blocks.into_iter().map(of_layer).collect())
    }
}

/// Returns the number of blocks of so many positions that an indexer chooses.
fn blocks_of(budget: u64, block: u64) -> Result<u64, String> {
    if block > 0 && budget > 0 && budget.is_multiple_of(block) {
        return Ok(budget / block);
    }
    Err(format!("is {budget}, expected a multiple of {block}, the number of positions of a block"))
}
