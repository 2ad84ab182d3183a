//! The store's folder, further stores, and the runner's program.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::variables::first;

/// Returns the folder of the store.
pub(super) fn home() -> Result<PathBuf> {
    if let Some(home) = first(&["LODE_HOME"]) {
        return std::path::absolute(home).context("LODE_HOME is not a path");
    }
    let user = env::home_dir().context("there is no home folder; set LODE_HOME to the folder of the store")?;
    if cfg!(target_os = "macos") {
        return Ok(user.join("Library/Application Support/lode"));
    }
    Ok(first(&["XDG_DATA_HOME"]).map_or_else(|| user.join(".local/share"), PathBuf::from).join("lode"))
}

/// Reads the folders of further stores: absolute paths with colons between them.
pub(super) fn roots() -> Result<Vec<PathBuf>> {
    let text = first(&["LODE_ROOTS"]).unwrap_or_default();
    let paths: Vec<PathBuf> = env::split_paths(&text).filter(|path| !path.as_os_str().is_empty()).collect();
    match paths.iter().find(|path| !path.is_absolute()) {
        Some(path) => bail!("LODE_ROOTS has `{}`, expected absolute paths with `:` between them", path.display()),
        None => Ok(paths),
    }
}

/// Returns the program of the runner.
pub(super) fn runner() -> Result<PathBuf> {
    if let Some(program) = first(&["LODE_RUNNER"]) {
        return Ok(program.into());
    }
    let own = env::current_exe().context("cannot find this program; set LODE_RUNNER to the runner's program")?;
    Ok(own.with_file_name(format!("lode-runner{}", env::consts::EXE_SUFFIX)))
}
