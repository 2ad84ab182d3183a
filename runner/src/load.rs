//! Loading: from the daemon's plan to a model, and to the slots it runs on.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use formats::HyperParameters;
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
    hyper: HyperParameters,
    reference: bool,
}

impl Loaded {
    /// Maps and prepares everything a plan names.
    pub(crate) fn load(request: &LoadRequest) -> Result<(Self, Slots)> {
        let (ours, theirs) = (protocol::VERSION, request.version);
        ensure!(ours == theirs, "this runner speaks protocol {ours}, the daemon {theirs}; install both from one build");
        let device = device::open(&request.device)?;
        let hyper = hyper_parameters(&request.hyper_parameters)?;
        // Tokenizer and decoder share nothing, and either takes a while.
        let (text, decoder) = std::thread::scope(|scope| {
            let text = scope.spawn(|| TextModel::load(request));
            let decoder = Weights::map(request, &hyper, device)
                .and_then(|weights| Ok((Decoder::load(&weights, &hyper)?, weights.size())));
            (text.join(), decoder)
        });
        let text = text.map_err(|_| anyhow::anyhow!("loading the tokenizer panicked"))??;
        let (decoder, weights) = decoder?;
        let model = Arc::new(Model { decoder, text, pooling: Pooling::of(&request.documents) });
        let cache = ContextRequest { context: request.context, slots: request.slots, kv_type: request.kv_type };
        let slots = slots(&hyper, request.reference, cache);
        let engine = Engine::start(model.clone(), slots)?;
        let (name, reference) = (request.model.clone(), request.reference);
        Ok((Self { name, model, engine, weights, hyper, reference }, slots))
    }

    /// Replaces the KV cache; the weights stay as they are.
    ///
    /// # Errors
    /// Where there is no memory for it.
    pub(crate) async fn change(&self, request: ContextRequest) -> Result<Slots> {
        let slots = slots(&self.hyper, self.reference, request);
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

/// The slots that a request asks for, as far as the model goes. The reference mode keeps nothing but float32.
fn slots(hyper: &HyperParameters, reference: bool, request: ContextRequest) -> Slots {
    let shape = CacheShape {
        layers: hyper.layers as usize,
        kv_heads: hyper.kv_heads as usize,
        head_dim: hyper.head_dim as usize,
        context: request.context.min(hyper.context).max(1) as usize,
        kv_type: if reference { KvType::F32 } else { request.kv_type },
    };
    Slots { count: request.slots.max(1) as usize, shape }
}

fn hyper_parameters(value: &serde_json::Value) -> Result<HyperParameters> {
    ensure!(!value.is_null(), "the model's architecture cannot be run yet; its tensors are stored and can be listed");
    serde_json::from_value(value.clone())
        .context("the model's config has other hyper-parameters than this runner knows")
}
