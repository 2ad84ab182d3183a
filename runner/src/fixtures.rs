//! The models of the reference data for in-process tests, and the comparison of a decoder with
//! their golden numbers.
//!
//! The blueprint of a model comes from its documents. Its arrays are read in place from its files.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use architectures::{Blueprint, Document, TensorNames, describe};
use formats::safetensors::Header;
use formats::{Encoding, Gguf};
use kernels::instructions::Instructions;
use kernels::pool::Pool;
use protocol::{Array, KvType, LoadRequest};
use serde_json::Value;

use crate::backends::cpu::Cpu;
use crate::cache::{CacheShape, SlotCache};
use crate::decoder::{Decoder, LayerBackends};
use crate::mapped::Blobs;
use crate::sampler::likeliest;
use crate::weights::Weights;

mod passes;
mod several_devices;
mod synthetic_models;
mod tests;
mod towers;
mod zoo2026;

pub(crate) use tests::by_kernels;

/// Largest accepted difference of a logit or a hidden element, from the README of the fixtures.
const TOLERANCE: f32 = 2e-3;

/// Returns the folder of the reference data; `None` if it is missing.
pub(crate) fn folder() -> Option<PathBuf> {
    let shared = std::env::var_os("LODE_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"), PathBuf::from);
    if shared.is_dir() {
        return Some(shared.join("fixtures/hf"));
    }
    skipped(&format!("the runner's fixtures: there is no reference data at `{}`", shared.display()));
    None
}

/// Reports that a test is skipped.
pub(crate) fn skipped(reason: &str) {
    // `scripts/test` lists skipped tests at the end.
    if let Some(list) = std::env::var_os("LODE_TEST_SKIPPED") {
        let list = std::fs::File::options().append(true).create(true).open(list);
        list.expect("the list of what is skipped").write_all(format!("{reason}\n").as_bytes()).expect("a line");
    }
    tracing::warn!("{reason}");
}

/// Reads the header of a safetensors file.
fn header(path: &Path) -> Result<Header> {
    let raw = std::fs::read(path)?;
    Ok(Header::parse(&raw, raw.len() as u64)?)
}

/// Returns the tensors of a folder by name, as a load plan lists them, and the files.
fn tensors(model: &Path) -> Result<(BTreeMap<String, protocol::Tensor>, Vec<PathBuf>)> {
    let (mut all, mut files) = (BTreeMap::new(), Vec::new());
    for entry in std::fs::read_dir(model)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let header = header(&path)?;
        for tensor in &header.tensors {
            let dtype = tensor.dtype.to_string();
            let (offset, size) = (header.data_start + tensor.begin, tensor.size());
            let weight = Array { blob: files.len(), offset, size, dtype: dtype.clone() };
            let (name, shape) = (architectures::names::of_folder(&tensor.name), tensor.shape.clone());
            let plan = protocol::Tensor {
                name: name.clone(),
                dtype,
                group: 0,
                shape,
                weight,
                scale: None,
                bias: None,
                global_scale: None,
            };
            all.insert(name, plan);
        }
        files.push(path);
    }
    Ok((combined(all), files))
}

/// Combines arrays that form one weight: blocks with their scales.
fn combined(mut all: BTreeMap<String, protocol::Tensor>) -> BTreeMap<String, protocol::Tensor> {
    let blocks: Vec<String> = all.keys().filter_map(|name| name.strip_suffix("_blocks").map(str::to_owned)).collect();
    for name in blocks {
        let (Some(blocks), Some(scales)) =
            (all.remove(&format!("{name}_blocks")), all.remove(&format!("{name}_scales")))
        else {
            continue;
        };
        let mut shape = blocks.shape[..2].to_vec();
        shape.push(blocks.shape[2] * 32);
        let (dtype, group, scale) = ("mxfp4".to_owned(), 32, Some(scales.weight));
        all.insert(name.clone(), protocol::Tensor { name, dtype, group, shape, scale, ..blocks });
    }
    let scaled: Vec<String> =
        all.keys().filter_map(|name| name.strip_suffix("_scale_inv").map(str::to_owned)).collect();
    for name in scaled {
        if let (Some(scales), Some(weight)) = (all.remove(&format!("{name}_scale_inv")), all.get_mut(&name)) {
            (weight.dtype, weight.group) = ("fp8_48x48".to_owned(), 48);
            weight.scale = Some(scales.weight);
        }
    }
    let beside: Vec<String> = all.keys().filter_map(|name| name.strip_suffix(".scale").map(str::to_owned)).collect();
    for name in beside {
        let Some(weight) = all.get(&format!("{name}.weight")).cloned() else { continue };
        let Some(scales) = all.remove(&format!("{name}.scale")) else { continue };
        let (kind, group, columns) = if weight.dtype == "I8" { ("mxfp4", 32, 2) } else { ("fp8_16x16", 16, 1) };
        let shape = vec![weight.shape[0], weight.shape[1] * columns];
        let scaled = protocol::Tensor { dtype: kind.to_owned(), group, shape, scale: Some(scales.weight), ..weight };
        all.insert(scaled.name.clone(), scaled);
    }
    all
}

/// A model of the reference data with its golden numbers.
pub(crate) struct Fixture {
    name: String,
    folder: PathBuf,
    pub(crate) blueprint: Blueprint,
    pub(crate) plan: LoadRequest,
    pub(crate) blobs: Blobs,
    /// Largest accepted difference of a logit or a hidden element.
    tolerance: f32,
}

impl Fixture {
    pub(crate) fn read(hf: &Path, name: &str) -> Result<Self> {
        let folder = hf.join(name);
        let (tensors, files) = tensors(&folder.join("model"))?;
        let names: TensorNames = tensors.keys().cloned().collect();
        let blueprint = |config: &Path| -> Result<Blueprint> {
            Ok(describe(Document::Config(&std::fs::read(config)?), &names)?.blueprint)
        };
        let classic = blueprint(&folder.join("model/config.json"))?;
        // The models of this repository have only one layout of the config.
        let both = hf.join("manifest.json").is_file();
        assert!(
            !both || classic == blueprint(&folder.join("config_v5.json"))?,
            "{name}: both layouts do not say the same"
        );
        let plan = plan(name, &classic, tensors.into_values().collect())?;
        assert!(classic == serde_json::from_value(plan.blueprint.clone())?, "{name}: what is written is not read");
        Ok(Self {
            name: name.to_owned(),
            folder,
            blueprint: classic,
            plan,
            blobs: Blobs::of_files(&files)?,
            tolerance: TOLERANCE,
        })
    }

    /// Returns a golden tensor of float32.
    fn golden(&self, name: &str) -> Result<Vec<f32>> {
        let path = self.folder.join("golden.safetensors");
        let (raw, header) = (std::fs::read(&path)?, header(&path)?);
        let tensor = header.tensor(name).with_context(|| format!("{}: `{name}` is missing", self.name))?;
        let at = (header.data_start + tensor.begin) as usize;
        let bytes = &raw[at..at + tensor.size() as usize];
        Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// Returns golden logits, and the part of `found`, the computed logits at every position, that
    /// matches them: all of it, or the last positions if the fixture has only those.
    fn golden_logits<'a>(&self, sequence: &str, found: &'a [f32]) -> Result<(Vec<f32>, &'a [f32])> {
        let all = format!("logits.{sequence}");
        if self.has(&all)? {
            return Ok((self.golden(&all)?, found));
        }
        let last = self.golden(&format!("last_{all}"))?;
        ensure!(!last.is_empty() && last.len() <= found.len(), "{}: golden {all} of {}", self.name, last.len());
        let own = &found[found.len() - last.len()..];
        Ok((last, own))
    }

    fn has(&self, golden: &str) -> Result<bool> {
        Ok(header(&self.folder.join("golden.safetensors"))?.tensor(golden).is_some())
    }

    /// Returns the files of its weights, in the order of its blobs.
    pub(crate) fn files(&self) -> Result<Vec<PathBuf>> {
        Ok(tensors(&self.folder.join("model"))?.1)
    }

    pub(crate) fn facts(&self) -> Result<Value> {
        Ok(serde_json::from_slice(&std::fs::read(self.folder.join("golden.json"))?)?)
    }

    /// Loads the model on these backends.
    pub(crate) fn decoder(&self, backends: impl Into<LayerBackends>) -> Result<Arc<Decoder>> {
        let weights = Weights::map(&self.plan, &self.blobs)?;
        Ok(Arc::new(Decoder::load(&backends.into(), &weights, &self.blueprint)?))
    }

    fn check(&self, backends: impl Into<LayerBackends>) -> Result<()> {
        let decoder = self.decoder(backends)?;
        let facts = self.facts()?;
        for (sequence, golden) in facts["sequences"].as_object().context("prompts")? {
            let ids = numbers(&golden["input_ids"]);
            if decoder.generates() && golden["greedy_ids"].is_array() {
                self.check_logits(&decoder, sequence, &ids)?;
                let expected = numbers(&golden["greedy_ids"]);
                let margin = golden["greedy_min_margin"].as_f64().unwrap_or(f64::INFINITY);
                if margin > 2.0 * f64::from(self.tolerance) {
                    assert_eq!(greedy(&decoder, &ids, expected.len())?, expected, "{} {sequence}", self.name);
                }
            } else {
                self.check_hidden(&decoder, sequence, &ids)?;
            }
        }
        Ok(())
    }

    /// Checks the logits of a prompt that is computed at once, and of one that is computed in
    /// pieces.
    fn check_logits(&self, decoder: &Arc<Decoder>, sequence: &str, ids: &[u32]) -> Result<()> {
        for pieces in [&[ids.len()][..], &[1, 1, ids.len() - 4, 2]] {
            let mut cache = cache(decoder)?;
            cache.keep_prefix(ids);
            let (mut first, mut found) = (0, Vec::new());
            for piece in pieces {
                found.extend(logits(decoder, &mut cache, &ids[first..first + piece])?);
                first += piece;
            }
            let (expected, found) = self.golden_logits(sequence, &found)?;
            self.close(found, &expected, &format!("{sequence} in pieces of {pieces:?}"));
        }
        Ok(())
    }

    fn check_hidden(&self, decoder: &Arc<Decoder>, sequence: &str, ids: &[u32]) -> Result<()> {
        self.close(&hidden(decoder, ids)?, &self.golden(&format!("last_hidden_state.{sequence}"))?, sequence);
        Ok(())
    }

    fn close(&self, found: &[f32], expected: &[f32], what: &str) {
        assert_eq!(found.len(), expected.len(), "{} {what}", self.name);
        let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let number = found.iter().all(|x| x.is_finite());
        assert!(number && worst <= self.tolerance, "{} {what}: off by {worst}", self.name);
    }
}

/// Models whose GGUF files have sliding windows that llama.cpp ignores. Their golden numbers are
/// Hugging Face's, from the folder of the same name.
const HONOURED: [&str; 2] = ["phi3", "exaone4"];

/// Reads the model of a GGUF file, with llama.cpp's golden numbers, or Hugging Face's where only
/// these are right.
fn of_gguf(hf: &Path, name: &str) -> Result<Fixture> {
    let folder = hf.join("../gguf/models").join(name);
    let mut fixture = of_gguf_file(name, &folder, &folder.join("model.gguf"))?;
    let said = fixture.facts()?["tolerance"]["logits_max_abs"].as_f64().context("a tolerance")?;
    fixture.tolerance = said as f32;
    if HONOURED.contains(&name) {
        fixture.folder = hf.join(name);
    }
    Ok(fixture)
}

/// Reads the model of a GGUF file, with the golden numbers of a folder.
fn of_gguf_file(name: &str, golden: &Path, path: &Path) -> Result<Fixture> {
    let raw = std::fs::read(path)?;
    let gguf = Gguf::parse(&raw)?;
    let names: TensorNames = gguf.tensors.iter().map(|tensor| tensor.name.to_owned()).collect();
    let blueprint = describe(Document::Gguf(&gguf), &names)?.blueprint;
    let plan = plan(name, &blueprint, gguf_tensors(&gguf, 0)?)?;
    let blobs = Blobs::of_files(&[path.to_owned()])?;
    let (name, folder) = (name.to_owned(), golden.to_owned());
    Ok(Fixture { name, folder, blueprint, plan, blobs, tolerance: TOLERANCE })
}

/// Returns the tensors of a GGUF file, the blob with this index, as a load plan lists them.
fn gguf_tensors(gguf: &Gguf<'_>, blob: usize) -> Result<Vec<protocol::Tensor>> {
    let architecture = gguf.text("general.architecture").context("an architecture")?;
    let tensor = |tensor: &formats::gguf::TensorInfo<'_>| {
        let (dtype, group) = match tensor.kind.dtype() {
            Some(dtype) => (dtype.to_string(), 0),
            None => (Encoding::Blocks(tensor.kind).quant_type().unwrap_or_default(), tensor.kind.block_elements()),
        };
        let offset = gguf.data_start + tensor.offset;
        let weight = Array { blob, offset, size: tensor.size, dtype: dtype.clone() };
        let (name, shape) =
            (architectures::names::canonical(architecture, tensor.name), tensor.dims.iter().rev().copied().collect());
        protocol::Tensor { name, dtype, group, shape, weight, scale: None, bias: None, global_scale: None }
    };
    Ok(gguf.tensors.iter().map(tensor).collect())
}

/// Returns the load plan of a model.
pub(crate) fn plan(name: &str, blueprint: &Blueprint, tensors: Vec<protocol::Tensor>) -> Result<LoadRequest> {
    Ok(LoadRequest {
        version: protocol::VERSION,
        model: name.to_owned(),
        device: "cpu".to_owned(),
        device_note: String::new(),
        layers: Vec::new(),
        is_held: false,
        context: blueprint.context,
        slots: 1,
        kv_type: KvType::F32,
        reference: false,
        deterministic: false,
        blueprint: serde_json::to_value(blueprint)?,
        blobs: Vec::new(),
        tensors,
        adapters: Vec::new(),
        documents: Vec::new(),
        token_table: None,
        template: None,
    })
}

pub(crate) fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).map(|number| number as u32).collect()
}

pub(crate) fn cache(decoder: &Arc<Decoder>) -> Result<SlotCache> {
    cache_of(decoder, KvType::F32)
}

pub(crate) fn cache_of(decoder: &Arc<Decoder>, kv_type: KvType) -> Result<SlotCache> {
    SlotCache::new(CacheShape { context: 1024, kv_type }, decoder)
}

/// Appends generated tokens; returns the logits after each.
pub(crate) fn logits(decoder: &Arc<Decoder>, cache: &mut SlotCache, ids: &[u32]) -> Result<Vec<f32>> {
    logits_of(decoder, cache, ids, false)
}

/// Appends generated tokens or tokens of a prompt; returns the logits after each.
pub(crate) fn logits_of(
    decoder: &Arc<Decoder>,
    cache: &mut SlotCache,
    ids: &[u32],
    is_prompt: bool,
) -> Result<Vec<f32>> {
    let mut sequence = cache.sequence(0, ids.len());
    sequence.span.is_prompt = is_prompt;
    decoder.forward(ids, &[sequence], &[])?;
    cache.advance(ids, &[]);
    let (all, mut found): (Vec<usize>, _) = ((0..ids.len()).collect(), Vec::new());
    decoder.logits(&all, &mut |row| {
        found.extend_from_slice(row);
        Ok(())
    })?;
    Ok(found)
}

/// Returns the hidden states of a text, row by row, each through the layers behind pooling if the
/// model has some.
fn hidden(decoder: &Arc<Decoder>, ids: &[u32]) -> Result<Vec<f32>> {
    let mut cache = cache(decoder)?;
    cache.keep_prefix(ids);
    decoder.forward(ids, &[cache.sequence(0, ids.len())], &[])?;
    let mut found = Vec::new();
    decoder.hidden(0..ids.len(), &mut |row| {
        found.extend(decoder.embed(row.to_vec())?);
        Ok(())
    })?;
    Ok(found)
}

/// Returns the tokens of a greedy continuation of a prompt.
fn greedy(decoder: &Arc<Decoder>, ids: &[u32], count: usize) -> Result<Vec<u32>> {
    let mut cache = cache(decoder)?;
    cache.keep_prefix(ids);
    let mut last = logits(decoder, &mut cache, ids)?;
    let mut found = Vec::new();
    for _ in 0..count {
        let width = last.len() / if found.is_empty() { ids.len() } else { 1 };
        let token = likeliest(&last[last.len() - width..]);
        found.push(token);
        last = logits(decoder, &mut cache, &[token])?;
    }
    Ok(found)
}

/// Returns the CPU backend that computes plain weights in float32.
pub(crate) fn cpu() -> Cpu {
    cpu_with(Instructions::in_float32().next_back().expect("the scalar ones are everywhere"))
}

pub(crate) fn cpu_with(instructions: Instructions) -> Cpu {
    Cpu::new(Arc::new(Pool::new(2).expect("threads")), instructions)
}

/// Returns the cosine similarities of rows of `width`, in ascending order.
pub(crate) fn cosines(a: &[f32], b: &[f32], width: usize) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    assert!(a.len() == b.len() && !a.is_empty(), "as many rows");
    let cosine = |(a, b): (&[f32], &[f32])| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    let mut all: Vec<f64> = a.chunks_exact(width).zip(b.chunks_exact(width)).map(cosine).collect();
    assert!(all.iter().all(|cosine| cosine.is_finite()), "what is not a number has no direction");
    all.sort_by(f64::total_cmp);
    all
}

/// Returns the median cosine similarity of rows of `width`.
pub(crate) fn median_cosine(a: &[f32], b: &[f32], width: usize) -> f64 {
    let all = cosines(a, b, width);
    all[all.len() / 2]
}
