//! What a GPU's driver needs outside of a runner's isolation: it is prepared before, and has a folder for what it compiles.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::RunnerOptions;

/// The variable that names the folder for what NVIDIA's driver compiles.
pub(crate) const CACHE: &str = "CUDA_CACHE_PATH";
/// How long the first start of a driver may take.
const PATIENCE: Duration = Duration::from_mins(1);

/// Whether the kernel has NVIDIA's driver.
pub fn is_there() -> bool {
    Path::new("/proc/driver/nvidia").exists() || Path::new("/dev/nvidiactl").exists()
}

/// The environment of runners with `folder` for what the driver compiles, where there is a driver and nobody has said another.
///
/// # Errors
/// The folder cannot be made.
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

/// Has the driver load what it loads at its first use (`nvidia-uvm`), by a program that may have other programs do it: an isolated one may not.
pub(crate) async fn prepare(options: &RunnerOptions) {
    if !options.isolated || !is_there() || Path::new("/dev/nvidia-uvm").exists() {
        return;
    }
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
