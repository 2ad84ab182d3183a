//! `MiniMax` M3: experts with a shared one behind dense layers, norms of heads, and indexers that
//! choose blocks of positions in most layers.

use serde_json::Value;

use crate::blueprint::{
    Activation, BlockIndexer, BlockRule, Blueprint, Ffn, Gated, Mixer, Network, Norm, NormKind, RouterScores, Rows,
    SharedExpert,
};
use crate::config_json::{Config, fail};
use crate::dense::{Defaults, Dense, layer_norm, projection};
use crate::experts::{self, ExpertLayers, ExpertSizes, MODULES, SigmoidRouter};
use crate::family::{Family, GgufForm, HuggingFaceForm};
use crate::gguf_keys::Keys;
use crate::{Error, TensorNames};

pub(super) const FAMILY: Family = Family {
    name: "minimax_m3",
    model_types: &["minimax_m3_vl_text", "minimax_m3_vl"],
    read_config,
    gguf: &GgufForm {
        read: Some(read_gguf),
        names: &[
            ("ffn_norm", "post_attention_layernorm"),
            ("indexer.q_proj", "self_attn.indexer.q_proj"),
            ("indexer.k_proj", "self_attn.indexer.k_proj"),
            ("indexer.q_norm", "self_attn.indexer.q_norm"),
            ("indexer.k_norm", "self_attn.indexer.k_norm"),
        ],
        ..GgufForm::not_yet("minimax-m3")
    },
    hugging_face: HuggingFaceForm::of("MiniMaxM3VLForCausalLM", "minimax_m3_vl_text"),
};

const DEFAULTS: Defaults = Defaults { kv_heads: Some(4), head_dim: Some(128), context: 524_288, theta: 5_000_000.0 };
/// Numbers that the class has for missing keys.
const OF_CLASS: &[(&str, f64)] = &[("intermediate_size", 3072.0)];
/// Bound of the activation.
const LIMIT: f64 = 7.0;
/// Factor of gates inside their sigmoid, which the activation has.
const GATE_FACTOR: f64 = 1.702;

fn read_config(config: Config<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let config = config.with_defaults(OF_CLASS);
    let number = |key: &str, default: u64| Ok::<_, Error>(config.unsigned(key)?.unwrap_or(default));
    let mut dense = Dense::without_activation(config, DEFAULTS, config.required("num_hidden_layers")?)?;
    (dense.norm_offset, dense.head_norms) = (1.0, true);
    let factor = config.float("swiglu_alpha")?.unwrap_or(GATE_FACTOR);
    if factor != GATE_FACTOR {
        return Err(fail(format!("`swiglu_alpha` is {factor}, expected {GATE_FACTOR}")));
    }
    let activation = Activation::ClampedSilu { limit: config.float("swiglu_limit")?.unwrap_or(LIMIT) };
    let sizes = ExpertSizes {
        count: experts::count(config, 128)?,
        width: dense.intermediate,
        top_k: number("num_experts_per_tok", 4)?,
        activation,
    };
    let layers = dense.layers.len();
    let [dense_width, shared_width] =
        [number("dense_intermediate_size", 12_288)?, number("shared_intermediate_size", 3072)?];
    let (sparse, indexers) = (sparse_layers(config, layers)?, Indexers::read(config, layers)?);
    dense.activation = activation;
    dense.intermediate = dense_width;
    let offset = dense.norm_offset;
    let epsilon = dense.norm_epsilon;
    let mut blueprint = dense.blueprint(names);
    // Published models have the names of M2.
    let published = (0..layers).any(|layer| names.has(&format!("model.layers.{layer}.block_sparse_moe.gate.weight")));
    let (module, modules) = if published { ("block_sparse_moe", ["w1", "w3", "w2"]) } else { ("mlp", MODULES) };
    let all = ExpertLayers { sizes, sparse, module, modules, shared: Some(("shared_experts", shared_width)) };
    let rule = SigmoidRouter::normalized(config.float("routed_scaling_factor")?.unwrap_or(2.0));
    all.add(names, &mut blueprint, |router, module| {
        let beside = if published { "" } else { ".gate" };
        rule.set(router, names, format!("{module}{beside}.e_score_correction_bias"));
    });
    for layer in &mut blueprint.layers {
        match &mut layer.ffn {
            Ffn::Gated(own) => split(names, own),
            Ffn::Experts(own) => {
                if let Some(SharedExpert { ffn: Network::Gated(own), .. }) = &mut own.shared {
                    split(names, own);
                }
            }
            _ => {}
        }
    }
    indexers.add(names, &mut blueprint, [offset, epsilon]);
    Ok(blueprint)
}

/// Reads GGUF metadata with llama.cpp's constants: the bound of the activation, sigmoid scores,
/// weights of the selected experts divided by their sum. The converter adds the offset to the
/// weights of norms. Layers with the tensors of an indexer have one.
fn read_gguf(keys: Keys<'_>, names: &TensorNames) -> Result<Blueprint, Error> {
    let activation = Activation::ClampedSilu { limit: LIMIT };
    let dense = Dense { head_norms: true, activation, ..Dense::from_gguf(keys)? };
    let epsilon = dense.norm_epsilon;
    let mut blueprint = dense.blueprint(names);
    experts::from_gguf(keys, names, &mut blueprint, true, RouterScores::Sigmoid)?;
    // The tensors show which layers are dense.
    keys.unsigned("leading_dense_block_count")?;
    let sizes = ["head_count", "key_length", "block_size", "top_k", "local_blocks"];
    let [heads, head_dim, block, count, local] = sizes.map(|key| keys.required(&format!("attention.indexer.{key}")));
    let has = (0..blueprint.layers.len())
        .map(|layer| names.has(&format!("model.layers.{layer}.self_attn.indexer.q_proj.weight")))
        .collect();
    let indexers = Indexers { heads: heads?, head_dim: head_dim?, block: block?, count: count?, local: local?, has };
    indexers.add(names, &mut blueprint, [0.0, epsilon]);
    Ok(blueprint)
}

/// Splits the gate and `up` of a network, if they are stored together.
fn split(names: &TensorNames, own: &mut Gated) {
    let Some(module) = own.gate.module.strip_suffix("gate_proj") else { return };
    let both = projection(names, &format!("{module}gate_up_proj"));
    if names.has(&both.weight.name) {
        [own.gate, own.up] = [0, own.width].map(|first| both.rows(Rows::run(first, own.width)));
    }
}

/// Returns for each layer whether it has experts: by a list of types, or else by a list of numbers;
/// all layers if there is neither.
fn sparse_layers(config: Config<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    if config.value("mlp_layer_types").is_none()
        && let Some(sparse) = numbers(config, "moe_layer_freq", layers)?
    {
        return Ok(sparse);
    }
    experts::after_dense_layers(config, layers, 0)
}

/// Returns for each layer whether a list has a number other than 0; `None` without the list.
fn numbers(config: Config<'_>, key: &str, layers: usize) -> Result<Option<Vec<bool>>, Error> {
    let is_set = |item: &Value| match item.as_u64() {
        Some(number) => Ok(number > 0),
        None => Err(fail(format!("`{key}` has {item}, expected whole numbers"))),
    };
    config.per_layer(key, layers as u64, is_set)
}

/// The indexers of all layers.
struct Indexers {
    heads: u64,
    head_dim: u64,
    block: u64,
    count: u64,
    local: u64,
    /// For each layer, whether it has an indexer.
    has: Vec<bool>,
}

impl Indexers {
    /// Reads the keys of transformers, or those of published configs, which are in an object.
    fn read(config: Config<'_>, layers: usize) -> Result<Self, Error> {
        let published = config.object("sparse_attention_config")?;
        let number = |key: &str, old: &str, default: u64| -> Result<u64, Error> {
            let old = published.map(|own| own.unsigned(old)).transpose()?.flatten();
            Ok(old.or(config.unsigned(key)?).unwrap_or(default))
        };
        let is_sparse = |kind: &Value| match kind.as_str() {
            Some("minimax_m3_sparse") => Ok(true),
            Some("full_attention") => Ok(false),
            _ => Err(fail(format!("`layer_types` has {kind}, expected minimax_m3_sparse or full_attention"))),
        };
        let mut has = config.per_layer("layer_types", layers as u64, is_sparse)?;
        if let Some(own) = published {
            let listed = numbers(own, "sparse_attention_freq", layers)?;
            has = has.or(listed);
            check(own)?;
            // The class has indexers without values only.
            let without_values = numbers(own, "sparse_disable_index_value", layers)?.unwrap_or(vec![true; layers]);
            let with_indexer = has.iter().flatten().zip(&without_values);
            if with_indexer.into_iter().any(|(has, without_values)| *has && !without_values) {
                return Err(fail("`sparse_disable_index_value` is 0 for a layer with an indexer, expected 1"));
            }
        }
        Ok(Self {
            heads: number("index_n_heads", "sparse_num_index_heads", 4)?,
            head_dim: number("index_head_dim", "sparse_index_dim", 128)?,
            block: number("index_block_size", "sparse_block_size", 128)?,
            count: number("index_topk_blocks", "sparse_topk_blocks", 16)?,
            local: number("index_local_blocks", "sparse_local_block", 1)?,
            has: has.unwrap_or_else(|| vec![false; layers]),
        })
    }

    /// Adds the indexers, whose norms have this offset and epsilon.
    fn add(&self, names: &TensorNames, blueprint: &mut Blueprint, norms: [f64; 2]) {
        for (index, layer) in blueprint.layers.iter_mut().enumerate().filter(|(index, _)| self.has[*index]) {
            if let Mixer::Attention(own) = &mut layer.mixer {
                own.indexer = Some(Box::new(self.of_layer(names, index, norms)));
            }
        }
    }

    fn of_layer(&self, names: &TensorNames, layer: usize, [offset, epsilon]: [f64; 2]) -> BlockIndexer {
        let attention = format!("model.layers.{layer}.self_attn");
        let published = names.has(&format!("{attention}.index_q_proj.weight"));
        let own = |name: &str| {
            if published { format!("{attention}.index_{name}") } else { format!("{attention}.indexer.{name}") }
        };
        let norm = |name: &str| Norm { kind: NormKind::Rms, offset, ..layer_norm(names, &own(name), epsilon) };
        BlockIndexer {
            heads: self.heads,
            head_dim: self.head_dim,
            block: self.block,
            count: self.count,
            rule: BlockRule::Greatest { local: self.local },
            query: projection(names, &own("q_proj")),
            key: projection(names, &own("k_proj")),
            query_norm: norm("q_norm"),
            key_norm: norm("k_norm"),
        }
    }
}

/// Refuses parameters of published configs that the class of transformers does not have.
fn check(published: Config<'_>) -> Result<(), Error> {
    let first = published.unsigned("sparse_init_block")?.unwrap_or(0);
    if first != 0 {
        return Err(fail(format!("`sparse_init_block` is {first}, expected 0")));
    }
    let score = published.text("sparse_score_type").unwrap_or("max");
    if score != "max" {
        return Err(fail(format!("`sparse_score_type` is {score}, expected max")));
    }
    if published.flag("use_sparse_attention")? == Some(false) {
        return Err(fail("`use_sparse_attention` is false, expected true"));
    }
    Ok(())
}
