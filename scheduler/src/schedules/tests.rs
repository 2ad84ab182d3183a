//! Tests of the scheduler with random orders of threads.

use std::collections::HashMap;
use std::fs::File;
use std::pin::pin;
use std::sync::Mutex;

use content::Digest;
use futures_util::future::{Either, join_all, select};
use protocol::DeviceChoice;
use serde_json::json;
use shuttle::future::block_on;

use super::*;
use crate::{
    AcquireRequest, Attempt, BlobSource, Context, KeepAlive, KeepAliveChoice, Lease, Limits, LoadPlan, Residence,
    Scheduler,
};

const MODELS: [&str; 3] = ["a", "b", "c"];
const SLOTS: u64 = 2;
const MOST: usize = 2;

/// The current users of each process, and whether the scheduler has ended.
#[derive(Default)]
struct Uses {
    by_process: Mutex<HashMap<u32, u64>>,
    is_over: AtomicBool,
}

/// The blobs of a plan that has none.
#[derive(Debug)]
struct NoBlobs;

impl BlobSource for NoBlobs {
    fn source_error(&self) -> Option<String> {
        None
    }

    fn open(&self, index: usize) -> std::io::Result<File> {
        panic!("the plan has no blob {index}")
    }
}

fn wanted() -> AcquireRequest {
    let model = MODELS[thread_rng().gen_range(0..MODELS.len())];
    let context = [Context::Exactly(64), Context::AtLeast(64), Context::Exactly(128)][thread_rng().gen_range(0..3)];
    let after = [Duration::ZERO, Duration::from_secs(1), Duration::from_hours(1)][thread_rng().gen_range(0..3)];
    AcquireRequest {
        model: Digest::of(model.as_bytes()),
        name: model.to_owned(),
        context,
        need: thread_rng().gen_range(1..60),
        keep_alive: KeepAliveChoice { asked: None, default: KeepAlive::For(after) },
        residence: if thread_rng().gen_ratio(1, 8) { Residence::Pinned } else { Residence::Evictable },
        choice: DeviceChoice::default(),
        is_aside: thread_rng().gen_ratio(1, 4),
    }
}

fn plan(model: &Digest, context: u64) -> LoadPlan {
    let request = json!({
        "version": protocol::VERSION, "model": model.to_string(), "device": "cpu", "context": context, "slots": SLOTS, "kv_type": "f16",
        "reference": false, "blueprint": {}, "blobs": [], "tensors": [], "documents": []
    });
    let request = serde_json::from_value(request).expect("a request");
    LoadPlan { request, blobs: Arc::new(NoBlobs), private: None, reserved: None }
}

async fn acquire(scheduler: &Scheduler, wanted: AcquireRequest) -> Result<Lease, Error> {
    let (model, context) = (wanted.model, wanted.context.tokens());
    let planned = async |attempt| {
        pause(4).await;
        match thread_rng().gen_range(0..10) {
            0 => Err(Error::Protocol("there is no plan".to_owned())),
            1 if attempt == Attempt::Beside => Ok(None),
            _ => Ok(Some(plan(&model, context))),
        }
    };
    scheduler.acquire(wanted, planned).await
}

/// A client: requests models, leaves at any moment, or uses a granted model for a while.
async fn ask(scheduler: Scheduler, uses: Arc<Uses>) {
    for _ in 0..3 {
        let wanted = wanted();
        // Requests beside the slots take no slot.
        let slots = u64::from(!wanted.is_aside);
        // Half of the requests wait until they are answered, however long that takes.
        let (context, waits, patience) = (wanted.context, thread_rng().r#gen(), thread_rng().gen_range(0..200));
        let granted = {
            let asked = pin!(acquire(&scheduler, wanted));
            match select(asked, pin!(patience_ends(waits, patience))).await {
                Either::Left((granted, _)) => granted,
                Either::Right(_) => continue,
            }
        };
        let Ok(lease) = granted else { continue };
        assert!(!uses.is_over.load(Ordering::SeqCst), "a model was granted after the end");
        assert!(context.suits(lease.reply().context), "another context than was asked for");
        let pid = lease.runner().pid();
        let users = {
            let mut by_process = uses.by_process.lock().expect("no thread panicked");
            let users = by_process.entry(pid).or_default();
            *users += slots;
            *users
        };
        assert!(users <= SLOTS, "more use a runner than it has slots");
        pause(12).await;
        *uses.by_process.lock().expect("no thread panicked").entry(pid).or_default() -= slots;
        drop(lease);
    }
}

async fn patience_ends(never: bool, times: u32) {
    for _ in 0..times {
        yield_now().await;
    }
    if never {
        std::future::pending().await
    }
}

/// An operator that lists models and stops them.
async fn look_after(scheduler: Scheduler) {
    for _ in 0..4 {
        pause(24).await;
        let model = Digest::of(MODELS[thread_rng().gen_range(0..MODELS.len())].as_bytes());
        match thread_rng().gen_range(0..3) {
            0 => _ = scheduler.stop(&model),
            1 => _ = scheduler.stop_when_idle(&model),
            _ => assert!(scheduler.loaded().len() <= MOST),
        }
        assert!(Process::running() <= MOST as u64, "more processes than places");
    }
}

fn requests_come_in_any_order() {
    Process::forget_all();
    let options = RunnerOptions {
        program: PathBuf::from("/nowhere/runner"),
        sockets: PathBuf::from("/nowhere"),
        environment: Vec::new(),
        isolated: false,
        patience: None,
        memory_limit: None,
        gpu_keep: "0".to_owned(),
        threads: None,
        cpu: None,
    };
    let limits = Limits {
        most: MOST,
        memory: Some(100),
        queue: 8,
        load_timeout: Duration::from_secs(10),
        turn: Duration::from_secs(2),
    };
    block_on(async {
        let scheduler = Scheduler::new(options, limits);
        let uses = Arc::new(Uses::default());
        let mut all: Vec<_> = (0..4).map(|_| spawn(ask(scheduler.clone(), uses.clone()))).collect();
        all.push(spawn(look_after(scheduler.clone())));
        if thread_rng().gen_ratio(1, 3) {
            // The scheduler stops while clients make requests.
            pause(200).await;
        } else {
            for ended in join_all(all.drain(..)).await {
                ended.expect("no panic");
            }
            let counts = scheduler.counts();
            assert_eq!((counts.waiting, counts.active), (0, 0), "nobody waits or uses anything");
        }
        scheduler.stop_all().await;
        assert_eq!(Process::running(), 0, "a process is left");
        uses.is_over.store(true, Ordering::SeqCst);
        assert!(matches!(acquire(&scheduler, wanted()).await, Err(Error::Stopped)));
        for ended in join_all(all).await {
            ended.expect("no panic");
        }
        let counts = scheduler.counts();
        assert_eq!((counts.waiting, counts.active, counts.loaded), (0, 0, 0));
        assert!(scheduler.is_empty(), "a request or a runner is known that has ended");
    });
}

#[test]
fn nobody_is_forgotten_and_no_process_is_left() {
    // Another test may have installed the provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let asked = std::env::var("LODE_CAMPAIGN_SCHEDULES").ok().and_then(|text| text.parse().ok());
    let orders = asked.unwrap_or(200);
    shuttle::check_random(requests_come_in_any_order, orders);
    shuttle::check_pct(requests_come_in_any_order, orders, 4);
}
