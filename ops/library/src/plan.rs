//! What a model would take of memory, and where: both estimates of `estimate`, from the facts about a model that is
//! in the store or at a registry. Nothing is loaded, and no tensor is read.

mod facts;

use anyhow::Result;
use content::{Descriptor, Digest};
use estimate::exact::{self, Cache, Exact};
use estimate::{
    Device, Estimate, LoadRequest, Machine, Request, System, Unfit, Weights, has_formula, load as ollama_load,
};
use manifests::{Manifest, ModelRef};
use protocol::KvType;

use crate::error::Error;
use crate::library::Library;
use crate::model::Model;
use crate::understood::Open;
use facts::{Facts, Stored, facts};

/// Tokens that Ollama computes at a time.
const BATCH: u64 = 512;
/// Architectures for which Ollama computes attention without its scores in memory where nobody says.
const FLASH_ATTENTION: [&str; 7] = ["gemma3", "gptoss", "gpt-oss", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe"];

/// What is to be planned for.
#[derive(Clone, Debug)]
pub struct PlanSpec {
    /// Free bytes of each device.
    pub devices: Vec<u64>,
    /// Tokens of a sequence, where the user says.
    pub asked_context: Option<u64>,
    /// Tokens of a sequence, where the user does not.
    pub default_context: u64,
    /// Sequences at a time.
    pub parallel: u64,
    /// How the KV cache keeps its elements.
    pub kv_type: KvType,
    /// What is to be assumed of devices.
    pub assumed: AssumedDevices,
}

/// How plans treat devices.
#[derive(Clone, Copy, Debug, Default)]
pub struct AssumedDevices {
    /// Bytes that are kept free on every device, besides what is kept free anyway.
    pub overhead: u64,
    /// Use all devices, also where fewer would do.
    pub spread: bool,
    /// Whether Ollama would compute attention without its scores in memory, where somebody says.
    pub flash_attention: Option<bool>,
}

/// A model whose facts are known.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The name by which it was found, complete.
    pub name: String,
    /// Of its manifest.
    pub digest: Digest,
    facts: Facts,
}

/// What a model would take.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    /// As GGUF names it.
    pub architecture: String,
    /// Tokens of a sequence.
    pub context: u64,
    /// As Ollama's formulas have it.
    pub ollama: Estimate,
    /// As the runner allocates, where it can run the model.
    pub exact: Option<Exact>,
    /// For people.
    pub notes: Vec<String>,
}

impl Subject {
    /// A model of the store.
    ///
    /// # Errors
    /// There is no such model, it cannot be read, or it is nothing that could be planned.
    pub fn stored(library: &Library, name: &ModelRef) -> Result<Self> {
        let (model, _hold) = library.find_held(name)?;
        Self::of(library, &model)
    }

    /// The same of a model that was found, whose blobs somebody keeps.
    ///
    /// # Errors
    /// It cannot be read, or it is nothing that could be planned.
    pub(crate) fn of(library: &Library, model: &Model) -> Result<Self> {
        let read = |_: &str, blob: &Descriptor| library.open(&blob.digest);
        let stored = Stored { tensors: library.catalogue(&model.manifest)?, understood: (*model.understood).clone() };
        let facts = facts(&model.manifest, Some(stored), &read)?;
        Ok(Self { name: model.name.clone(), digest: *model.manifest.digest(), facts })
    }

    /// Its weights by layer, with its adapters.
    pub(crate) fn weights(&self) -> Weights {
        self.facts.all_weights()
    }

    /// A model that is not in the store, whose documents and headers `open` gives.
    ///
    /// # Errors
    /// They cannot be read, or it is nothing that could be planned.
    pub fn elsewhere(name: &ModelRef, manifest: &Manifest, open: &Open<'_>) -> Result<Self> {
        Ok(Self { name: name.to_string(), digest: *manifest.digest(), facts: facts(manifest, None, open)? })
    }

    /// Plans it.
    ///
    /// # Errors
    /// It has more layers than any model, or the like.
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
        let load = LoadRequest {
            model: &facts.model,
            weights: &facts.weights,
            projector: 0,
            request: &request,
            machine: &machine,
        };
        let ollama = ollama_load(load).map_err(|error| unfit(&error))?;
        let exact = exactly(facts, spec, context, &machine, &mut notes)?;
        Ok(MemoryPlan { architecture, context, ollama, exact, notes })
    }
}

fn unfit(error: &Unfit) -> Error {
    Error::CannotPlan(error.to_string())
}

/// What the runner allocates, where it can run the model.
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

/// What Ollama would be asked for.
fn request(architecture: &str, context: u64, spec: &PlanSpec) -> Request {
    // Where nobody says: a quantized cache needs it.
    let quantized = spec.kv_type == KvType::Q8_0;
    let automatic = quantized || FLASH_ATTENTION.contains(&architecture);
    let flash_attention = spec.assumed.flash_attention.unwrap_or(automatic);
    // Without it Ollama makes no quantized cache.
    let kv_type = if quantized && !flash_attention { KvType::F16 } else { spec.kv_type };
    Request {
        context,
        batch: BATCH.min(context),
        parallel: spec.parallel,
        kv_type: kv_type.name().to_owned(),
        flash_attention,
    }
}

/// The context that a load would have.
fn context(facts: &Facts, spec: &PlanSpec, notes: &mut Vec<String>) -> u64 {
    let wanted = spec.asked_context.unwrap_or(spec.default_context).max(1);
    if facts.context == 0 || wanted <= facts.context {
        return wanted;
    }
    if spec.asked_context.is_some() {
        notes.push(format!("the model was made for {} tokens, {wanted} were asked for", facts.context));
    }
    facts.context
}

/// The devices that were named, and as much system memory as it takes: the plan says how much that is.
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
