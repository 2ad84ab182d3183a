//! The attention of `DeepSeek` V4, and its streams.

use serde_json::Value;

use super::{DEFAULTS, first_items, missing, required_float};
use crate::blueprint::{
    BalancedConnections, BalancedStreams, Blueprint, CompressedAttention, CompressedEntries, Compression, EntryIndexer,
    HeadLayout, LayerStreams, LowRankQuery, Matrices, Mixer, Norm, NormKind, Projection, Rows, StreamNumbers, Streams,
    Tensor,
};
use crate::config_json::{Config, fail, share};
use crate::dense::{Dense, layer_norm, projection, unweighted_norm};
use crate::gguf_keys::{self, Keys};
use crate::{Error, Rope, RopeScaling, TensorNames};

/// Share of a head that is rotated, if the config states none.
const ROTATED: f64 = 64.0 / 512.0;
/// Number of positions of an entry of the two kinds of attention, if the config states none.
const RATIOS: [u64; 2] = [4, 128];

/// The kind of attention of a layer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AttentionKind {
    /// To a window only.
    Sliding,
    /// To entries of few positions, among which an indexer chooses.
    Sparse,
    /// To entries of many positions.
    Heavy,
}

impl AttentionKind {
    /// Returns the kind of a layer with entries of so many positions in published models.
    fn of_ratio(ratio: u64) -> Option<Self> {
        match ratio {
            0 => Some(Self::Sliding),
            4 => Some(Self::Sparse),
            128 => Some(Self::Heavy),
            _ => None,
        }
    }
}

/// Parameters of the layers.
pub(super) struct Sizes {
    kinds: Vec<AttentionKind>,
    /// Number of positions of an entry of sparse and of heavy attention.
    ratios: [u64; 2],
    rope_dim: u64,
    /// Of layers with a window only, and of the others.
    ropes: [Rope; 2],
    window: u64,
    query_rank: u64,
    groups: u64,
    group_rank: u64,
    index_heads: u64,
    index_dim: u64,
    index_count: u64,
    pub(super) streams: u64,
    iterations: u64,
    /// Constant of the shares of streams.
    shares_epsilon: f64,
}

impl Sizes {
    pub(super) fn of_config(config: Config<'_>, dense: &Dense) -> Result<Self, Error> {
        let (layers, ratios) = (dense.layers.len(), ratios(config)?);
        let kinds = kinds(config, layers)?;
        let (ropes, stated) = ropes(config)?;
        let by_factor = config.float("partial_rotary_factor")?.or(stated).map(|factor| share(dense.head_dim, factor));
        let size = config.unsigned("qk_rope_head_dim")?;
        if let (Some(size), Some(by_factor)) = (size, by_factor)
            && size != by_factor
        {
            return Err(fail(format!("`qk_rope_head_dim` is {size}, but `partial_rotary_factor` means {by_factor}")));
        }
        let rope_dim = by_factor.or(size).unwrap_or_else(|| share(dense.head_dim, ROTATED));
        let number = |key: &str| config.required(key);
        Ok(Self {
            kinds,
            ratios,
            rope_dim,
            ropes,
            window: number("sliding_window")?,
            query_rank: number("q_lora_rank")?,
            groups: number("o_groups")?,
            group_rank: number("o_lora_rank")?,
            index_heads: number("index_n_heads")?,
            index_dim: number("index_head_dim")?,
            index_count: number("index_topk")?,
            streams: number("hc_mult")?,
            iterations: number("hc_sinkhorn_iters")?,
            shares_epsilon: required_float(config, "hc_eps")?,
        })
    }

    pub(super) fn of_gguf(keys: Keys<'_>, layers: usize) -> Result<Self, Error> {
        let name = keys.name("attention.compress_ratios");
        let ratios = keys.numbers_of_layers("attention.compress_ratios", layers)?;
        let ratios = ratios.ok_or_else(|| missing(keys, "attention.compress_ratios"))?;
        let kind = |ratio: u64| {
            let unknown = || gguf_keys::fail(format!("`{name}` has {ratio}, expected 0, 4 or 128"));
            AttentionKind::of_ratio(ratio).ok_or_else(unknown)
        };
        let main = keys.rope()?;
        let float = |key: &str| keys.float(key)?.ok_or_else(|| missing(keys, key));
        let theta = float("attention.compress_rope_freq_base")?;
        // llama.cpp takes YaRN's growth back.
        let of_entries = Rope { theta, magnitude: 1.0, ..main.clone() };
        let number = |key: &str| keys.required(key);
        Ok(Self {
            kinds: ratios.into_iter().map(kind).collect::<Result<_, _>>()?,
            ratios: RATIOS,
            rope_dim: number("rope.dimension_count")?,
            ropes: [Rope::plain(main.theta), of_entries],
            window: number("attention.sliding_window")?,
            query_rank: number("attention.q_lora_rank")?,
            groups: number("attention.output_group_count")?,
            group_rank: number("attention.output_lora_rank")?,
            index_heads: number("attention.indexer.head_count")?,
            index_dim: number("attention.indexer.key_length")?,
            index_count: number("attention.indexer.top_k")?,
            streams: number("hyper_connection.count")?,
            iterations: number("hyper_connection.sinkhorn_iterations")?,
            shares_epsilon: float("hyper_connection.epsilon")?,
        })
    }

    /// Replaces the mixers of a model whose names have this root, and connects its layers to
    /// streams.
    pub(super) fn add(&self, names: &TensorNames, root: &str, head_dim: u64, blueprint: &mut Blueprint) {
        let epsilon = blueprint.epsilon();
        let numbers = |module: &str| StreamNumbers {
            norm: unweighted_norm(epsilon),
            projection: bare_projection(&format!("{module}fn")),
            factors: Tensor::named(format!("{module}scale")),
            bias: Tensor::named(format!("{module}base")),
        };
        let heads = blueprint.attentions().next().map_or(0, |own| own.heads);
        for (index, layer) in blueprint.layers.iter_mut().enumerate() {
            let prefix = format!("{root}layers.{index}");
            let own = LayerNames { names, module: format!("{prefix}.attn"), epsilon };
            layer.mixer = Mixer::Compressed(Box::new(self.mixer(&own, self.kinds[index], [heads, head_dim])));
            layer.streams = Some(LayerStreams::Balanced(Box::new(BalancedConnections {
                mixer: numbers(&format!("{prefix}.hc_attn_")),
                ffn: numbers(&format!("{prefix}.hc_ffn_")),
            })));
        }
        let leave = if root.is_empty() { "hc_head_" } else { "model.hc_head.hc_" };
        blueprint.streams = Some(Streams::Balanced(Box::new(BalancedStreams {
            count: self.streams,
            epsilon: self.shares_epsilon,
            iterations: self.iterations,
            leave: numbers(leave),
        })));
    }

    fn mixer(&self, own: &LayerNames<'_>, kind: AttentionKind, [heads, head_dim]: [u64; 2]) -> CompressedAttention {
        let rope = Rope { dimension: None, ..self.ropes[usize::from(kind != AttentionKind::Sliding)].clone() };
        let all = self.groups.saturating_mul(self.group_rank);
        let rows = Rows { first: 0, count: all, block: self.group_rank, stride: self.group_rank };
        let key_norm = if own.names.has(&format!("{}.kv_norm.weight", own.module)) { "kv_norm" } else { "norm" };
        CompressedAttention {
            heads,
            head_dim,
            rope_dim: self.rope_dim,
            layout: HeadLayout::Interleaved,
            scale: (head_dim as f64).powf(-0.5),
            window: self.window,
            rope,
            query: LowRankQuery {
                rank: self.query_rank,
                down: own.projection("wq_a"),
                norm: own.norm("q_norm"),
                up: own.projection("wq_b"),
            },
            query_norm: unweighted_norm(own.epsilon),
            key: own.projection("wkv"),
            key_norm: own.norm(key_norm),
            sinks: Tensor::named(format!("{}.attn_sink", own.module)),
            groups: self.groups,
            rank: self.group_rank,
            group_outputs: Matrices::Blocks(Tensor::blocks(format!("{}.wo_a.weight", own.module), rows)),
            output: own.projection("wo_b"),
            entries: (kind != AttentionKind::Sliding).then(|| Box::new(self.entries(own, kind))),
        }
    }

    fn entries(&self, own: &LayerNames<'_>, kind: AttentionKind) -> CompressedEntries {
        let is_sparse = kind == AttentionKind::Sparse;
        let compression = |module: &str| Compression {
            every: self.ratios[usize::from(!is_sparse)],
            overlaps: is_sparse,
            value: own.projection(&format!("{module}.wkv")),
            gate: own.projection(&format!("{module}.wgate")),
            bias: Tensor::named(format!("{}.{module}.ape", own.module)),
            norm: own.norm(&format!("{module}.norm")),
        };
        let indexer = is_sparse.then(|| EntryIndexer {
            heads: self.index_heads,
            head_dim: self.index_dim,
            count: self.index_count,
            query: own.projection("indexer.wq_b"),
            weights: own.projection("indexer.weights_proj"),
            compression: compression("indexer.compressor"),
        });
        CompressedEntries { compression: compression("compressor"), indexer }
    }
}

/// Names of the tensors of a layer's attention.
struct LayerNames<'a> {
    names: &'a TensorNames,
    module: String,
    epsilon: f64,
}

impl LayerNames<'_> {
    fn projection(&self, name: &str) -> Projection {
        projection(self.names, &format!("{}.{name}", self.module))
    }

    fn norm(&self, name: &str) -> Norm {
        Norm { kind: NormKind::Rms, ..layer_norm(self.names, &format!("{}.{name}", self.module), self.epsilon) }
    }
}

/// Returns a projection whose tensor has the name of its module.
fn bare_projection(name: &str) -> Projection {
    Projection { module: name.to_owned(), weight: Tensor::named(name), bias: None, clamps: None }
}

/// Returns the number of positions of an entry of sparse and of heavy attention.
fn ratios(config: Config<'_>) -> Result<[u64; 2], Error> {
    const KEYS: [[&str; 2]; 2] =
        [["compressed_sparse_attention", "compress_rate_csa"], ["heavily_compressed_attention", "compress_rate_hca"]];
    let newer = config.object("compress_rates")?;
    let mut ratios = RATIOS;
    for (ratio, [key, older]) in ratios.iter_mut().zip(KEYS) {
        let own = newer.map(|own| own.required(key)).transpose()?;
        *ratio = config.unsigned(older)?.or(own).unwrap_or(*ratio);
    }
    Ok(ratios)
}

/// Returns the kind of attention of each layer: by its type, by the number of positions of its
/// entries, or else heavy in the first two layers, then alternating.
fn kinds(config: Config<'_>, layers: usize) -> Result<Vec<AttentionKind>, Error> {
    let of_type = |kind: &Value| match kind.as_str() {
        Some("sliding_attention") => Ok(AttentionKind::Sliding),
        Some("compressed_sparse_attention") => Ok(AttentionKind::Sparse),
        Some("heavily_compressed_attention") => Ok(AttentionKind::Heavy),
        _ => Err(fail(format!(
            "`layer_types` has {kind}, expected sliding_attention, compressed_sparse_attention or heavily_compressed_attention"
        ))),
    };
    let of_ratio = |ratio: &Value| {
        let unknown = || fail(format!("`compress_ratios` has {ratio}, expected 0, 4 or 128"));
        ratio.as_u64().and_then(AttentionKind::of_ratio).ok_or_else(unknown)
    };
    let read =
        |items: &[Value], kind: &dyn Fn(&Value) -> Result<AttentionKind, Error>| items.iter().map(kind).collect();
    let by_ratio = first_items(config, "compress_ratios", layers)?.map(|items| read(items, &of_ratio)).transpose()?;
    let by_type = first_items(config, "layer_types", layers)?.map(|items| read(items, &of_type)).transpose()?;
    if by_ratio.is_some() && by_type.is_some() && by_ratio != by_type {
        return Err(fail("`layer_types` and `compress_ratios` give some layers different kinds of attention"));
    }
    if let Some(kinds) = by_type.or(by_ratio) {
        return Ok(kinds);
    }
    Ok((0..layers)
        .map(|layer| if layer > 1 && layer % 2 == 1 { AttentionKind::Sparse } else { AttentionKind::Heavy })
        .collect())
}

/// Returns the rotary embedding of layers with a window only, and of the others; and the share of a
/// head that is rotated, if it is stated there. The class does not multiply by `YaRN`'s growth
/// unless the config states the factor.
fn ropes(config: Config<'_>) -> Result<([Rope; 2], Option<f64>), Error> {
    let theta = config.float("rope_theta")?.unwrap_or(DEFAULTS.theta);
    let of_entries = required_float(config, "compress_rope_theta")?;
    if config.has_rope_of("main") && config.has_rope_of("compress") {
        let [main, compress] = ["main", "compress"].map(|label| config.rope(label, theta));
        let own = config.object("rope_parameters")?.map(|all| all.object("compress")).transpose()?.flatten();
        return Ok(([main?, compress?], own.map(|own| own.float("partial_rotary_factor")).transpose()?.flatten()));
    }
    let newer = config.object("rope_parameters")?;
    let scaling = if newer.is_some() { newer } else { config.object("rope_scaling")? };
    let factor = scaling.map(|own| own.float("attention_factor")).transpose()?.flatten();
    let stretched = config.rope("compress", theta)?;
    let is_yarn = matches!(stretched.scaling, RopeScaling::Yarn { .. });
    let magnitude = if is_yarn { factor.unwrap_or(1.0) } else { stretched.magnitude };
    Ok(([Rope::plain(theta), Rope { theta: of_entries, magnitude, ..stretched }], None))
}
