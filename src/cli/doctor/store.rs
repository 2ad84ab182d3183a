//! Checks of the store: write access, the process that has it open, and free disk space.

use std::path::Path;
use std::time::SystemTime;

use store::Store;

use super::Finding;
use crate::config::Config;
use content::text::size;

/// Minimum free space in bytes. With less, a medium-sized model does not fit.
const LITTLE_SPACE: u64 = 5 << 30;

/// Checks the store's folder. If it does not exist yet, checks its nearest existing parent.
pub(super) fn check(config: &Config) -> Vec<Finding> {
    let home = &config.daemon.home;
    let there = home.ancestors().find(|folder| folder.exists()).unwrap_or(home);
    let mut findings = vec![folder(home, there), holder(home), space(there)];
    findings.extend(names(home));
    findings.extend(config.daemon.roots.iter().map(|path| root(path)));
    findings
}

fn folder(home: &Path, there: &Path) -> Finding {
    let shown = home.display();
    if !there.is_dir() {
        let remedy = "LODE_HOME is to name a folder; move the file away or choose another";
        return Finding::failure("store", format!("`{}` is not a folder", there.display()), remedy);
    }
    match rustix::fs::access(there, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK) {
        Ok(()) if there == home => Finding::ok("store", format!("`{shown}` can be written")),
        Ok(()) => Finding::ok("store", format!("`{shown}` is not there yet and can be made")),
        Err(_) if Store::is_read_only_at(home) => Finding::warning(
            "store",
            format!("`{shown}` can be read, not written: its file system is read-only, or it is another user's"),
            "models can be listed, run and pulled from it; to add some choose another folder by LODE_HOME",
        ),
        Err(error) => Finding::failure(
            "store",
            format!("`{}` cannot be written: {error}", there.display()),
            "run as the folder's owner, change its rights, or choose another folder by LODE_HOME",
        ),
    }
}

/// Checks a further store of `LODE_ROOTS`.
fn root(path: &Path) -> Finding {
    let shown = path.display();
    match Store::looks_like_root(path) {
        Ok(true) => Finding::ok("root", format!("`{shown}` has a store that can be read")),
        Ok(false) => Finding::warning(
            "root",
            format!("`{shown}` has no store"),
            "mount it, correct LODE_ROOTS, or make a store there: `lode move MODEL --to FOLDER --create`",
        ),
        Err(error) => Finding::failure(
            "root",
            format!("`{shown}` cannot be read: {error}"),
            "mount it, let the daemon's user read it, or take it out of LODE_ROOTS",
        ),
    }
}

fn holder(home: &Path) -> Finding {
    match Store::holder(home) {
        Ok(Some(pid)) => Finding::ok("store lock", format!("process {pid} has the store open")),
        Ok(None) => Finding::ok("store lock", "no process has the store open"),
        Err(error) => {
            Finding::failure("store lock", error.to_string(), "check the permissions of the file `lock` in the store")
        }
    }
}

/// Checks for tags, histories, links and leases that cannot be read.
fn names(home: &Path) -> Vec<Finding> {
    let damaged = Store::damaged_names_at(home, SystemTime::now());
    if damaged.is_empty() {
        return vec![Finding::ok("store names", "every tag, history, link and lease can be read")];
    }
    let remedy = "the blobs it refers to are kept until it is repaired: set or remove the name, or fix the permissions of the folder";
    damaged.into_iter().map(|error| Finding::warning("store names", error.to_string(), remedy)).collect()
}

fn space(there: &Path) -> Finding {
    let free = match rustix::fs::statvfs(there) {
        Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
        Err(error) => return Finding::warning("disk", format!("its free space is not known: {error}"), "look at `df`"),
    };
    let found = format!("{} free at `{}`", size(free), there.display());
    if free < LITTLE_SPACE {
        let remedy = "`lode prune` and `lode gc` delete unused data, `lode du` shows disk usage; \
                      LODE_HOME chooses another disk";
        Finding::warning("disk", found, remedy)
    } else {
        Finding::ok("disk", found)
    }
}
