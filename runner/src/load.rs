//! Loading: from the daemon's plan to a model, and to the slots it runs on.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use architectures::Blueprint;
use protocol::{ContextRequest, KvType, LoadReply, LoadRequest};

use crate::cache::CacheShape;
use crate::decoder::Decoder;
use crate::device;
use crate::engine::{Engine, Slots};
use crate::memory::Account;
use crate::model::{Model, TextModel};
use crate::pooling::Pooling;
use crate::weights::Weights;

/// A model that runs.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The manifest's digest.
    pub(crate) name: String,
    pub(crate) model: Arc<Model>,
    pub(crate) engine: Engine,
    /// Bytes of weights.
    weights: u64,
    /// The longest context that the model was made for.
    longest: u64,
    /// The cache of its layers, whatever its context.
    cache: LayerCache,
    reference: bool,
}

impl Loaded {
    /// Maps and prepares everything a plan names.
    pub(crate) fn load(request: &LoadRequest) -> Result<(Self, Slots)> {
        let (ours, theirs) = (protocol::VERSION, request.version);
        ensure!(ours == theirs, "this runner speaks protocol {ours}, the daemon {theirs}; install both from one build");
        let device = device::open(&request.device)?;
        let blueprint: Blueprint = serde_json::from_value(request.blueprint.clone())
            .context("the load plan has a blueprint that this runner cannot build; install both from one build")?;
        let cache = LayerCache::of(&blueprint)?;
        // Tokenizer and decoder share nothing, and either takes a while.
        let (text, decoder) = std::thread::scope(|scope| {
            let text = scope.spawn(|| TextModel::load(request));
            let decoder = Weights::map(request, device)
                .and_then(|weights| Ok((Decoder::load(&weights, &blueprint)?, weights.size())));
            (text.join(), decoder)
        });
        let text = text.map_err(|_| anyhow::anyhow!("loading the tokenizer panicked"))??;
        let (decoder, weights) = decoder?;
        let model = Arc::new(Model { decoder, text, pooling: Pooling::of(&request.documents) });
        let wanted = ContextRequest { context: request.context, slots: request.slots, kv_type: request.kv_type };
        let slots = cache.slots(blueprint.context, request.reference, wanted);
        let engine = Engine::start(model.clone(), slots)?;
        let (name, reference) = (request.model.clone(), request.reference);
        Ok((Self { name, model, engine, weights, longest: blueprint.context, cache, reference }, slots))
    }

    /// Replaces the KV cache; the weights stay as they are.
    ///
    /// # Errors
    /// Where there is no memory for it.
    pub(crate) async fn change(&self, request: ContextRequest) -> Result<Slots> {
        let slots = self.cache.slots(self.longest, self.reference, request);
        self.engine.change(slots).await?;
        Ok(slots)
    }

    /// What a load has come to.
    pub(crate) fn reply(&self, slots: Slots, memory: &Account) -> LoadReply {
        LoadReply {
            device: device::name(self.model.decoder.device()),
            context: slots.shape.context as u64,
            slots: slots.count as u64,
            kv_type: slots.shape.kv_type,
            weights: self.weights,
            kv_cache: slots.bytes(),
            private: memory.private(),
        }
    }
}

/// The sizes of a layer's cache: the same for all layers.
#[derive(Clone, Copy, Debug)]
struct LayerCache {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl LayerCache {
    /// # Errors
    /// Layers have key heads of different number or size.
    fn of(blueprint: &Blueprint) -> Result<Self> {
        let sizes = |attention: &architectures::Attention| (attention.kv_heads as usize, attention.head_dim as usize);
        let mut all = blueprint.attentions().map(sizes);
        let first = all.next().context("the model has no layers")?;
        ensure!(all.all(|other| other == first), "layers have different key heads, which cannot be run yet");
        Ok(Self { layers: blueprint.layers.len(), kv_heads: first.0, head_dim: first.1 })
    }

    /// The slots that a request asks for, as far as the model goes. The reference mode keeps nothing but float32.
    fn slots(self, longest: u64, reference: bool, request: ContextRequest) -> Slots {
        let Self { layers, kv_heads, head_dim } = self;
        let context = request.context.min(longest).max(1) as usize;
        let kv_type = if reference { KvType::F32 } else { request.kv_type };
        let shape = CacheShape { layers, kv_heads, head_dim, context, kv_type };
        Slots { count: request.slots.max(1) as usize, shape }
    }
}
