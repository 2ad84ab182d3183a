//! The tier of the store in the daemon: attaching it, moving blobs in the background, and copying
//! the blobs of a model back before a load.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bucket::BucketTier;
use content::operation::{Context, OperationError, Result};
use content::{BlobTier, Unwatched};
use library::{Library, Model};
use scheduler::Scheduler;
use store::{FolderTier, Store};
use tier::{Moved, OpenTier, Room, Tier, TierOptions};

use crate::daemon::Daemon;
use crate::error::Failed;
use crate::models;
use crate::settings::{TierPlace, TierSettings};

/// Time between two looks for blobs that were not used for long.
const MOVES: Duration = Duration::from_hours(1);
/// The pause before the first one.
const FIRST_MOVES: Duration = Duration::from_mins(1);
/// Minimum time between two looks at the size of all blobs.
const BUDGET: Duration = Duration::from_secs(5);
/// The pause after a look, as a multiple of its duration.
const BUDGET_REST: u32 = 100;
/// Number of looks for unused blobs between two comparisons of the tier with the store's list of
/// it.
const COMPARISONS: u32 = 24;

/// Attaches the tier of the settings. Without one, warns if blobs of the store are in a tier.
pub(crate) fn attach(
    store: &Store,
    library: &Library,
    settings: Option<&TierSettings>,
    scheduler: &Scheduler,
) -> Result<Option<Tier>> {
    let Some(TierSettings { place, policy }) = settings else {
        warn_of_absent_tier(store)?;
        return Ok(None);
    };
    if let Err(read_only) = store.ensure_writable() {
        tracing::warn!("LODE_TIER is not used: {read_only}");
        return Ok(None);
    }
    let location = match place {
        TierPlace::Bucket(location) => location.to_string(),
        TierPlace::Folder(folder) => folder.display().to_string(),
    };
    let scheduler = scheduler.clone();
    let options = TierOptions {
        location: location.clone(),
        policy: *policy,
        new_id: format!("{:032x}", rand::random::<u128>()),
        open: opener(place.clone()),
        loaded: Box::new(move || scheduler.loaded().into_iter().map(|loaded| loaded.key.model).collect()),
    };
    let tier = Tier::attach(store, library.clone(), options).context("LODE_TIER cannot be used")?;
    tracing::info!(tier = location, "blobs that are rarely used move to the tier");
    Ok(Some(tier))
}

fn opener(place: TierPlace) -> Box<OpenTier> {
    Box::new(move |owner| {
        let place = place.clone();
        Box::pin(async move {
            let tier: Arc<dyn BlobTier> = match place {
                TierPlace::Bucket(location) => Arc::new(BucketTier::open(&location, &owner).await?),
                TierPlace::Folder(folder) => {
                    // A network file system may not answer.
                    let opened = tokio::task::spawn_blocking(move || FolderTier::open(&folder, &owner)).await;
                    Arc::new(opened.map_err(|e| content::Error::Other(Box::new(e)))??)
                }
            };
            Ok(tier)
        })
    })
}

fn warn_of_absent_tier(store: &Store) -> Result<()> {
    let Some(location) = store.tier_location()? else { return Ok(()) };
    // An unreadable list must not stop the daemon.
    if store.blobs().has_any_only_in_tier().unwrap_or(true) {
        tracing::warn!(
            "blobs are only in the tier `{location}`; set LODE_TIER to it, or their models cannot be loaded"
        );
    }
    Ok(())
}

/// Moves blobs as the settings say, until the daemon ends.
pub(crate) async fn keep(tier: Option<&Tier>) {
    let Some(tier) = tier else { return };
    tokio::join!(move_unused(tier), keep_to_budget(tier));
}

async fn move_unused(tier: &Tier) {
    let (mut pause, mut until_comparison) = (FIRST_MOVES, 0);
    loop {
        tokio::time::sleep(pause).await;
        pause = MOVES;
        if until_comparison == 0 && compare(tier).await {
            until_comparison = COMPARISONS;
        }
        until_comparison = until_comparison.saturating_sub(1);
        // The budget has a loop of its own.
        maintain(tier, 0).await;
    }
}

/// Looks at the size of all blobs regularly: models are created, pulled and unloaded, after which
/// their blobs may move.
async fn keep_to_budget(tier: &Tier) {
    let mut is_stuck = false;
    loop {
        let begin = Instant::now();
        let over_budget = tier.over_budget().await;
        // A look at very many blobs takes long, so it is rarer.
        let pause = begin.elapsed().saturating_mul(BUDGET_REST).max(BUDGET);
        match over_budget {
            Ok(0) => is_stuck = false,
            Ok(bytes) => {
                let moves_nothing = maintain(tier, bytes).await == 0;
                if moves_nothing && !is_stuck {
                    tracing::warn!("the disk has more than LODE_TIER_DISK, and no further blob may move to the tier");
                }
                is_stuck = moves_nothing;
            }
            Err(error) => tracing::warn!("the disk cannot be measured for LODE_TIER_DISK: {error:#}"),
        }
        tokio::time::sleep(BUDGET.min(pause)).await;
        tokio::select! {
            () = tokio::time::sleep(pause.saturating_sub(BUDGET)) => {}
            () = tier.due() => {}
        }
    }
}

/// Moves unused blobs, and others until `at_least` bytes have left the disk. Returns their number.
async fn maintain(tier: &Tier, at_least: u64) -> u64 {
    match tier.maintain(SystemTime::now(), at_least, &Unwatched).await {
        Ok(Moved { blobs: 0, .. }) => 0,
        Ok(Moved { blobs, bytes, sent, .. }) => {
            tracing::info!(blobs, bytes, sent, "blobs moved to the tier");
            blobs
        }
        Err(error) => {
            tracing::warn!("blobs cannot move to the tier: {error:#}");
            0
        }
    }
}

/// Compares the tier with the store's list of it; returns whether that was possible.
async fn compare(tier: &Tier) -> bool {
    match tier.reconcile().await {
        Ok(report) => {
            let (found, removed) = (report.found, report.removed);
            if found + removed > 0 {
                tracing::info!(found, removed, "the tier was compared with the store's list of it");
            }
            true
        }
        Err(error) => {
            tracing::warn!("the tier cannot be compared with the store's list of it: {error:#}");
            false
        }
    }
}

impl Daemon {
    /// Copies the blobs of a model back that only the tier has, in a task of its own: if the client
    /// that waits for the model is gone, the next one need not begin again. The blobs are held
    /// meanwhile; afterwards, the load plan keeps them on the disk.
    pub(crate) async fn copy_back(&self, model: &Model) -> Result<(), Failed> {
        let Some(tier) = self.tier.clone() else { return Ok(()) };
        let own = model.clone();
        let ordered = models::blocking(&self.library, move |library| {
            let order = library.load_order(&own)?;
            Ok((library.hold(order.iter().map(|blob| blob.digest).collect()), order))
        });
        let (held, order) = ordered.await?;
        let copying = tokio::spawn(async move {
            let _held = held;
            tier.recall_all(order, Room::Make, &Unwatched).await
        });
        copying.await.map_err(|e| OperationError::text(format!("copying blobs back ended unexpectedly: {e}")))??;
        Ok(())
    }
}
