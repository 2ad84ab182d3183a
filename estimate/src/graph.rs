//! The size of the compute graph, with one formula per known architecture.
//!
//! The formulas use these letters:
//!
//! - `b`: tokens computed at a time
//! - `c`: tokens of all sequences
//! - `e`: width of the residual stream
//! - `h`: query heads
//! - `k`: key and value heads
//! - `d`: width of a head, which is `e` divided by the fewest heads of any block
//! - `dk`: width of a key
//! - `v`: tokens of the vocabulary
//! - `a` = c·(1 + h): the attention scores of a token and its mask
//!
//! Factors of four are bytes of a float32. 9/16 is the size in bytes of an element in four-bit
//! blocks with their scale, 105/128 that of one in six-bit blocks. Each division rounds down in
//! place.

use crate::amount::Amount;
use crate::hyper::{Hyper, Load};
use crate::kv::{KvSizes, kv_sizes};
use crate::model::Model;
use crate::{Request, Unfit};

/// The memory that a model needs in addition to its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphSize {
    /// Bytes of the KV cache of each block.
    pub kv: Vec<u64>,
    /// Bytes of the graph if some layers are not on devices; 0 without a formula.
    pub partial: u64,
    /// Bytes of the graph if all layers are on devices; 0 without a formula.
    pub full: u64,
    /// `partial`, or a guess if it is 0.
    pub assumed_partial: u64,
    /// `full`, or a guess if it is 0.
    pub assumed_full: u64,
}

/// Computes the sizes of the KV cache and of the compute graph of a model.
///
/// Refuses metadata with an implausible number of blocks.
pub fn graph_size(model: &Model, request: &Request) -> Result<GraphSize, Unfit> {
    let hyper = Hyper::read(model)?;
    let kv = kv_sizes(&model.architecture, &hyper, request);
    let inputs = Inputs { model, hyper: &hyper, load: Load::of(request), kv: &kv, flash: request.flash_attention };
    let Graph { partial, full } = formula(&model.architecture).map_or(Graph::NONE, |formula| formula(&inputs));
    let total = kv.blocks.iter().fold(Amount(0), |total, &bytes| total + Amount(bytes));
    // Ollama's guess for architectures without a formula: the scores grow with the cache.
    let assumed_partial = if partial.0 == 0 { hyper.heads_per_kv_head(1) * total / 6 } else { partial };
    let assumed_full = if full.0 == 0 { assumed_partial } else { full };
    Ok(GraphSize {
        kv: kv.blocks,
        partial: partial.0,
        full: full.0,
        assumed_partial: assumed_partial.0,
        assumed_full: assumed_full.0,
    })
}

/// Whether an architecture has its own formula; the size of every other graph is guessed from the
/// KV cache.
pub fn has_formula(architecture: &str) -> bool {
    formula(architecture).is_some()
}

/// The inputs of a formula.
struct Inputs<'a> {
    model: &'a Model,
    hyper: &'a Hyper,
    load: Load,
    kv: &'a KvSizes,
    flash: bool,
}

/// The result of a formula.
struct Graph {
    partial: Amount,
    full: Amount,
}

impl Graph {
    const NONE: Self = Self { partial: Amount(0), full: Amount(0) };
}

type Formula = fn(&Inputs<'_>) -> Graph;

/// The architectures of each formula.
const FORMULAS: [(&[&str], Formula); 11] = [
    (&["llama", "llama4"], llama),
    (&["mllama"], mllama),
    (&["gemma", "gemma2", "gemma3"], gemma),
    (&["gemma3n"], gemma3n),
    (&["command-r"], command_r),
    (&["qwen2"], qwen2),
    (&["phi2"], phi2),
    (&["stablelm"], stablelm),
    (&["deepseek2"], deepseek2),
    (&["chatglm"], chatglm),
    (&["gptoss", "gpt-oss"], gpt_oss),
];

fn formula(architecture: &str) -> Option<Formula> {
    FORMULAS.iter().find(|(names, _)| names.contains(&architecture)).map(|(_, formula)| *formula)
}

impl Inputs<'_> {
    fn b(&self) -> Amount {
        self.load.batch
    }

    fn c(&self) -> Amount {
        self.load.tokens
    }

    fn e(&self) -> Amount {
        self.hyper.embedding
    }

    fn h(&self) -> Amount {
        self.hyper.heads
    }

    fn k(&self) -> Amount {
        self.hyper.kv_heads
    }

    fn d(&self) -> Amount {
        self.hyper.head
    }

    fn dk(&self) -> Amount {
        self.hyper.key
    }

    fn v(&self) -> Amount {
        self.hyper.vocabulary
    }

    fn a(&self) -> Amount {
        self.c() * (1 + self.h())
    }

    /// The output projection and the logits, with `streams` copies of the residual stream.
    fn logits(&self, streams: u64) -> Amount {
        4 * self.b() * (streams * self.e() + self.v()) + 105 * self.e() * self.v() / 128
    }

    /// The logits and one residual stream, when the projection is already on the device.
    fn output(&self) -> Amount {
        4 * self.b() * (self.e() + self.v())
    }
}

fn llama(i: &Inputs<'_>) -> Graph {
    let (b, c, e, h, k, d, a) = (i.b(), i.c(), i.e(), i.h(), i.k(), i.d(), i.a());
    let full = (4 * b * (1 + 4 * e + a)).max(i.output());
    let attention = 4 * b * (1 + e + c.max(e)) + 9 * e * e / 16 + 4 * c * (b * h + d * k);
    let dense = Graph { partial: 4 * b * e + attention.max(i.logits(1)), full };
    if let Some(experts) = i.model.tensor("blk.0.ffn_gate_exps.weight") {
        // One tensor holds all experts of a block.
        let mlp = 3 * Amount(experts.bytes) + 4 * b * (2 * i.hyper.feed_forward + k + e + c + d * k);
        let attention = 4 * (c * b * h + c * d * k + 1024 * b + d * k * b);
        return Graph { partial: mlp.max(attention), ..dense };
    }
    if let Some(expert) = i.model.tensor("blk.0.ffn_gate.0.weight") {
        // Each expert has its own tensor; its second dimension is the width of an expert.
        let w = Amount(expert.shape.get(1).copied().unwrap_or(0));
        let mlp = 4 * b * (3 + d * k + e + a + w) + 9 * (e * e + 3 * e * k * w) / 16;
        let attention = 4 * b * (1 + 2 * e + a) + e * (6 * c * k / h + 9 * e / 16);
        return Graph { partial: mlp.max(attention), full: 4 * b * (2 + 3 * e + a + 2 * k + w) };
    }
    dense
}

fn mllama(i: &Inputs<'_>) -> Graph {
    let (b, c, e, h, k, dk, a) = (i.b(), i.c(), i.e(), i.h(), i.k(), i.dk(), i.a());
    // Real files have `rope_freqs.weight`; Ollama looks for another name and finds no tensor.
    let rope = i.model.tensor("rope_freqs.weights").map_or(Amount(0), |tensor| elements(&tensor.shape));
    let attention = 4 * (b * (2 * e + (1 + a) + dk * h) + rope + dk * c * k);
    Graph { partial: attention.max(i.logits(1)), full: (4 * b * (2 + 3 * e + dk * h + a)).max(i.output()) }
}

fn gemma(i: &Inputs<'_>) -> Graph {
    let (b, c, e, h, dk, a) = (i.b(), i.c(), i.e(), i.h(), i.dk(), i.a());
    let attention = 4 * b * (2 * e + (1 + 2 * dk * h) + a) + 32 * dk * c + 9 * e * dk * h / 16;
    Graph { partial: i.logits(1).max(attention), full: i.output().max(4 * b * (2 + a + 2 * e + 2 * dk * h)) }
}

fn gemma3n(i: &Inputs<'_>) -> Graph {
    let Graph { partial, full } = gemma(i);
    Graph { partial: 4 * partial, full: 4 * full }
}

fn command_r(i: &Inputs<'_>) -> Graph {
    let (b, c, e, a) = (i.b(), i.c(), i.e(), i.a());
    let attention = 4 * b * (1 + 2 * e + a) + 4 * e * c + 9 * e * e / 16;
    Graph { partial: i.logits(1).max(attention), full: i.output().max(4 * b * (2 + 4 * e + a)) }
}

fn qwen2(i: &Inputs<'_>) -> Graph {
    let (b, c, e, a) = (i.b(), i.c(), i.e(), i.a());
    let attention = 4 * (b * (1 + 2 * e + a) + e * (1 + c));
    Graph { partial: i.logits(1).max(attention), full: i.output().max(4 * b * (1 + 2 * e + a)) }
}

fn phi2(i: &Inputs<'_>) -> Graph {
    let (b, e, a) = (i.b(), i.e(), i.a());
    let partial = i.logits(2).max(4 * b * (2 + 3 * e + a));
    Graph { partial, full: i.output().max(4 * b * (1 + 4 * e + a)) }
}

fn stablelm(i: &Inputs<'_>) -> Graph {
    let (b, e, v, a) = (i.b(), i.e(), i.v(), i.a());
    let full = 4 * b * (2 + 3 * e + a);
    Graph { partial: (4 * b * (v + 2 * e)).max(full), full }
}

fn deepseek2(i: &Inputs<'_>) -> Graph {
    let (b, c, e, k, dk, v) = (i.b(), i.c(), i.e(), i.k(), i.dk(), i.v());
    let full = (4 * b * (3 * e + v)).max(4 * b * (2 + 3 * e + c * (1 + k) + 2 * dk * k));
    let attention = 4 * b * (1 + 2 * e + 2 * dk * k + c + c * k) + 4 * dk * c * k + 9 * e * dk * k / 16;
    Graph { partial: i.logits(3).max(attention), full }
}

fn chatglm(i: &Inputs<'_>) -> Graph {
    let (b, c, e, h, dk, a) = (i.b(), i.c(), i.e(), i.h(), i.dk(), i.a());
    let base = Graph { partial: i.logits(1), full: i.output() };
    let Some(bias) = i.model.tensor("blk.0.attn_qkv.bias") else { return base };
    let s = Amount(bias.shape.first().copied().unwrap_or(0));
    let full = 4 * b * (2 + 2 * e + a + dk * h + s);
    let partial = 4 * b * (1 + 2 * e + dk * h + a) + 8 * dk * c + 4 * s;
    Graph { partial: base.partial.max(partial), full: base.full.max(full) }
}

fn gpt_oss(i: &Inputs<'_>) -> Graph {
    let partial = if i.flash {
        (110 + 4 * i.load.sequences + i.c() / 1024) * Amount(1 << 20)
    } else {
        // The generic size of the cache, not the size by the rule of gpt-oss.
        i.hyper.heads_per_kv_head(2) * i.kv.generic / 6
    };
    Graph { partial, full: Amount(0) }
}

fn elements(shape: &[u64]) -> Amount {
    shape.iter().fold(Amount(1), |product, &dimension| product * Amount(dimension))
}
