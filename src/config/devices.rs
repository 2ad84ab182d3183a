//! What plans are to assume of devices. Ollama's names; see `docs/memory.md`.

use anyhow::Result;

use super::variables::{bytes, flag};

/// How plans treat devices.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DevicesConfig {
    /// Bytes that are kept free on every device, besides what is kept free anyway.
    pub(crate) overhead: u64,
    /// Use all devices, also where fewer would do.
    pub(crate) spread: bool,
    /// Whether Ollama would compute attention without its scores in memory, where somebody says.
    pub(crate) flash_attention: Option<bool>,
}

impl DevicesConfig {
    pub(super) fn read() -> Result<Self> {
        Ok(Self {
            overhead: bytes(&["LODE_GPU_OVERHEAD", "OLLAMA_GPU_OVERHEAD"])?.unwrap_or(0),
            spread: flag(&["LODE_SCHED_SPREAD", "OLLAMA_SCHED_SPREAD"]).unwrap_or(false),
            flash_attention: flag(&["LODE_FLASH_ATTENTION", "OLLAMA_FLASH_ATTENTION"]),
        })
    }
}
