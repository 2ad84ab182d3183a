//! What a model would take of memory, and where: both estimates of `scheduler::estimate`, for a model in the store or at
//! its registry. Nothing is loaded, and no tensor is fetched.

mod facts;

use std::sync::Arc;

use anyhow::Result;
use api::lode::{PlanResponse, PlanSource, PlannedDevice, PlannedMemory};
use content::{Descriptor, Digest};
use import::{LocalFile, ReadAt};
use manifests::ModelRef;
use protocol::{ContextRequest, KvType};
use scheduler::estimate::exact::{self, Cache, Exact};
use scheduler::estimate::{
    Device, DeviceUse, Estimate, LoadRequest, Machine, Request, System, has_formula, load as ollama_load,
};
use tokio::runtime::Handle;

use self::facts::{Facts, Stored, facts};
use super::pull::resolve::{check_names, resolve};
use super::remote::{RemoteFile, RemoteSource, Windows};
use super::{Hosts, HubReference, Library, Model, NotFound};
use crate::config::DevicesConfig;

/// Tokens that Ollama computes at a time.
const BATCH: u64 = 512;
/// Architectures for which Ollama computes attention without its scores in memory where nobody says.
const FLASH_ATTENTION: [&str; 7] = ["gemma3", "gptoss", "gpt-oss", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe"];

/// A model cannot be planned, and why.
#[derive(Debug, thiserror::Error)]
#[error("nothing can be planned for this model: {0}")]
pub(crate) struct CannotPlan(pub(crate) String);

/// What is to be planned.
#[derive(Clone, Debug)]
pub(crate) struct PlanSpec {
    /// The model.
    pub(crate) name: ModelRef,
    /// Free bytes of each device.
    pub(crate) devices: Vec<u64>,
    /// Tokens of a sequence, where the user says.
    pub(crate) asked_context: Option<u64>,
    /// Tokens of a sequence, where the user does not.
    pub(crate) default_context: u64,
    /// Sequences at a time.
    pub(crate) parallel: u64,
    /// How the KV cache keeps its elements.
    pub(crate) kv_type: KvType,
    /// What is to be assumed of devices.
    pub(crate) assumed: DevicesConfig,
}

/// What a model of the store takes of the system's memory where all of it is on the CPU, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Its layers, mapped.
    pub(crate) weights: u64,
    /// The KV cache of all slots.
    pub(crate) kv_cache: u64,
    /// What is allocated while a chunk is computed.
    pub(crate) activations: u64,
    /// What the process takes before it does anything.
    pub(crate) process: u64,
}

impl Need {
    /// By the manifest and the blueprint. Of a model that cannot be run only the layers count; its load says more.
    pub(crate) fn of(model: &Model, cache: ContextRequest) -> Self {
        let weights = model.manifest.layers().iter().map(manifests::Layer::size).fold(0, u64::saturating_add);
        let Some(described) = model.understood.known() else {
            return Self { weights, kv_cache: 0, activations: 0, process: 0 };
        };
        let decoder = described.decoder();
        let cache = Cache { context: cache.context, slots: cache.slots, kv_type: cache.kv_type };
        Self {
            weights,
            kv_cache: decoder.kv_sizes(&cache).into_iter().fold(0, u64::saturating_add),
            activations: decoder.cpu_activations(&cache),
            process: decoder.process(),
        }
    }

    /// All of it.
    pub(crate) fn total(self) -> u64 {
        [self.weights, self.kv_cache, self.activations, self.process].into_iter().fold(0, u64::saturating_add)
    }
}

/// A model whose facts are known.
struct Found {
    name: String,
    digest: Digest,
    facts: Facts,
    source: PlanSource,
}

/// Plans a model: from the store where it is there, else from its registry.
pub(crate) async fn plan(library: &Library, hosts: &Hosts, spec: &PlanSpec) -> Result<PlanResponse> {
    let (own, name) = (library.clone(), spec.name.clone());
    let found = match tokio::task::spawn_blocking(move || in_store(&own, &name)).await? {
        Err(error) if error.is::<NotFound>() => {
            if HubReference::parse(&spec.name.to_string())?.is_some() {
                return Err(CannotPlan("a hub has no manifest of it; pull it first".to_owned()).into());
            }
            at_registry(hosts, &spec.name).await?
        }
        found => found?,
    };
    planned(&found, spec)
}

fn in_store(library: &Library, name: &ModelRef) -> Result<Found> {
    // It stays while it is read.
    let _guard = library.store.guard();
    let model = library.find(name)?;
    let read = |_: &str, blob: &Descriptor| {
        Arc::new(LocalFile::new(library.store.path(&blob.digest)).with_digest(blob.digest)) as Arc<dyn ReadAt>
    };
    let stored = Stored { tensors: library.catalogue(&model.manifest)?, understood: (*model.understood).clone() };
    let facts = facts(&model.manifest, Some(stored), &read)?;
    Ok(Found { name: model.name, digest: *model.manifest.digest(), facts, source: PlanSource::Store })
}

async fn at_registry(hosts: &Hosts, name: &ModelRef) -> Result<Found> {
    let (remote, _) = hosts.remote(name)?;
    let (_, manifest) = resolve(&remote, name).await?;
    check_names(&manifest, name)?;
    let (windows, handle) = (Windows::for_workers(), Handle::current());
    let shown = name.to_string();
    let work = move || -> Result<Found> {
        let read = |name: &str, blob: &Descriptor| {
            let source = RemoteSource::blob(&remote, name, blob);
            Arc::new(RemoteFile::new(source, handle.clone(), windows.clone())) as Arc<dyn ReadAt>
        };
        let facts = facts(&manifest, None, &read)?;
        Ok(Found { name: shown, digest: *manifest.digest(), facts, source: PlanSource::Registry })
    };
    tokio::task::spawn_blocking(work).await?
}

fn planned(found: &Found, spec: &PlanSpec) -> Result<PlanResponse> {
    let facts = &found.facts;
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
    let unfit = |error: scheduler::estimate::Unfit| CannotPlan(error.to_string());
    let ollama = ollama_load(load).map_err(unfit)?;
    let exact = match &facts.described {
        Ok(described) => {
            let cache = Cache { context, slots: spec.parallel, kv_type: spec.kv_type };
            Some(of_exact(
                &exact::load(&described.decoder(), &facts.all_weights(), &cache, &machine).map_err(unfit)?,
                &spec.devices,
            ))
        }
        Err(reason) => {
            notes.push(format!("{reason}, so there is no exact plan"));
            None
        }
    };
    notes.extend(exact.as_ref().and_then(beyond_one_device));
    if found.source == PlanSource::Registry {
        notes.push("the model is not here; sizes of tensors are those that its manifest or its headers say".to_owned());
    }
    Ok(PlanResponse {
        model: found.name.clone(),
        digest: found.digest.to_string(),
        source: found.source,
        architecture,
        context,
        parallel: spec.parallel,
        kv_cache_type: spec.kv_type.name().to_owned(),
        ollama: of_ollama(&ollama, &spec.devices),
        exact,
        notes,
    })
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

/// Layers are assigned to all devices, but a runner computes on one.
fn beyond_one_device(exact: &PlannedMemory) -> Option<String> {
    let mut used = exact.devices.iter().filter(|device| device.layers > 0);
    let whole = used.next().is_none_or(|device| device.layers == exact.layers);
    (!whole).then(|| {
        "a runner computes on one device yet; where that has not room for all layers choose the CPU".to_owned()
    })
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

fn of_ollama(estimate: &Estimate, devices: &[u64]) -> PlannedMemory {
    let total = |of: fn(&DeviceUse) -> u64| total(&estimate.devices, &estimate.system, of);
    PlannedMemory {
        layers: estimate.total_layers as u64,
        layers_on_devices: estimate.layout.assigned() as u64,
        weights: total(|used| used.weights),
        kv_cache: total(|used| used.cache),
        graph: total(|used| used.graph),
        process: 0,
        reserve: estimate.reserve,
        on_devices: estimate.device_size(),
        in_system: estimate.system.size(),
        private: estimate.system.cache,
        total: estimate.total_size(),
        devices: planned_devices(&estimate.devices, devices),
    }
}

fn of_exact(plan: &Exact, devices: &[u64]) -> PlannedMemory {
    let total = |of: fn(&DeviceUse) -> u64| total(&plan.devices, &plan.system, of);
    let in_system = plan.mapped().saturating_add(plan.private());
    PlannedMemory {
        layers: plan.total_layers as u64,
        layers_on_devices: plan.layout.assigned() as u64,
        weights: total(|used| used.weights),
        kv_cache: total(|used| used.cache),
        graph: total(|used| used.graph),
        process: plan.process,
        reserve: 0,
        on_devices: plan.device_size(),
        in_system,
        private: plan.private(),
        total: plan.device_size().saturating_add(in_system),
        devices: planned_devices(&plan.devices, devices),
    }
}

/// What the devices and the system hold of something.
fn total(devices: &[DeviceUse], system: &DeviceUse, of: fn(&DeviceUse) -> u64) -> u64 {
    devices.iter().chain([system]).map(of).fold(0, u64::saturating_add)
}

fn planned_devices(uses: &[DeviceUse], devices: &[u64]) -> Vec<PlannedDevice> {
    let planned = |(used, &free): (&DeviceUse, &u64)| PlannedDevice {
        free,
        layers: used.layers as u64,
        weights: used.weights,
        kv_cache: used.cache,
        graph: used.graph,
        total: used.size(),
    };
    uses.iter().zip(devices).map(planned).collect()
}
