//! The tier of the store in the daemon: attaching it, moving blobs in the background, and copying
//! the blobs of a model back before a load.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bucket::BucketTier;
use content::operation::{Context, Result};
use content::{BlobTier, Unwatched};
use library::{Library, Model};
use scheduler::Scheduler;
use store::{FolderTier, Hold, Store};
use tier::{Moved, OpenTier, Tier, TierOptions};

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
                TierPlace::Folder(folder) => Arc::new(FolderTier::open(&folder, &owner)?),
            };
            Ok(tier)
        })
    })
}

fn warn_of_absent_tier(store: &Store) -> Result<()> {
    let Some(location) = store.tier_location()? else { return Ok(()) };
    let mut blobs = 0_u64;
    store.blobs().each_only_in_tier(|_, _| blobs += 1)?;
    if blobs > 0 {
        tracing::warn!(
            blobs,
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
    let mut pause = FIRST_MOVES;
    for look in 0_u32.. {
        tokio::time::sleep(pause).await;
        pause = MOVES;
        if look % COMPARISONS == 0 {
            compare(tier).await;
        }
        maintain(tier).await;
    }
}

/// Looks at the size of all blobs regularly: models are created, pulled and unloaded, after which
/// their blobs may move.
async fn keep_to_budget(tier: &Tier) {
    let mut pause = BUDGET;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = tier.due() => {}
        }
        let begin = Instant::now();
        match tier.is_over_budget().await {
            Ok(true) => maintain(tier).await,
            Ok(false) => {}
            Err(error) => tracing::warn!("the disk cannot be measured for LODE_TIER_DISK: {error:#}"),
        }
        // A look at very many blobs takes long, so it is rarer.
        pause = begin.elapsed().saturating_mul(BUDGET_REST).max(BUDGET);
    }
}

async fn maintain(tier: &Tier) {
    match tier.maintain(SystemTime::now(), &Unwatched).await {
        Ok(Moved { blobs: 0, .. }) => {}
        Ok(Moved { blobs, bytes, sent, .. }) => tracing::info!(blobs, bytes, sent, "blobs moved to the tier"),
        Err(error) => tracing::warn!("blobs cannot move to the tier: {error:#}"),
    }
}

async fn compare(tier: &Tier) {
    match tier.reconcile().await {
        Ok(report) if report.found + report.removed > 0 => {
            tracing::info!(
                found = report.found,
                removed = report.removed,
                "the tier was compared with the store's list of it"
            );
        }
        Ok(_) => {}
        Err(error) => tracing::warn!("the tier cannot be compared with the store's list of it: {error:#}"),
    }
}

impl Daemon {
    /// Copies the blobs of a model back that only the tier has, unless it is loaded. The blobs are
    /// held, so that none leaves the disk before the runner has opened them.
    pub(crate) async fn copy_back(&self, model: &Model) -> Result<Option<Hold>, Failed> {
        let Some(tier) = &self.tier else { return Ok(None) };
        let digest = *model.manifest.digest();
        if self.scheduler.loaded().iter().any(|loaded| loaded.key.model == digest) {
            return Ok(None);
        }
        let own = model.clone();
        let ordered = models::blocking(&self.library, move |library| {
            let order = library.load_order(&own)?;
            Ok((library.hold(order.iter().map(|blob| blob.digest).collect()), order))
        });
        let (hold, order) = ordered.await?;
        tier.recall_all(order, &Unwatched).await?;
        Ok(Some(hold))
    }
}
