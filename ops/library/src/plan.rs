//! Memory plans: how much memory a model would need, and on which devices. A plan contains both
//! estimates of the crate `estimate`, from the facts about a model in the store or at a registry.
//! Nothing is loaded, and no tensor is read.

mod facts;

use content::operation::Result;
use content::{Descriptor, Digest};
use estimate::exact::{self, Cache, Exact};
use estimate::{
    Device, Estimate, EstimateRequest, Machine, Request, System, Unfit, Weights, has_formula, ollama_estimate,
};
use manifests::{Manifest, ModelRef};
use protocol::KvType;

use crate::error::Error;
use crate::library::Library;
use crate::model::Model;
use crate::parsed_facts::Open;
use facts::{Facts, Stored, facts};

/// Number of tokens that Ollama computes at a time.
const BATCH: u64 = 512;
/// Architectures for which Ollama uses flash attention by default.
const FLASH_ATTENTION: [&str; 7] = ["gemma3", "gptoss", "gpt-oss", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe"];

/// Parameters of a plan.
#[derive(Clone, Debug)]
pub struct PlanSpec {
    /// Free bytes of each device.
    pub devices: Vec<u64>,
    /// Context length in tokens, if the user requested one.
    pub asked_context: Option<u64>,
    /// Context length in tokens to use otherwise.
    pub default_context: u64,
    /// Number of concurrent sequences.
    pub parallel: u64,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Assumptions about devices.
    pub assumed: AssumedDevices,
}

/// Assumptions of plans about devices.
#[derive(Clone, Copy, Debug, Default)]
pub struct AssumedDevices {
    /// Bytes to keep free on every device, in addition to the usual reserve.
    pub overhead: u64,
    /// If true, all devices are used, even if fewer would suffice.
    pub spread: bool,
    /// Whether Ollama uses flash attention, which keeps no attention scores in memory; `None` means
    /// its default for the model.
    pub flash_attention: Option<bool>,
}

/// A model whose facts are known.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Complete name by which the model was found.
    pub name: String,
    /// Digest of the manifest.
    pub digest: Digest,
    facts: Facts,
}

/// The memory that a model would need.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// Architecture as GGUF names it.
    pub architecture: String,
    /// Context length in tokens.
    pub context: u64,
    /// Estimate by Ollama's formulas.
    pub ollama: Estimate,
    /// Estimate of the runner's allocations, if it can run the model.
    pub exact: Option<Exact>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Subject {
    /// Reads the facts of a stored model.
    ///
    /// # Errors
    /// The model does not exist, cannot be read, or cannot be planned.
    pub fn stored(library: &Library, name: &ModelRef) -> Result<Self> {
        let (model, _hold) = library.find_held(name)?;
        Self::of(library, &model)
    }

    /// Reads the facts of a model that was found already. The caller protects its blobs from
    /// collection.
    ///
    /// # Errors
    /// The model cannot be read, or it cannot be planned.
    pub(crate) fn of(library: &Library, model: &Model) -> Result<Self> {
        let read = |_: &str, blob: &Descriptor| library.open(&blob.digest);
        let stored =
            Stored { tensors: library.catalogue(&model.manifest)?, parsed_facts: (*model.parsed_facts).clone() };
        let facts = facts(&model.manifest, Some(stored), &read)?;
        Ok(Self { name: model.name.clone(), digest: *model.manifest.digest(), facts })
    }

    /// Returns the weights by layer, including adapters.
    pub(crate) fn weights(&self) -> Weights {
        self.facts.all_weights()
    }

    /// Reads the facts of a model that is not in the store; `open` provides its documents and
    /// headers.
    ///
    /// # Errors
    /// They cannot be read, or the model cannot be planned.
    pub fn elsewhere(name: &ModelRef, manifest: &Manifest, open: &Open<'_>) -> Result<Self> {
        Ok(Self { name: name.to_string(), digest: *manifest.digest(), facts: facts(manifest, None, open)? })
    }

    /// Computes the plan.
    ///
    /// # Errors
    /// The model's facts are out of range, for instance its number of layers.
    pub fn plan(&self, spec: &PlanSpec) -> Result<MemoryPlan> {
        let facts = &self.facts;
        let architecture = facts.model.architecture.clone();
        let mut notes = Vec::new();
        let context = context(facts, spec, &mut notes);
        let machine = machine(spec);
        let request = request(&architecture, context, spec);
        if !has_formula(&architecture) {
            notes.push(format!(
                "Ollama has no formula for the graph of `{architecture}` and guesses it from the size of the KV cache"
            ));
        }
        let load = EstimateRequest {
            model: &facts.model,
            weights: &facts.weights,
            projector: 0,
            request: &request,
            machine: &machine,
        };
        let ollama = ollama_estimate(load).map_err(|error| unfit(&error))?;
        let exact = exactly(facts, spec, context, &machine, &mut notes)?;
        Ok(MemoryPlan { architecture, context, ollama, exact, notes })
    }
}

fn unfit(error: &Unfit) -> Error {
    Error::CannotPlan(error.to_string())
}

/// Estimates the runner's allocations, if it can run the model.
fn exactly(
    facts: &Facts,
    spec: &PlanSpec,
    context: u64,
    machine: &Machine,
    notes: &mut Vec<String>,
) -> Result<Option<Exact>> {
    match &facts.described {
        Ok(described) => {
            let cache = Cache { context, slots: spec.parallel, kv_type: spec.kv_type };
            Ok(Some(
                exact::load(&described.decoder(), &facts.all_weights(), &cache, machine)
                    .map_err(|error| unfit(&error))?,
            ))
        }
        Err(reason) => {
            notes.push(format!("{reason}, so there is no exact plan"));
            Ok(None)
        }
    }
}

/// Returns the request that Ollama's estimate is computed for.
fn request(architecture: &str, context: u64, spec: &PlanSpec) -> Request {
    // Default: a quantized cache requires flash attention.
    let quantized = spec.kv_type == KvType::Q8_0;
    let automatic = quantized || FLASH_ATTENTION.contains(&architecture);
    let flash_attention = spec.assumed.flash_attention.unwrap_or(automatic);
    // Without flash attention, Ollama does not quantize the cache.
    let kv_type = if quantized && !flash_attention { KvType::F16 } else { spec.kv_type };
    Request {
        context,
        batch: BATCH.min(context),
        parallel: spec.parallel,
        kv_type: kv_type.name().to_owned(),
        flash_attention,
    }
}

/// Returns the context length that a load would use.
fn context(facts: &Facts, spec: &PlanSpec, notes: &mut Vec<String>) -> u64 {
    let wanted = spec.asked_context.unwrap_or(spec.default_context).max(1);
    if facts.context == 0 || wanted <= facts.context {
        return wanted;
    }
    if spec.asked_context.is_some() {
        notes.push(format!("the model supports {} tokens, {wanted} were requested", facts.context));
    }
    facts.context
}

/// Returns the given devices with unlimited system memory; the plan reports how much of it is
/// needed.
fn machine(spec: &PlanSpec) -> Machine {
    let device = |(index, &free_memory): (usize, &u64)| Device {
        id: index.to_string(),
        library: "CUDA".to_owned(),
        integrated: false,
        free_memory,
    };
    let system = System { total_memory: u64::MAX, free_memory: u64::MAX, ..System::default() };
    Machine {
        devices: spec.devices.iter().enumerate().map(device).collect(),
        system,
        spread: spec.assumed.spread,
        overhead: spec.assumed.overhead,
        ..Machine::default()
    }
}
