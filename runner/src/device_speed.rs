//! How fast a device computes, against what its memory gives: made weights of Llama's shape, so that it runs on a bare machine.
//!
//! Ignored as a test; `scripts/bench gpu` runs it. `LODE_TEST_DEVICE` names the device, `LODE_SPEED_MODELS` the models (`tiny`, `1b`, `8b`),
//! `LODE_SPEED_TYPES` the types of weights. Each number is the median of several measurements, after some that do not count.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use architectures::{Document, TensorNames, describe};
use device::Machine;
use formats::encoding::Role;
use formats::{Dtype, Encoding};
use protocol::{Array, KvType};
use serde_json::{Value, json};

use crate::backend::{Backend, Selection};
use crate::backends::candle::Candle;
use crate::cache::{Cache, CacheShape, SlotCache};
use crate::decoder::Decoder;
use crate::fixtures;
use crate::mapped::Blobs;
use crate::weights::Weights;

/// Tokens of a prompt that are computed at once.
const CHUNK: usize = 512;
/// Measurements of which the median is told, and steps of each.
const ROUNDS: usize = 5;
const STEPS: u32 = 10;
/// Bytes by which a device's memory is measured.
const PROBE: usize = 256 << 20;

/// A model's shape: its name, width, width of its feed-forward networks, layers, heads, key heads, vocabulary.
type Shape = (&'static str, [u64; 6]);

const SHAPES: [Shape; 3] = [
    ("tiny", [256, 512, 2, 4, 2, 512]),
    ("1b", [2048, 8192, 16, 32, 8, 128_256]),
    ("8b", [4096, 14_336, 32, 32, 8, 128_256]),
];

/// Types of weights, as load plans name them, with the elements of a group.
const TYPES: [(&str, u64); 5] = [("BF16", 0), ("q8_0", 32), ("q4_k", 256), ("int4", 64), ("nvfp4", 16)];

fn chosen(variable: &str, all: &[&'static str]) -> Vec<&'static str> {
    let said = std::env::var(variable).unwrap_or_default();
    let is_said = |name: &&&str| said.is_empty() || said.split(',').any(|own| own == **name);
    all.iter().filter(is_said).copied().collect()
}

fn config([hidden, width, layers, heads, key_heads, vocabulary]: [u64; 6]) -> Value {
    json!({
        "model_type": "llama", "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": width,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": key_heads,
        "max_position_embeddings": 16_384, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5,
    })
}

/// The matrices of a model and its norms, with their shapes.
fn tensors([hidden, width, layers, heads, key_heads, vocabulary]: [u64; 6]) -> Vec<(String, Vec<u64>)> {
    let keys = hidden / heads * key_heads;
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocabulary, hidden]),
        ("lm_head.weight".to_owned(), vec![vocabulary, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    for layer in 0..layers {
        for (name, shape) in [
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![hidden, hidden]),
            ("self_attn.k_proj", vec![keys, hidden]),
            ("self_attn.v_proj", vec![keys, hidden]),
            ("self_attn.o_proj", vec![hidden, hidden]),
            ("mlp.gate_proj", vec![width, hidden]),
            ("mlp.up_proj", vec![width, hidden]),
            ("mlp.down_proj", vec![hidden, width]),
        ] {
            all.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    all
}

/// A file of weights, and what a load plan says of it. Bytes repeat, and are finite small numbers in any type of floats.
fn made(shape: [u64; 6], (dtype, group): (&str, u64), path: &Path) -> Result<Vec<protocol::Tensor>> {
    let block: Vec<u8> = (0..1_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8 & 0x3f).collect();
    let mut file = std::io::BufWriter::new(File::create(path)?);
    let mut end = 0;
    let mut plan = Vec::new();
    for (name, shape) in tensors(shape) {
        let is_matrix = shape.len() == 2 && name != "model.embed_tokens.weight";
        let (dtype, group) = if is_matrix { (dtype, group) } else { ("BF16", 0) };
        let encoding = Dtype::parse(dtype).map(Encoding::Plain).or_else(|| Encoding::parse(dtype, group));
        let parts = encoding.context("a type of weights")?.parts(&shape, Dtype::Bf16).map_err(anyhow::Error::msg)?;
        let mut own = protocol::Tensor {
            name,
            dtype: dtype.to_owned(),
            group,
            shape,
            weight: Array { blob: 0, offset: 0, size: 0, dtype: String::new() },
            scale: None,
            bias: None,
            global_scale: None,
        };
        for part in parts {
            let array = Array { blob: 0, offset: end, size: part.size(), dtype: part.dtype.to_string() };
            end += part.size();
            let mut left = usize::try_from(part.size())?;
            while left > 0 {
                let now = left.min(block.len());
                file.write_all(&block[..now])?;
                left -= now;
            }
            match part.role {
                Role::Weight => own.weight = array,
                Role::Scale => own.scale = Some(array),
                Role::Bias => own.bias = Some(array),
                Role::GlobalScale => own.global_scale = Some(array),
            }
        }
        plan.push(own);
    }
    file.flush()?;
    Ok(plan)
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

fn per_second(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e9 / time.as_secs_f64()
}

/// What a device's memory gives: GB/s of copies within it (read and written) and of copies to it.
fn ceilings(machine: &Machine) -> Result<[f64; 2]> {
    let probe = if cfg!(feature = "cuda") { PROBE } else { PROBE >> 3 };
    let bytes = vec![1; probe];
    let (from, mut to) = (machine.upload(&bytes)?, machine.memory(probe)?);
    let within = || -> Result<Duration> {
        let begin = Instant::now();
        for _ in 0..STEPS {
            machine.copy(&from, &mut to)?;
        }
        machine.wait()?;
        Ok(begin.elapsed() / STEPS)
    };
    let mut copies = Vec::new();
    let mut within = within;
    for _ in 0..ROUNDS {
        copies.push(within()?);
    }
    let mut uploads = Vec::new();
    for _ in 0..ROUNDS {
        uploads.push(machine.time_of_upload(probe)?);
    }
    Ok([per_second(2 * probe as u64, median(copies)), per_second(probe as u64, median(uploads))])
}

struct Measured<'a> {
    machine: &'a Machine,
    decoder: Arc<Decoder<Candle>>,
    /// Bytes of weights that a token reads.
    bytes: u64,
    bandwidth: f64,
}

impl Measured<'_> {
    /// Seconds of a prompt and of a decoded token of so many sequences at a depth, and launches of it one by one and when it comes again.
    fn decode(&self, sequences: usize, depth: usize) -> Result<(f64, Duration, [u64; 2])> {
        let shape = CacheShape { context: depth + 256, kv_type: KvType::F16 };
        let mut first = SlotCache::new(shape, &self.decoder)?;
        let ids: Vec<u32> = (0..depth as u32).map(|at| at % 500).collect();
        let begin = Instant::now();
        for chunk in ids.chunks(CHUNK) {
            self.decoder.forward(chunk, &mut [first.sequence(0, chunk.len())])?;
            first.advance(chunk);
        }
        self.machine.wait()?;
        let prompt = depth as f64 / begin.elapsed().as_secs_f64();
        let mut slots = Vec::new();
        for _ in 1..sequences {
            let mut slot = SlotCache::new(shape, &self.decoder)?;
            slot.share(&first, &[ids.clone(), vec![1]].concat());
            for chunk in ids[slot.len()..].chunks(CHUNK) {
                self.decoder.forward(chunk, &mut [slot.sequence(0, chunk.len())])?;
                slot.advance(chunk);
            }
            slots.push(slot);
        }
        slots.push(first);
        let tokens: Vec<u32> = (0..sequences as u32).collect();
        // As many as are asked for where nobody says how many.
        let selection = Selection { count: 40, changes: Vec::new(), allowed: None };
        let wanted: Vec<_> = (0..sequences).map(|row| (row, Some(selection.clone()))).collect();
        let mut step = || -> Result<()> {
            let mut all: Vec<_> = slots.iter_mut().enumerate().map(|(at, slot)| slot.sequence(at, 1)).collect();
            let stream = self.decoder.forward(&tokens, &mut all)?;
            drop(all);
            self.decoder.best(&stream, &wanted, &mut |_, _| Ok(()))?;
            slots.iter_mut().zip(&tokens).for_each(|(slot, token)| slot.advance(&[*token]));
            Ok(())
        };
        // The first pass is launched one by one, the second is recorded, the others are launched at once.
        let mut launches = [0; 2];
        for at in [0, 0, 1, 1] {
            let before = self.machine.launches();
            step()?;
            launches[at] = self.machine.launches() - before;
        }
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            for _ in 0..STEPS {
                step()?;
            }
            times.push(begin.elapsed() / STEPS);
        }
        Ok((prompt, median(times), launches))
    }

    #[expect(clippy::print_stdout, reason = "what was measured")]
    fn tell(&self, model: &str, dtype: &str, depths: &[usize]) -> Result<()> {
        for &depth in depths {
            let (prompt, one, [launches, again]) = self.decode(1, depth)?;
            let (_, eight, _) = self.decode(8, depth)?;
            let share = per_second(self.bytes, one) / self.bandwidth * 100.0;
            println!(
                "| {model} {dtype} | {depth} | {prompt:.0} | {:.1} | {share:.0} % | {:.1} | {:.1} | {launches}, {again} |",
                1.0 / one.as_secs_f64(),
                8.0 / eight.as_secs_f64(),
                8.0 * one.as_secs_f64() / eight.as_secs_f64()
            );
        }
        Ok(())
    }
}

#[test]
#[ignore = "measures; scripts/bench gpu runs it"]
#[expect(clippy::print_stdout, reason = "what was measured")]
fn speed_of_the_device() -> Result<()> {
    let Some(backend) = fixtures::by_kernels(false) else { return Ok(()) };
    let machine = backend.machine().context("the device has our kernels")?.clone();
    let [bandwidth, upload] = ceilings(&machine)?;
    println!("device: {}", backend.device());
    println!("copies within its memory: {bandwidth:.0} GB/s, from page-locked memory to it: {upload:.1} GB/s\n");
    println!(
        "| model | depth | prompt tokens/s | tokens/s | of its memory | 8 sequences tokens/s | times one | launches |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let folder = tempfile::tempdir()?;
    let (mut loads, names) = (Vec::new(), SHAPES.map(|(name, _)| name));
    // A test of this program itself takes the smallest.
    for model in chosen("LODE_SPEED_MODELS", &names) {
        let (_, shape) = SHAPES.into_iter().find(|(name, _)| *name == model).context("a model")?;
        for dtype in chosen("LODE_SPEED_TYPES", &TYPES.map(|(name, _)| name)) {
            let path = folder.path().join("weights");
            let kind = TYPES.into_iter().find(|(name, _)| *name == dtype).context("a type")?;
            let tensors = made(shape, kind, &path)?;
            let tensor_names: TensorNames = tensors.iter().map(|tensor| tensor.name.clone()).collect();
            let blueprint = describe(Document::Config(config(shape).to_string().as_bytes()), &tensor_names)?.blueprint;
            let plan = fixtures::plan(model, &blueprint, tensors)?;
            let blobs = Blobs::of_files(std::slice::from_ref(&path))?;
            let weights = Weights::map(&plan, &blobs)?;
            let (before, begin) = (backend.resident_bytes(), Instant::now());
            let decoder = Arc::new(Decoder::load(&backend, &weights, &blueprint)?);
            machine.wait()?;
            let (bytes, time) = (backend.resident_bytes() - before, begin.elapsed());
            loads.push((model, dtype, bytes, time));
            let measured = Measured { machine: &machine, decoder, bytes, bandwidth };
            measured.tell(model, dtype, if model == "tiny" { &[128] } else { &[128, 8192] })?;
            drop(measured);
            std::fs::remove_file(&path)?;
        }
    }
    println!("\n| load | bytes | GB/s | of the copy |\n|---|---|---|---|");
    for (model, dtype, bytes, time) in loads {
        let speed = per_second(bytes, time);
        println!("| {model} {dtype} | {bytes} | {speed:.2} | {:.0} % |", speed / upload * 100.0);
    }
    Ok(())
}
