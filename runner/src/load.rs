//! Loading: from the daemon's plan to a model.

use anyhow::{Context, Result, ensure};
use formats::HyperParameters;
use protocol::{KvType, LoadReply, LoadRequest};

use crate::cache::KvCache;
use crate::decoder::Decoder;
use crate::device;
use crate::model::{Model, TextModel};
use crate::weights::Weights;

/// Maps and prepares everything a plan names.
pub(crate) fn load(request: &LoadRequest) -> Result<(Model, KvCache, LoadReply)> {
    let (ours, theirs) = (protocol::VERSION, request.version);
    ensure!(ours == theirs, "this runner speaks protocol {ours}, the daemon {theirs}; install both from one build");
    let device = device::open(&request.device)?;
    let hyper = hyper_parameters(&request.hyper_parameters)?;
    let context = request.context.min(hyper.context).max(1) as usize;
    // Tokenizer and decoder share nothing, and either takes a while.
    let (text, decoder) = std::thread::scope(|scope| {
        let text = scope.spawn(|| TextModel::load(request));
        let decoder = Weights::map(&request.tensors, device.clone(), request.reference)
            .and_then(|weights| Ok((Decoder::load(&weights, &hyper, context)?, weights.size())));
        (text.join(), decoder)
    });
    let text = text.map_err(|_| anyhow::anyhow!("loading the tokenizer panicked"))??;
    let (decoder, weights) = decoder?;
    let cache = KvCache::new(hyper.layers as usize, hyper.kv_heads as usize, context, hyper.head_dim as usize, &device)
        .context("the KV cache does not fit into memory; choose a smaller context")?;
    let reply = LoadReply {
        device: device::name(&device),
        context: context as u64,
        slots: 1,
        kv_type: KvType::F32,
        weights,
        kv_cache: cache.size(),
        private: 0,
    };
    Ok((Model { decoder, text }, cache, reply))
}

fn hyper_parameters(value: &serde_json::Value) -> Result<HyperParameters> {
    ensure!(!value.is_null(), "the model's architecture cannot be run yet; its tensors are stored and can be listed");
    serde_json::from_value(value.clone())
        .context("the model's config has other hyper-parameters than this runner knows")
}
