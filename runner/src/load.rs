//! Loading: creates a model and its slots from the daemon's plan.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use architectures::{Blueprint, LayerState, Pictures};
use protocol::limits::{AHEAD, CHECKPOINTS};
use protocol::{BlobPart, ContextRequest, KvType, LoadReply, LoadRequest};

use crate::backends::candle::Candle;
use crate::cache::CacheShape;
use crate::decoder::{Decoder, LayerBackends};
use crate::documents::Documents;
use crate::engine::{Engine, Slots};
use crate::failure;
use crate::files::Files;
use crate::heartbeat::Heartbeat;
use crate::holder_client::HolderClient;
use crate::layer_devices::{self, LayerDevices};
use crate::load_resources::LoadResources;
use crate::mapped::Blobs;
use crate::memory::Account;
use crate::picture_reader::PictureReader;
use crate::read_ahead::{self, ReadAhead};
use crate::text::model::Model;
use crate::text::ranking::Ranking;
use crate::text::renderer::Renderer;
use crate::text::rendering::TemplateChoice;
use crate::text::scorer::Scorer;
use crate::text::sentence::Sentence;
use crate::text::text_model::TextModel;
use crate::weights::Weights;

/// A loaded model.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The manifest's digest.
    pub(crate) name: String,
    pub(crate) model: Arc<Model>,
    pub(crate) engine: Engine,
    /// Heartbeat of the engine.
    pub(crate) heartbeat: Heartbeat,
    /// Name of the device that computes.
    device: String,
    /// Description of that device, or the reason why no other device computes.
    device_note: String,
    /// Bytes of weights.
    weights: u64,
    /// Bytes of tables of n-grams among them.
    tables: u64,
    /// Bytes of weights in the memory of devices.
    on_devices: u64,
    /// For each layer, whether its states are on a device, see [`LayerDevices`].
    layers_on_devices: Vec<bool>,
    blueprint: Blueprint,
    reference: bool,
    /// The read-ahead ends when the model is dropped.
    _read_ahead: ReadAhead,
}

/// The sources that a model is loaded from.
struct LoadSource<'a> {
    request: &'a LoadRequest,
    blobs: &'a Blobs,
    renderer: &'a Arc<Renderer>,
    holder: Option<&'a HolderClient>,
    note: &'a str,
    devices: &'a [Candle],
    on_devices: &'a [bool],
}

/// Announces to the holder the arrays that it will have to provide; returns the tensors that this
/// process reads itself.
fn announce<'a>(
    request: &'a LoadRequest,
    blueprint: &Blueprint,
    holder: Option<&HolderClient>,
) -> Result<Vec<&'a protocol::Tensor>> {
    let Some(holder) = holder else { return Ok(request.tensors.iter().collect()) };
    let devices = layer_devices::assigned(&request.layers, blueprint.layers.len())?;
    let device_of = |layer: Option<usize>| *devices.get(layer.unwrap_or(devices.len() - 1)).unwrap_or(&None);
    let (mut coming, mut own): (HashMap<&str, Vec<BlobPart>>, Vec<_>) = Default::default();
    for (layer, tensor) in read_ahead::loaded(blueprint, &request.tensors) {
        let Some(device) = device_of(layer) else {
            own.push(tensor);
            continue;
        };
        coming.entry(device).or_default().extend(read_ahead::parts_of(tensor));
    }
    for (device, parts) in coming {
        holder.coming(device, parts)?;
    }
    Ok(own)
}

impl Loaded {
    /// Loads everything that a plan names; the files come from `files`.
    pub(crate) fn load(request: &LoadRequest, machine: &LoadResources, files: &mut Files) -> Result<(Self, Slots)> {
        let (ours, theirs) = (protocol::VERSION, request.version);
        ensure!(
            ours == theirs,
            "protocol versions differ: runner {ours}, daemon {theirs}; install both from one build"
        );
        let blueprint: Blueprint = serde_json::from_value(request.blueprint.clone())
            .context("the load plan has a blueprint that this runner cannot build; install both from one build")
            .map_err(|error| failure::unsupported(&error))?;
        let holder = request.is_held.then(|| files.next()).transpose()?;
        let blobs = Blobs::take(&request.blobs, machine.maps, || files.next())?;
        let holder = holder.map(|socket| HolderClient::new(UnixStream::from(socket), &blobs));
        let LayerDevices { backends, note, devices, on_devices } =
            layer_devices::open(request, blueprint.layers.len(), machine, holder.as_ref())?;
        tracing::info!(note, "computes");
        let own = announce(request, &blueprint, holder.as_ref())?;
        let read_ahead = ReadAhead::begin(&blueprint, &own, &blobs);
        let source = LoadSource {
            request,
            blobs: &blobs,
            renderer: &machine.renderer,
            holder: holder.as_ref(),
            note: &note,
            devices: &devices,
            on_devices: &on_devices,
        };
        let before: Vec<_> = devices.iter().map(Candle::memory).collect();
        let loaded = Self::on(&backends, &source, blueprint, read_ahead)?;
        for (device, before) in devices.iter().zip(before) {
            if let Some(((before, total), (after, _))) = before.zip(device.memory()) {
                let (device, taken, weights) = (device.name(), before.saturating_sub(after), device.resident_bytes());
                tracing::info!(device, total, free = after, taken, weights, "memory of the device");
            }
        }
        Ok(loaded)
    }

    fn on(
        backends: &LayerBackends,
        source: &LoadSource<'_>,
        blueprint: Blueprint,
        read_ahead: ReadAhead,
    ) -> Result<(Self, Slots)> {
        let LoadSource { request, blobs, renderer, holder, note, devices, on_devices } = *source;
        let device = backends.name();
        let document = |document: &protocol::Document| Ok((document.name.clone(), blobs.get(document.blob)?.clone()));
        let documents = request.documents.iter().map(document).collect::<Result<Vec<_>>>()?;
        let documents = Documents::new(&documents);
        let table = request.token_table.map(|place| blobs.get(place)).transpose()?;
        let template = TemplateChoice { given: request.template.as_deref(), renderer };
        // Tokenizer and decoder are independent of each other, and each takes a while to load.
        let (text, decoder) = std::thread::scope(|scope| {
            let text = scope.spawn(|| TextModel::load(template, documents, table));
            let decoder = Weights::map(request, blobs).and_then(|weights| {
                let hidden = blueprint.hidden as usize;
                let scorer = blueprint.scorer.as_ref().map(|own| Scorer::load(&weights, own, hidden)).transpose()?;
                let tables = blueprint.layer_tables().map(|table| weights.size_of(&table.name)).sum::<u64>();
                Ok((Decoder::load(backends, &weights, &blueprint)?, scorer, [weights.size(), tables]))
            });
            (text.join(), decoder)
        });
        let text = text.map_err(|_| anyhow::anyhow!("loading the tokenizer panicked"))??;
        let (decoder, scorer, [weights, tables]) = decoder?;
        if let Some(holder) = holder {
            let copied = holder.finish()?;
            tracing::info!(copied, "weights are held on the device");
        }
        let pictures = pictures(&blueprint, &decoder, &text);
        let ranking = Ranking::of(documents, &blueprint, &text);
        let model = Arc::new(Model {
            text,
            vocabulary: blueprint.vocabulary as usize,
            generates: decoder.generates(),
            sentence: Sentence::of(documents, &blueprint),
            ranking,
            scorer,
            pictures,
        });
        let wanted = ContextRequest { context: request.context, slots: request.slots, kv_type: request.kv_type };
        let slots = slots(blueprint.context, request.reference, wanted);
        let heartbeat = decoder.heartbeat().clone();
        // Arrays that were copied during the load are right if no file has changed by now.
        blobs.sources().check()?;
        let engine = Engine::start(model.clone(), Arc::new(decoder), blobs.sources().clone(), slots)?;
        let loaded = Self {
            name: request.model.clone(),
            model,
            engine,
            heartbeat,
            device,
            device_note: note.to_owned(),
            weights,
            tables,
            on_devices: devices.iter().map(Candle::resident_bytes).sum(),
            layers_on_devices: on_devices.to_vec(),
            blueprint,
            reference: request.reference,
            _read_ahead: read_ahead,
        };
        Ok((loaded, slots))
    }

    /// Replaces the KV caches; the weights stay as they are.
    ///
    /// # Errors
    /// Fails if there is no memory for them.
    pub(crate) async fn change(&self, request: ContextRequest) -> Result<Slots> {
        let slots = slots(self.blueprint.context, self.reference, request);
        self.engine.change(slots).await?;
        Ok(slots)
    }

    /// Returns the result of a load.
    pub(crate) fn reply(&self, slots: Slots, memory: &Account) -> LoadReply {
        LoadReply {
            device: self.device.clone(),
            device_note: self.device_note.clone(),
            context: slots.shape.context as u64,
            slots: slots.count as u64,
            kv_type: slots.shape.kv_type,
            weights: self.weights,
            kv_cache: self.cache_bytes(slots, |_| true),
            on_devices: self.bytes_on_devices(slots),
            private: memory.private(),
        }
    }

    /// Returns the bytes of weights and states on devices. Small arrays and the embedding count too
    /// if all layers are on devices, but not tables of n-grams.
    fn bytes_on_devices(&self, slots: Slots) -> u64 {
        let is_whole = self.layers_on_devices.iter().all(|own| *own);
        let weights = if is_whole { self.weights - self.tables } else { self.on_devices };
        weights + self.cache_bytes(slots, |layer| self.layers_on_devices[layer])
    }

    /// Returns the bytes that the selected layers take in all slots, once the slots are full.
    fn cache_bytes(&self, slots: Slots, is_meant: impl Fn(usize) -> bool) -> u64 {
        let CacheShape { context, kv_type } = slots.shape;
        let layer = |state: LayerState| {
            let sizes = [context as u64, AHEAD as u64, 1 + CHECKPOINTS as u64];
            state.sequence_bytes(sizes, |elements| kv_type.row_bytes(elements))
        };
        let meant = self.blueprint.states().enumerate().filter(|(at, _)| is_meant(*at));
        let one = meant.flat_map(|(_, states)| states.map(layer)).fold(0, u64::saturating_add);
        one.saturating_mul(slots.count as u64)
    }
}

/// Returns the reader of pictures, or the reason why the model sees none.
fn pictures(blueprint: &Blueprint, decoder: &Decoder, text: &TextModel) -> Result<PictureReader, String> {
    let reader = match (&blueprint.pictures, decoder.no_pictures_reason()) {
        (None, _) => return Err("it was made for text only".to_owned()),
        (Some(Pictures::Unsupported(reason)), _) => Err(reason.clone()),
        (Some(Pictures::Supported(_)), Some(reason)) => Err(reason.to_owned()),
        (Some(Pictures::Supported(tower)), None) => PictureReader::new(tower, &text.tokenizer),
    };
    reader.inspect_err(|reason| tracing::warn!(reason, "the model cannot see pictures"))
}

/// Returns the slots for a request, with at most the model's context. The reference mode stores
/// only float32.
fn slots(longest: u64, reference: bool, request: ContextRequest) -> Slots {
    let context = request.context.min(longest).max(1) as usize;
    let kv_type = if reference { KvType::F32 } else { request.kv_type };
    Slots { count: request.slots.max(1) as usize, shape: CacheShape { context, kv_type } }
}
