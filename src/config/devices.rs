//! Assumptions of memory plans about devices. The names are Ollama's; see `docs/memory.md`.

use anyhow::{Result, bail};
use library::AssumedDevices;

use super::variables::{bytes, first, flag};

/// Reads how much memory of a GPU unused weights may keep, in the format that runners accept.
pub(super) fn gpu_keep() -> Result<String> {
    let Some(text) = first(&["LODE_GPU_KEEP"]) else { return Ok("25%".to_owned()) };
    match text.trim().strip_suffix('%').map(str::parse::<u64>) {
        Some(Ok(percent @ 0..=100)) => Ok(format!("{percent}%")),
        Some(_) => bail!("LODE_GPU_KEEP is `{text}`, expected bytes such as `4GiB`, or `0%` to `100%`"),
        None => Ok(bytes(&["LODE_GPU_KEEP"])?.unwrap_or(0).to_string()),
    }
}

/// Reads the assumptions about devices.
pub(super) fn devices() -> Result<AssumedDevices> {
    Ok(AssumedDevices {
        overhead: bytes(&["LODE_GPU_OVERHEAD", "OLLAMA_GPU_OVERHEAD"])?.unwrap_or(0),
        spread: flag(&["LODE_SCHED_SPREAD", "OLLAMA_SCHED_SPREAD"]).unwrap_or(false),
        flash_attention: flag(&["LODE_FLASH_ATTENTION", "OLLAMA_FLASH_ATTENTION"]),
    })
}
