//! What plans are to assume of devices. Ollama's names; see `docs/memory.md`.

use anyhow::Result;
use library::AssumedDevices;

use super::variables::{bytes, flag};

/// Reads the environment.
pub(super) fn devices() -> Result<AssumedDevices> {
    Ok(AssumedDevices {
        overhead: bytes(&["LODE_GPU_OVERHEAD", "OLLAMA_GPU_OVERHEAD"])?.unwrap_or(0),
        spread: flag(&["LODE_SCHED_SPREAD", "OLLAMA_SCHED_SPREAD"]).unwrap_or(false),
        flash_attention: flag(&["LODE_FLASH_ATTENTION", "OLLAMA_FLASH_ATTENTION"]),
    })
}
