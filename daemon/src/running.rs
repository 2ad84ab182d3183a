//! `/api/lode/running`.

use std::time::Instant;

use api::lode::{Rate, RunningModel, RunningResponse};
use axum::Json;
use axum::extract::State;

use crate::daemon::Daemon;
use crate::model_documents::timestamp;
use crate::rates::PERIOD;

pub(crate) async fn running(State(daemon): State<Daemon>) -> Json<RunningResponse> {
    let model = |loaded: scheduler::Loaded| RunningModel {
        name: loaded.name,
        digest: loaded.key.model.to_string(),
        pid: loaded.pid,
        active: loaded.active as u64,
        waiting: loaded.waiting as u64,
        slots: loaded.reply.slots,
        context: loaded.reply.context,
        kv_cache_type: loaded.reply.kv_type.name().to_owned(),
        weights: loaded.reply.weights,
        kv_cache: loaded.reply.kv_cache,
        on_devices: loaded.reply.on_devices,
        private: loaded.reply.private,
        device: loaded.reply.device,
        device_note: loaded.reply.device_note,
        expires_at: loaded.expires.map(timestamp),
    };
    let counts = daemon.scheduler.counts();
    let rates = daemon.rates.last(Instant::now()).into_iter();
    Json(RunningResponse {
        models: daemon.scheduler.loaded().into_iter().map(model).collect(),
        waiting: counts.waiting as u64,
        active: counts.active as u64,
        queue: daemon.settings.max_queue as u64,
        most_loaded: daemon.settings.max_loaded as u64,
        memory_limit: daemon.settings.memory_limit,
        loads: counts.loads,
        evictions: counts.evictions,
        crashes: counts.crashes,
        refused: counts.refused,
        period: PERIOD.as_secs_f64(),
        rates: rates.map(|rate| Rate { prompt: rate.prompt, generated: rate.generated }).collect(),
    })
}
