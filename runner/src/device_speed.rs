//! Measures how fast a device computes, compared with its memory bandwidth. The models have
//! synthetic weights of Llama's shape, so that a machine needs no model files.
//!
//! The test is ignored by default; `scripts/bench gpu` runs it. `LODE_TEST_DEVICE` names the
//! device, `LODE_SPEED_MODELS` the models (`tiny`, `1b`, `8b`), and `LODE_SPEED_TYPES` the types of
//! weights. The speed of decoding is the median of several measurements after a warm-up; prompts
//! and loads are measured once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use device::GpuRuntime;
use protocol::KvType;

use crate::backend::Selection;
use crate::backends::candle::Candle;
use crate::cache::{CacheShape, SlotCache};
use crate::decoder::{Decoder, LayerBackends};
use crate::fixtures;
use crate::holder::Keep;
use crate::holder::in_process::InProcessHolder;
use crate::read_ahead;
use crate::synthetic_models::{Shape, SyntheticModel, SyntheticSizes, TensorContents};
use crate::weights::Weights;

/// Tokens of a prompt that one pass computes, as in the engine.
const CHUNK: usize = protocol::limits::CHUNK;
/// Number of measurements, of which the median is reported, and number of steps of each.
const ROUNDS: usize = 5;
const STEPS: u32 = 10;
/// Bytes of a copy that measures a device's memory.
const PROBE: usize = 256 << 20;
/// A fine-tune changes one of so many bytes of its base model, and shares all other bytes.
const CHANGED: u64 = 10;

/// Sizes of the models, by name.
const MODELS: [(&str, SyntheticSizes); 3] = [
    ("tiny", SyntheticSizes { hidden: 256, width: 512, layers: 2, heads: 4, key_heads: 2, vocabulary: 512 }),
    ("1b", SyntheticSizes { hidden: 2048, width: 8192, layers: 16, heads: 32, key_heads: 8, vocabulary: 128_256 }),
    ("8b", SyntheticSizes { hidden: 4096, width: 14_336, layers: 32, heads: 32, key_heads: 8, vocabulary: 128_256 }),
];

/// Types of weights, as load plans name them; elements of a group; and the wanted speed of decoding
/// in percent of the memory bandwidth.
const TYPES: [(&str, u64, f64); 5] =
    [("BF16", 0, 70.0), ("q8_0", 32, 65.0), ("q4_k", 256, 60.0), ("int4", 64, 60.0), ("nvfp4", 16, 60.0)];
/// Wanted throughput of eight sequences, as a multiple of the throughput of one.
const TIMES_WANTED: f64 = 5.0;
/// Wanted speed of a load in percent of the speed of a copy; and the longest time of a fine-tune's
/// load, in percent of the time of its base model's load.
const LOAD_WANTED: f64 = 80.0;
const TUNE_WANTED: f64 = 15.0;

fn chosen(variable: &str, all: &[&'static str]) -> Vec<&'static str> {
    let said = std::env::var(variable).unwrap_or_default();
    let is_said = |name: &&&str| said.is_empty() || said.split(',').any(|own| own == **name);
    all.iter().filter(is_said).copied().collect()
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

fn per_second(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e9 / time.as_secs_f64()
}

/// Measures a device's memory: GB/s of copies within it, where bytes read and bytes written both
/// count, and GB/s of copies to it.
fn ceilings(machine: &GpuRuntime) -> Result<[f64; 2]> {
    let probe = if cfg!(feature = "cuda") { PROBE } else { PROBE >> 3 };
    let bytes = vec![1; probe];
    let (from, mut to) = (machine.upload(&bytes)?, machine.memory(probe)?);
    let mut within = || -> Result<Duration> {
        let begin = Instant::now();
        for _ in 0..STEPS {
            machine.copy(&from, &mut to)?;
        }
        machine.wait()?;
        Ok(begin.elapsed() / STEPS)
    };
    let mut copies = Vec::new();
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
    machine: &'a GpuRuntime,
    decoder: Arc<Decoder>,
    /// Bytes of weights that a token reads.
    bytes: u64,
    bandwidth: f64,
}

impl Measured<'_> {
    /// Measures so many sequences at a depth. Returns the prompt's tokens per second, the median
    /// time of a decoding step, and the launches of a step without a recording and with one.
    fn decode(&self, sequences: usize, depth: usize) -> Result<(f64, Duration, [u64; 2])> {
        let shape = CacheShape { context: depth + 256, kv_type: KvType::F16 };
        let mut first = SlotCache::new(shape, &self.decoder)?;
        let ids: Vec<u32> = (0..depth as u32).map(|at| at % 500).collect();
        let begin = Instant::now();
        for chunk in ids.chunks(CHUNK) {
            self.decoder.forward(chunk, &[first.sequence(0, chunk.len())], &[])?;
            first.advance(chunk, &[]);
        }
        self.machine.wait()?;
        let prompt = depth as f64 / begin.elapsed().as_secs_f64();
        let mut slots = Vec::new();
        for _ in 1..sequences {
            let mut slot = SlotCache::new(shape, &self.decoder)?;
            slot.share(&first, &[ids.clone(), vec![1]].concat());
            for chunk in ids[slot.len()..].chunks(CHUNK) {
                self.decoder.forward(chunk, &[slot.sequence(0, chunk.len())], &[])?;
                slot.advance(chunk, &[]);
            }
            slots.push(slot);
        }
        slots.push(first);
        let tokens: Vec<u32> = (0..sequences as u32).collect();
        // As many as a sampler selects by default.
        let selection = Selection { count: 40, changes: Vec::new(), allowed: None };
        let wanted: Vec<_> = (0..sequences).map(|row| (row, Some(selection.clone()))).collect();
        let mut step = || -> Result<()> {
            let all: Vec<_> = slots.iter().enumerate().map(|(at, slot)| slot.sequence(at, 1)).collect();
            self.decoder.forward(&tokens, &all, &[])?;
            self.decoder.best(&wanted, &mut |_, _| Ok(()))?;
            slots.iter_mut().zip(&tokens).for_each(|(slot, token)| slot.advance(&[*token], &[]));
            Ok(())
        };
        // The first pass launches kernels one by one, the second is recorded, later ones launch the
        // recording.
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
    fn tell(&self, model: &str, (dtype, least): (&str, f64), depths: &[usize]) -> Result<()> {
        for &depth in depths {
            let (prompt, one, [launches, again]) = self.decode(1, depth)?;
            let (_, eight, _) = self.decode(8, depth)?;
            let share = per_second(self.bytes, one) / self.bandwidth * 100.0;
            let times = 8.0 * one.as_secs_f64() / eight.as_secs_f64();
            println!(
                "| {model} {dtype} | {depth} | {prompt:.0} | {:.1} | {share:.0} %{} | {:.1} | {times:.1}{} | {launches}, {again} |",
                1.0 / one.as_secs_f64(),
                missed(share < least, least, " %"),
                8.0 / eight.as_secs_f64(),
                missed(times < TIMES_WANTED, TIMES_WANTED, ""),
            );
        }
        Ok(())
    }
}

/// Returns the wanted value as text if it was missed.
fn missed(is_missed: bool, wanted: f64, unit: &str) -> String {
    if is_missed { format!(" (wanted: {wanted:.0}{unit})") } else { String::new() }
}

/// Loads a decoder whose weights the holder has. Returns it with the bytes of its weights and the
/// time of the load.
fn loaded(here: &InProcessHolder, backend: &Candle, model: &SyntheticModel) -> Result<(Decoder, u64, Duration)> {
    let before = backend.resident_bytes();
    let begin = Instant::now();
    let device = backend.name();
    let holder = here.session(device, &model.paths, &model.blobs)?;
    let coming = read_ahead::loaded(&model.blueprint, &model.plan.tensors);
    holder.coming(device, coming.into_iter().flat_map(|(_, tensor)| read_ahead::parts_of(tensor)).collect())?;
    let backend = backend.clone().with_holder(holder.clone());
    let weights = Weights::map(&model.plan, &model.blobs)?;
    let decoder = Decoder::load(&LayerBackends::from(&backend), &weights, &model.blueprint)?;
    holder.finish()?;
    Ok((decoder, backend.resident_bytes() - before, begin.elapsed()))
}

/// Returns the names of the matrices that a fine-tune changes: one in [`CHANGED`] bytes of the
/// loaded weights.
fn changed(model: &SyntheticModel) -> Vec<String> {
    let loaded = read_ahead::loaded(&model.blueprint, &model.plan.tensors);
    let all: u64 = loaded.iter().map(|(_, tensor)| model.bytes_of(&tensor.name)).sum();
    let (mut names, mut bytes) = (Vec::new(), 0);
    for tensor in model.plan.tensors.iter().filter(|tensor| tensor.name.contains(".layers.") && tensor.shape.len() > 1)
    {
        let own = model.bytes_of(&tensor.name);
        if (bytes + own) * CHANGED <= all {
            bytes += own;
            names.push(tensor.name.clone());
        }
    }
    names
}

#[test]
#[ignore = "measures; scripts/bench gpu runs it"]
#[expect(clippy::print_stdout, reason = "what was measured")]
fn speed_of_the_device() -> Result<()> {
    let Some(backend) = fixtures::by_kernels(false) else { return Ok(()) };
    let machine = backend.machine().context("the device has our kernels")?.clone();
    let [bandwidth, upload] = ceilings(&machine)?;
    println!("device: {}", backend.name());
    println!("copies within its memory: {bandwidth:.0} GB/s, from page-locked memory to it: {upload:.1} GB/s\n");
    let folder = tempfile::tempdir()?;
    let names = MODELS.map(|(name, _)| name);
    // The first load of a process opens the device's memory and allocates page-locked buffers. It
    // is not measured.
    let here = InProcessHolder::new(Keep::Bytes(0));
    let small = Shape::llama(MODELS[0].1);
    let warm = small.make("warm", ("BF16", 0), TensorContents::Repeating, &folder.path().join("warm"))?;
    drop(loaded(&here, &backend, &warm)?);
    for name in chosen("LODE_SPEED_MODELS", &names) {
        let (_, sizes) = MODELS.into_iter().find(|(own, _)| *own == name).context("a model")?;
        for dtype in chosen("LODE_SPEED_TYPES", &TYPES.map(|(name, ..)| name)) {
            let (_, group, least) = TYPES.into_iter().find(|(own, ..)| *own == dtype).context("a type")?;
            // The holder identifies arrays by the paths of their files.
            let [base, tune] = ["base", "tune"].map(|part| folder.path().join(format!("{name}-{dtype}-{part}")));
            let shape = Shape::llama(sizes);
            let model = shape.make(name, (dtype, group), TensorContents::Repeating, &base)?;
            let (decoder, bytes, time) = loaded(&here, &backend, &model)?;
            let changes = changed(&model);
            let tuned = shape.tune(&model, (dtype, group), |name| changes.iter().any(|own| own == name), &tune)?;
            let (other, _, again) = loaded(&here, &backend, &tuned)?;
            drop(other);
            let (speed, part) = (per_second(bytes, time), again.as_secs_f64() / time.as_secs_f64() * 100.0);
            let share = speed / upload * 100.0;
            println!(
                "\n| load | bytes | GB/s | of the copy | time of a fine-tune that shares nine tenths |\n|---|---|---|---|---|"
            );
            println!(
                "| {name} {dtype} | {bytes} | {speed:.2} | {share:.0} %{} | {part:.0} %{} |\n",
                missed(share < LOAD_WANTED, LOAD_WANTED, " %"),
                missed(part > TUNE_WANTED, TUNE_WANTED, " %")
            );
            println!(
                "| model | depth | prompt tokens/s | tokens/s | of its memory | 8 sequences tokens/s | times one | launches |"
            );
            println!("|---|---|---|---|---|---|---|---|");
            let measured = Measured { machine: &machine, decoder: Arc::new(decoder), bytes, bandwidth };
            measured.tell(name, (dtype, least), if name == "tiny" { &[128] } else { &[128, 8192] })?;
            drop(measured);
            [base, tune].iter().try_for_each(std::fs::remove_dir_all)?;
        }
    }
    Ok(())
}
