//! Getting a loaded model for a request: its context, memory need, keep-alive, and load plan.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use manifests::ModelRef;
use protocol::{ContextRequest, DeviceChoice, KvType, LoadReply, UnusableDevice};
use scheduler::{
    AcquireRequest, Attempt, Context, KeepAlive, KeepAliveChoice, Lease, LoadPlan, PrivateMemory, Residence, Scheduler,
};

use crate::daemon::Daemon;
use crate::error::Failed;
use crate::load_blobs::LoadBlobs;
use crate::models;
use library::{DeviceRoom, MemoryNeed, Model, ModelLoad};

/// Options of a request for a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) context: Context,
    pub(crate) choice: DeviceChoice,
    /// The keep-alive in the request, if it has one.
    pub(crate) keep_alive: Option<KeepAlive>,
    /// Whether the request runs beside conversations, without a slot.
    pub(crate) is_aside: bool,
}

impl Wish {
    pub(crate) fn of(context: Context, choice: DeviceChoice) -> Self {
        Self { context, choice, keep_alive: None, is_aside: false }
    }
}

impl Daemon {
    /// Returns the context for a request with this `num_ctx`, limited to the context that the model
    /// was trained for.
    pub(crate) fn context(&self, model: &Model, num_ctx: Option<u64>) -> Context {
        let possible = |tokens: u64| tokens.min(model.parsed_facts.context()).max(1);
        match num_ctx {
            Some(tokens) => Context::Exactly(possible(tokens)),
            None => Context::AtLeast(possible(self.settings.context)),
        }
    }

    /// Returns the placement of layers that a request asks for. Without a GPU it is always the
    /// default, so that requests with these options share the loaded model.
    pub(crate) fn devices(&self, model: &Model, num_gpu: Option<i64>, main_gpu: Option<i64>) -> DeviceChoice {
        if !Scheduler::may_use_gpus(&self.settings.device) {
            return DeviceChoice::default();
        }
        // Many clients request all layers. That counts as no choice: as many layers as fit.
        let all = model.parsed_facts.known().map_or(0, |known| known.architecture.blueprint.layers.len() as u64 + 1);
        let number = |number: i64| u64::try_from(number).ok();
        DeviceChoice {
            layers: num_gpu.and_then(number).filter(|layers| *layers < all),
            device: main_gpu.and_then(number),
        }
    }

    /// Returns the element type of KV caches. The reference mode uses float32.
    pub(crate) fn kv_type(&self) -> KvType {
        if self.settings.reference { KvType::F32 } else { self.settings.kv_type }
    }

    /// Waits until the model is loaded and a slot is free, and leases it.
    pub(crate) async fn acquire(&self, model: &Model, wish: Wish) -> Result<Lease, Failed> {
        let Wish { context, choice, keep_alive: asked, is_aside } = wish;
        let cache =
            ContextRequest { context: context.tokens(), slots: self.settings.parallel, kv_type: self.kv_type() };
        let need = MemoryNeed::of(model, cache);
        let wanted = AcquireRequest {
            model: *model.manifest.digest(),
            name: model.name.clone(),
            context,
            need: need.total(),
            keep_alive: KeepAliveChoice { asked, default: self.keep_alive() },
            residence: self.residence(model),
            choice,
            is_aside,
        };
        let loads = AtomicBool::new(false);
        let plan = |attempt| {
            loads.store(true, Ordering::Relaxed);
            self.plan(model.clone(), cache, choice, attempt)
        };
        let lease: Lease = self.scheduler.acquire(wanted, plan).await?;
        // Another request may have replaced the KV cache meanwhile.
        if loads.load(Ordering::Relaxed) && lease.reply().context == cache.context {
            compare(&model.name, need, lease.reply());
        }
        Ok(lease)
    }

    /// Makes the plan of a load: its files and the placement of layers. Returns `None` if devices
    /// have no room for the whole model beside other models that may still be unloaded.
    async fn plan(
        &self,
        model: Model,
        cache: ContextRequest,
        choice: DeviceChoice,
        attempt: Attempt,
    ) -> Result<Option<LoadPlan>, Failed> {
        let (settings, own) = (self.settings.clone(), model.clone());
        let plan = models::blocking(&self.library, move |library| {
            library.record_use(own.manifest.digest(), SystemTime::now());
            library::load_plan(library, &own, &settings.device, cache, settings.reference)
        });
        let mut load = plan.await?;
        // After the plan, which fails if the model cannot run, and keeps the blobs on the disk.
        self.copy_back(&model).await?;
        load.request.deterministic = self.settings.deterministic;
        if self.settings.reference {
            return Ok(Some(load_plan(load, None)));
        }
        let counted = model.clone();
        let private = PrivateMemory::new(move |cache| library::private_memory(&counted, cache));
        let blobs = load.request.blobs.iter().map(protocol::Blob::key).collect();
        let Some(survey) = self.scheduler.survey(&self.settings.device, blobs).await else {
            return Ok(Some(load_plan(load, Some(private))));
        };
        for UnusableDevice { name, reason } in &survey.unusable {
            tracing::info!(device = name, reason, "a device is not used");
        }
        let room = DeviceRoom { survey, choice, assumed: self.settings.devices, is_last: attempt == Attempt::Last };
        models::blocking(&self.library, move |library| {
            let is_assigned = library::assign_layers(library, &model, cache, &room, &mut load)?;
            Ok(is_assigned.then(|| load_plan(load, Some(private))))
        })
        .await
    }

    /// Returns how long a model stays loaded after a request without a keep-alive.
    fn keep_alive(&self) -> KeepAlive {
        self.settings.keep_alive.map_or(KeepAlive::Forever, KeepAlive::For)
    }

    fn residence(&self, model: &Model) -> Residence {
        let key = |name: &str| name.parse::<ModelRef>().ok().and_then(|reference| reference.tag_key());
        let own = key(&model.name);
        let pinned = own.is_some() && self.settings.pin.iter().any(|name| key(name) == own);
        if pinned { Residence::Pinned } else { Residence::Evictable }
    }
}

/// The load of the library as the scheduler takes it.
fn load_plan(load: ModelLoad, private: Option<PrivateMemory>) -> LoadPlan {
    let ModelLoad { request, files, reserved } = load;
    LoadPlan { request, blobs: LoadBlobs::new(files), private, reserved }
}

/// Logs planned and actual memory of a load. Pages of the KV cache are allocated as it fills, and
/// activations at the first prompt.
fn compare(model: &str, need: MemoryNeed, reply: &LoadReply) {
    let MemoryNeed { kv_cache, process, .. } = need;
    tracing::info!(
        model,
        planned.kv_cache = kv_cache,
        planned.private = process,
        kv_cache = reply.kv_cache,
        private = reply.private,
        "memory as planned and as it is"
    );
    if kv_cache != reply.kv_cache && process > 0 {
        tracing::warn!(model, "the KV cache is not as large as planned: please report it");
    }
}
