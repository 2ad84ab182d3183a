//! The memory that Lode itself needs for a model. It follows from the sizes of its tensors, the
//! shape of its KV cache, and the runner's allocations for a chunk of a prompt.
//!
//! | where | what | how much |
//! |---|---|---|
//! | page cache, shared | weights used by the CPU, embedding | their bytes; mapped, not copied |
//! | runner, private | KV cache on the CPU | key heads × rows × (key + value) bytes, per slot |
//! | runner, private | recurrent states | the states and their checkpoints, per slot |
//! | runner, private | activations of a chunk | see [`Decoder`] |
//! | runner, private | pictures: decoding, the tower, kept rows | see `tower` |
//! | runner, private | the process, its tokenizer | constants of this file |
//! | device | layers, their KV cache, activations | the same sizes |
//!
//! The system allocates the KV cache page by page as tokens arrive; the estimate is the private
//! memory with all slots full. An embedding that runs beside conversations takes one more sequence
//! while it lasts. Layers go to devices by the rules of [`super::layout`].

mod scores;
mod tower;
mod widths;

use architectures::{Blueprint, Layer, Streams};
use protocol::KvType;
use protocol::limits::{AHEAD, CHECKPOINTS, CHUNK, DEVICE_RECORDINGS};
use serde::{Deserialize, Serialize};

use crate::amount::{Amount, sum};
use crate::layout::Layout;
use crate::load::{DeviceUse, Layers, Machine, settle, uses};
use crate::model::Weights;
use crate::{Device, Unfit};
use widths::{ffn_width, mixer_width, widest_of};

/// Private bytes of a runner without a model: its heap, the stacks of its threads, and relocated
/// pages of the program. Measured on Linux.
const PROCESS: u64 = 9 << 18;
/// Size of a float32 in bytes.
const FLOAT: u64 = 4;
/// Bytes per vocabulary entry while a token is sampled: its logit twice, and its candidate.
const CANDIDATE: u64 = 20;

/// The kind of tokenizer, which decides how much private memory a vocabulary takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokenizer {
    /// Byte-pair encoding. Private memory holds only the tokens that are matched before all others.
    /// The rest is mapped from the daemon's table on disk, if the daemon could write one.
    BytePair,
    /// A `tokenizer.json` that is not plain BPE. The runner keeps the token texts in both
    /// directions, and the memory of parsing the document is not freed.
    Json,
    /// A `SentencePiece` vocabulary; stored in the same way as [`BytePair`](Self::BytePair).
    SentencePiece,
}

impl Tokenizer {
    /// Bytes per token of the vocabulary. Measured with vocabularies of 49,152 and 262,144 tokens;
    /// `Json` with the former only.
    fn token_bytes(self) -> u64 {
        match self {
            Self::BytePair | Self::SentencePiece => 32,
            Self::Json => 522,
        }
    }
}

/// A decoder and its allocations.
///
/// Activations are float32. A chunk of `t` tokens has three arrays of `t · hidden` at all times:
/// the residual stream, its norm, and the output of a mixer or feed-forward network. In addition, a
/// mixer has its projections and mixed values, and a feed-forward network has gate and up. At the
/// end there are the logits of one token per slot.
///
/// On a device, only the largest of mixer, feed-forward network and logits counts. On the CPU,
/// freed memory is kept for the next step, so mixer and feed-forward network both count. In
/// addition, the CPU keeps the operands of products, rounded to 8 bits, and logits three times:
/// computed, handed out, and as sampling candidates. Scoring a text needs more: logits of up to 64
/// tokens.
#[derive(Clone, Copy, Debug)]
pub struct Decoder<'a> {
    /// The blueprint that the decoder is built from.
    pub blueprint: &'a Blueprint,
    /// The kind of its tokenizer.
    pub tokenizer: Tokenizer,
}

/// The KV cache that a model is to be loaded with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Context length of one sequence, in tokens.
    pub context: u64,
    /// Number of parallel sequences.
    pub slots: u64,
    /// Element type.
    pub kv_type: KvType,
}

impl Decoder<'_> {
    /// Returns the bytes of each layer's state (KV cache or recurrent state), for all slots. Layers
    /// with a window keep the window and a little more.
    pub fn kv_sizes(&self, cache: &Cache) -> Vec<u64> {
        let context = cache.context.min(self.blueprint.context);
        let layer = |state: architectures::LayerState| {
            let sizes = [context, AHEAD as u64, 1 + CHECKPOINTS as u64];
            state.sequence_bytes(sizes, |elements| cache.kv_type.row_bytes(elements)).saturating_mul(cache.slots)
        };
        self.blueprint.states().map(|states| states.map(layer).fold(0, u64::saturating_add)).collect()
    }

    /// Returns the bytes of activations while the CPU computes a chunk. Attention scores are
    /// computed in small tiles and do not count.
    pub fn cpu_activations(&self, cache: &Cache) -> u64 {
        let (tokens, [mixer, ffn]) = (self.tokens(cache), self.widths());
        // A one-byte code for each element, and a scale and a sum for each block of 32.
        let rounded = 5 * (tokens * self.widest()) / 4;
        let logits = CANDIDATE * Amount(cache.slots) * Amount(self.blueprint.vocabulary);
        let stream = self.streams() + self.layer_embeddings();
        let text = FLOAT * tokens * (stream + mixer + ffn) + rounded + logits + self.choices(cache);
        // The tower uses the memory of the decoder's activations, and the other way round.
        let Some(own) = self.blueprint.tower() else { return text.0 };
        (text.max(tower::cpu_activations(own)) + tower::pictures(own)).0
    }

    /// Returns the bytes of activations while our kernels compute a chunk on a device, and of
    /// recorded passes there. Attention scores are in memory only for layers without kernels.
    pub fn device_activations(&self, cache: &Cache) -> u64 {
        let (tokens, [mixer, ffn]) = (self.tokens(cache), self.widths());
        let logits = Amount(cache.slots) * Amount(self.blueprint.vocabulary);
        let largest = (tokens * mixer).max(tokens * ffn).max(logits);
        let recordings = self.recordings(cache).min(Amount(DEVICE_RECORDINGS as u64));
        let stream = self.streams() + self.layer_embeddings();
        let text = FLOAT * (tokens * stream + largest) + recordings + self.device_scores(cache);
        self.blueprint.tower().map_or(text, |own| text.max(tower::device_activations(own))).0
    }

    /// Returns the bytes of recordings of all passes that compute one token per sequence. There is
    /// one recording for each number of sequences and each power of two of positions. Each holds
    /// all activations of all layers for its tokens.
    fn recordings(&self, cache: &Cache) -> Amount {
        let [mixer, ffn] = self.widths();
        let token = Amount(self.blueprint.layers.len() as u64) * (6 * Amount(self.blueprint.hidden) + mixer + ffn);
        let slots = Amount(cache.slots);
        let tokens = (slots * Amount(cache.slots.saturating_add(1))) / 2;
        let lengths = u64::from(u64::BITS - cache.context.min(self.blueprint.context).leading_zeros());
        FLOAT * (tokens * Amount(lengths) * token)
    }

    /// Returns the elements per token of the residual stream, its norm, and the output of a mixer
    /// or feed-forward network. Several streams are predicted, joined with the layer's output,
    /// corrected and joined again. Connected ones are normalized and gated, or joined with the
    /// output and mixed; n-grams have keys, values and the output of their convolution.
    fn streams(&self) -> Amount {
        let several = match &self.blueprint.streams {
            None => 0,
            Some(Streams::Predicted(own)) => own.count.saturating_mul(5),
            Some(all) => all.count().saturating_mul(4),
        };
        (3 + Amount(several)) * Amount(self.blueprint.hidden)
    }

    /// Returns the rows of the largest pass: the chunk of one slot and one token of every other
    /// slot. A non-causal model computes a whole text at once, so its chunk is the longest text.
    fn tokens(&self, cache: &Cache) -> Amount {
        let context = cache.context.min(self.blueprint.context);
        // The rows of a picture that see each other are computed together.
        let seeing = self.blueprint.tower().filter(|tower| tower.is_bidirectional);
        let rows = seeing.map_or(0, |tower| tower.input.most_patches() / tower.joined().max(1));
        let chunk = if self.blueprint.causal { context.min(rows.max(CHUNK as u64)) } else { context };
        Amount(chunk) + Amount(cache.slots.saturating_sub(1))
    }

    /// Returns the elements per token in the widest mixer and in the widest feed-forward network.
    /// One layer is computed at a time.
    fn widths(&self) -> [Amount; 2] {
        let layers = || self.blueprint.layers.iter();
        let of_mixers = |layer: &Layer| layer.mixers().map(mixer_width).fold(Amount::default(), |a, b| a + b);
        let mixer = layers().map(of_mixers).max().unwrap_or_default();
        let hidden = self.blueprint.hidden;
        [mixer, layers().map(|layer| ffn_width(&layer.ffn, hidden)).max().unwrap_or_default()]
    }

    /// Returns the largest number of elements per token that are rounded at a time: the widest
    /// input row of a product, with one row for each of the token's experts.
    fn widest(&self) -> Amount {
        let hidden = self.blueprint.hidden;
        let streams = Amount(self.blueprint.streams.as_ref().map_or(1, Streams::count)) * Amount(hidden);
        let wide = |layer: &Layer| widest_of(&layer.ffn, hidden).max(Amount(layer.token_row_width()));
        self.blueprint.layers.iter().map(wide).max().unwrap_or_default().max(streams)
    }

    /// Returns the elements per token of the embeddings of layers: the parts of the table, their
    /// projection, and the sum; and of the numbers that some layers read of tokens, with the part
    /// of a layer.
    fn layer_embeddings(&self) -> Amount {
        let own = self.blueprint.embedding.of_layers.as_ref();
        let width = own.map_or(Amount(0), |own| Amount(own.width) * Amount(self.blueprint.layers.len() as u64));
        let of_tokens = self.blueprint.layers.iter().map(|layer| Amount(layer.token_row_width()));
        3 * width + 2 * of_tokens.fold(Amount(0), |a, b| a + b)
    }

    /// Returns the private bytes of the runner's process that do not depend on requests.
    pub fn process(&self) -> u64 {
        (PROCESS + self.tokenizer.token_bytes() * Amount(self.blueprint.vocabulary)).0
    }

    /// Returns the private bytes of a runner with all layers on the CPU: the memory that is not
    /// shared with other processes. The memory limit is compared with this number.
    pub fn private(&self, cache: &Cache) -> u64 {
        sum(self.kv_sizes(cache).into_iter().chain([self.cpu_activations(cache), self.process()]))
    }
}

/// The placement of a model and the memory that it takes in each place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exact {
    /// Bytes of the KV cache of each layer, for all slots.
    pub kv: Vec<u64>,
    /// The devices and their layers.
    pub layout: Layout,
    /// Number of layers, including the output.
    pub total_layers: usize,
    /// The use of each device, in the order of the machine's devices; `graph` holds activations.
    pub devices: Vec<DeviceUse>,
    /// The use of system memory: `weights` are mapped and shared, `graph` holds activations.
    pub system: DeviceUse,
    /// Private bytes of the runner's process without cache and activations.
    pub process: u64,
}

impl Exact {
    /// Returns the bytes on devices.
    pub fn device_size(&self) -> u64 {
        sum(self.devices.iter().map(DeviceUse::size))
    }

    /// Returns the private bytes of system memory.
    pub fn private(&self) -> u64 {
        sum([self.system.cache, self.system.graph, self.process])
    }

    /// Returns the bytes of system memory that are mapped files, which processes share.
    pub fn mapped(&self) -> u64 {
        self.system.weights
    }
}

/// Assigns a model's layers to a machine's devices. `weights` has as many blocks as the decoder has
/// layers.
pub fn load(decoder: &Decoder<'_>, weights: &Weights, cache: &Cache, machine: &Machine) -> Result<Exact, Unfit> {
    let kv = decoder.kv_sizes(cache);
    let layers = Layers::of(weights, &kv);
    let activations = decoder.device_activations(cache);
    let host = decoder.cpu_activations(cache);
    let process = decoder.process();
    let settled = |devices: &[Device]| settle(&layers, devices, machine, activations, sum([host, process]));
    let (layout, mut graphs) = if decoder.blueprint.is_divisible() {
        settled(&machine.devices)?
    } else {
        on_one_device(&machine.devices, kv.len() + 1, settled)?
    };
    for share in &layout.shares {
        graphs[share.device] = activations;
    }
    let (devices, mut system) = uses(&layers, &layout, &graphs);
    let total_layers = kv.len() + 1;
    let all_on_devices = layout.assigned() >= total_layers;
    // The embedding's rows are read from the mapping. If the embedding is also the output, the
    // output layer counts it already.
    let counted = weights.output.is_none() && !all_on_devices;
    system.weights = sum([system.weights, weights.token_embedding.filter(|_| !counted).unwrap_or(0)]);
    system.graph = if all_on_devices { 0 } else { host };
    Ok(Exact { kv, layout, total_layers, devices, system, process })
}

/// Settles a model whose layers cannot be on several devices: all on the first device that holds
/// them, or else all in system memory.
fn on_one_device(
    devices: &[Device],
    layers: usize,
    settled: impl Fn(&[Device]) -> Result<(Layout, Vec<u64>), Unfit>,
) -> Result<(Layout, Vec<u64>), Unfit> {
    let with_memory_of = |kept: Option<usize>| -> Vec<Device> {
        let own = |(at, device): (usize, &Device)| Device {
            free_memory: if kept == Some(at) { device.free_memory } else { 0 },
            ..device.clone()
        };
        devices.iter().enumerate().map(own).collect()
    };
    let mut order: Vec<usize> = (0..devices.len()).collect();
    order.sort_by_key(|at| (devices[*at].integrated, std::cmp::Reverse(devices[*at].free_memory)));
    for at in order {
        if let Ok(found) = settled(&with_memory_of(Some(at)))
            && found.0.assigned() >= layers
        {
            return Ok(found);
        }
    }
    settled(&with_memory_of(None))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use architectures::{Document, TensorNames, describe};

    use super::*;
    use crate::{Device, System};

    /// `SmolLM2` 135M.
    static SMALL: LazyLock<Blueprint> = LazyLock::new(|| {
        let config = br#"{"model_type":"llama","vocab_size":49152,"hidden_size":576,"intermediate_size":1536,
            "num_hidden_layers":30,"num_attention_heads":9,"num_key_value_heads":3}"#;
        describe(Document::Config(config), &TensorNames::default()).expect("a config").blueprint
    });

    fn small() -> Decoder<'static> {
        Decoder { blueprint: &SMALL, tokenizer: Tokenizer::BytePair }
    }

    fn weights(output: Option<u64>) -> Weights {
        Weights { blocks: vec![Some(10 << 20); 30], output_norm: Some(2304), output, token_embedding: Some(30 << 20) }
    }

    fn machine(free: &[u64]) -> Machine {
        let device = |(index, &free_memory): (usize, &u64)| Device {
            id: index.to_string(),
            library: "CUDA".to_owned(),
            integrated: false,
            free_memory,
        };
        let system = System { free_memory: u64::MAX, ..System::default() };
        Machine { devices: free.iter().enumerate().map(device).collect(), system, ..Machine::default() }
    }

    #[test]
    fn the_cache_has_rows_for_every_slot() {
        for (kv_type, row) in [(KvType::F32, 256), (KvType::F16, 128), (KvType::Q8_0, 68)] {
            let cache = Cache { context: 2048, slots: 4, kv_type };
            assert_eq!(small().kv_sizes(&cache), [2 * 3 * 2048 * row * 4; 30]);
        }
    }

    #[test]
    fn layers_with_a_window_keep_a_ring() {
        let config = br#"{"model_type":"gemma3_text","vocab_size":1000,"hidden_size":64,"intermediate_size":128,
            "num_hidden_layers":6,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":64,"sliding_window":1024,
            "max_position_embeddings":32768}"#;
        let blueprint = describe(Document::Config(config), &TensorNames::default()).expect("a config").blueprint;
        let decoder = Decoder { blueprint: &blueprint, tokenizer: Tokenizer::BytePair };
        let sizes = decoder.kv_sizes(&Cache { context: 32_768, slots: 1, kv_type: KvType::F16 });
        let row = 2 * 2 * 64 * 2;
        let ring = (1024 + AHEAD as u64 + 256) * row;
        assert_eq!(sizes, [ring, ring, ring, ring, ring, 32_768 * row]);
        let sizes = decoder.kv_sizes(&Cache { context: 600, slots: 1, kv_type: KvType::F16 });
        assert_eq!(sizes, [600 * row; 6], "no more than the context");
    }

    #[test]
    fn weights_are_mapped_once() {
        let cache = Cache { context: 2048, slots: 1, kv_type: KvType::F16 };
        for (output, expected) in [(None, 330), (Some(30 << 20), 360)] {
            let exact = load(&small(), &weights(output), &cache, &machine(&[])).expect("it fits");
            assert_eq!(exact.mapped(), (expected << 20) + 2304);
            assert_eq!(exact.private(), small().private(&cache));
            assert_eq!(exact.device_size(), 0);
        }
    }

    #[test]
    fn on_a_device_only_the_embedding_stays_mapped() {
        let cache = Cache { context: 2048, slots: 1, kv_type: KvType::F16 };
        let exact = load(&small(), &weights(None), &cache, &machine(&[24 << 30])).expect("it fits");
        assert_eq!(exact.layout.assigned(), 31);
        assert_eq!((exact.mapped(), exact.system.cache, exact.system.graph), (30 << 20, 0, 0));
        let (kv, activations) = (exact.kv.iter().sum::<u64>(), small().device_activations(&cache));
        assert_eq!(exact.device_size(), (330 << 20) + 2304 + kv + activations);
    }

    #[test]
    fn layers_that_belong_together_are_on_one_device_or_none() {
        let config = br#"{"model_type":"gemma3n_text","vocab_size":1000,"vocab_size_per_layer_input":1000,
            "hidden_size":64,"intermediate_size":128,"num_hidden_layers":5,"num_attention_heads":4,
            "num_key_value_heads":2,"head_dim":64,"num_kv_shared_layers":0}"#;
        let blueprint = describe(Document::Config(config), &TensorNames::default()).expect("a config").blueprint;
        assert!(!blueprint.is_divisible());
        let decoder = Decoder { blueprint: &blueprint, tokenizer: Tokenizer::BytePair };
        let weights = Weights { blocks: vec![Some(100 << 20); 5], ..Weights::default() };
        let cache = Cache { context: 2048, slots: 1, kv_type: KvType::F16 };
        let placed = |free: &[u64]| load(&decoder, &weights, &cache, &machine(free)).expect("it fits").devices;
        let layers = |free: &[u64]| placed(free).iter().map(|device| device.layers).collect::<Vec<_>>();
        assert_eq!(layers(&[400 << 20, 400 << 20]), [0, 0], "not even together");
        assert_eq!(layers(&[400 << 20, 24 << 30]), [0, 6]);
        assert_eq!(layers(&[]), [0usize; 0]);
    }

    #[test]
    fn what_does_not_fit_stays_in_system_memory() {
        let cache = Cache { context: 2048, slots: 1, kv_type: KvType::F16 };
        let free = (457 << 20) + small().device_activations(&cache) + 10 * ((10 << 20) + small().kv_sizes(&cache)[0]);
        let exact = load(&small(), &weights(None), &cache, &machine(&[free])).expect("it fits");
        assert_eq!(exact.layout.assigned(), 10);
        assert_eq!(exact.devices[0].layers, 10);
        assert_eq!(exact.mapped(), ((20 * 10 + 30) << 20) + 2304);
        assert_eq!(exact.system.cache, 20 * small().kv_sizes(&cache)[0]);
    }
}
