//! Preparations for a GPU's driver outside of a runner's isolation: loading its kernel module and
//! providing a folder for compiled kernels.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::RunnerOptions;

/// The variable that names the folder for kernels that NVIDIA's driver compiles.
pub(crate) const CACHE: &str = "CUDA_CACHE_PATH";
/// How long the first start of a driver may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Whether the kernel has NVIDIA's driver. `/dev/dxg` is the device on the Windows Subsystem for
/// Linux.
pub(crate) fn is_there() -> bool {
    ["/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg"].iter().any(|path| Path::new(path).exists())
}

/// Whether a choice of device may include GPUs whose memory the holder process can share.
pub(crate) fn can_be_meant(device: &str) -> bool {
    device.starts_with("emulated:") || ((device == "auto" || device.starts_with("cuda")) && is_there())
}

/// Returns the environment of runners with `folder` as the driver's cache. Nothing changes if there
/// is no driver, or if the environment already names a cache.
///
/// # Errors
/// The folder cannot be created.
pub fn with_cache(
    mut environment: Vec<(OsString, OsString)>,
    folder: &Path,
) -> std::io::Result<Vec<(OsString, OsString)>> {
    if is_there() && environment.iter().all(|(name, _)| name != CACHE) {
        std::fs::create_dir_all(folder)?;
        environment.push((CACHE.into(), folder.into()));
    }
    Ok(environment)
}

/// Has the driver load the module `nvidia-uvm`, which it otherwise loads at its first use. That
/// needs a helper program, which an isolated process may not start, so the runner program runs once
/// without isolation. Runs once per daemon: if the first attempt does not help, no later one does.
pub(crate) async fn prepare(options: &RunnerOptions) {
    static PREPARED: OnceCell<()> = OnceCell::const_new();
    let lacks = |path| Path::new("/proc/driver/nvidia").exists() && !Path::new(path).exists();
    if options.isolated && lacks("/dev/nvidia-uvm") {
        PREPARED.get_or_init(|| start(options)).await;
    }
}

async fn start(options: &RunnerOptions) {
    let mut command = Command::new(&options.program);
    command.arg("--devices").env_clear().envs(options.environment.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(PATIENCE, command.status()).await {
        Ok(Ok(status)) if status.success() => {}
        Ok(Ok(status)) => tracing::warn!(%status, "the GPU's driver is not prepared"),
        Ok(Err(error)) => tracing::warn!(%error, "the GPU's driver is not prepared"),
        Err(_) => tracing::warn!(seconds = PATIENCE.as_secs(), "the GPU's driver was not prepared in time"),
    }
}
