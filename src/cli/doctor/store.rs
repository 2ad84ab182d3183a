//! The store: whether it can be written, who has it open, how full its disk is.

use std::path::Path;

use store::Store;

use super::Finding;
use crate::cli::text::size;
use crate::config::Config;

/// Below this a model of middle size does not fit.
const LITTLE_SPACE: u64 = 5 << 30;

/// Looks at the store's folder. A folder that is not there yet is looked at where it will be made.
pub(super) fn check(config: &Config) -> Vec<Finding> {
    let home = &config.daemon.home;
    let there = home.ancestors().find(|folder| folder.exists()).unwrap_or(home);
    vec![folder(home, there), holder(home), space(there)]
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
        Err(error) => Finding::failure(
            "store",
            format!("`{}` cannot be written: {error}", there.display()),
            "run as the folder's owner, change its rights, or choose another folder by LODE_HOME",
        ),
    }
}

fn holder(home: &Path) -> Finding {
    match Store::holder(home) {
        Ok(Some(pid)) => Finding::ok("store lock", format!("process {pid} has the store open")),
        Ok(None) => Finding::ok("store lock", "nobody has the store open"),
        Err(error) => {
            Finding::failure("store lock", error.to_string(), "see who may read the file `lock` in the store")
        }
    }
}

fn space(there: &Path) -> Finding {
    let free = match rustix::fs::statvfs(there) {
        Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
        Err(error) => return Finding::warning("disk", format!("its free space is not known: {error}"), "look at `df`"),
    };
    let found = format!("{} free at `{}`", size(free), there.display());
    if free < LITTLE_SPACE {
        let remedy = "`lode prune` and `lode gc` remove what nobody needs, `lode du` shows what takes the space; \
                      LODE_HOME chooses another disk";
        Finding::warning("disk", found, remedy)
    } else {
        Finding::ok("disk", found)
    }
}
