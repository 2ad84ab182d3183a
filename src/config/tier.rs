//! The variables of the tier.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use daemon::{TierPlace, TierSettings};
use tier::TierPolicy;

use super::storage::StorageConfig;
use super::variables::{bytes, first};
use crate::time_span;

/// Reads the tier of the store: a bucket or a folder, and which blobs move to it.
pub(super) fn tier(storage: &StorageConfig) -> Result<Option<TierSettings>> {
    let after = first(&["LODE_TIER_AFTER"]).map(|text| after(&text)).transpose()?;
    let disk = bytes(&["LODE_TIER_DISK"])?;
    let Some(text) = first(&["LODE_TIER"]) else {
        if after.is_some() || disk.is_some() {
            bail!("LODE_TIER_AFTER and LODE_TIER_DISK need LODE_TIER, e.g. LODE_TIER=s3://BUCKET/PREFIX");
        }
        return Ok(None);
    };
    let policy = TierPolicy { after: after.map(std::time::Duration::from_secs), disk };
    Ok(Some(TierSettings { place: place(&text, storage)?, policy }))
}

fn place(text: &str, storage: &StorageConfig) -> Result<TierPlace> {
    if text.starts_with('/') {
        // The store remembers the path, so it has one spelling.
        return Ok(TierPlace::Folder(PathBuf::from(text).components().collect()));
    }
    let location = storage.at(text).map_err(|e| anyhow!("LODE_TIER: {e}, or the absolute path of a folder"))?;
    if location.is_memory() {
        bail!("LODE_TIER is `{text}`, which loses all blobs when the daemon ends; expected a bucket or a folder");
    }
    Ok(TierPlace::Bucket(location))
}

fn after(text: &str) -> Result<u64> {
    match time_span::seconds(text).map_err(|e| anyhow!("LODE_TIER_AFTER: {e}"))? {
        0 => bail!("LODE_TIER_AFTER is `{text}`, expected more than no time, e.g. 7d"),
        seconds => Ok(seconds),
    }
}
