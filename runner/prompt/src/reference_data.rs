//! The reference data of the tests, which can be absent.

use std::io::Write;
use std::path::{Path, PathBuf};

/// Returns a folder of the fixtures; `None` if they are absent, which is recorded as a skip of
/// `test`.
pub(crate) fn fixtures(test: &str, name: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("LODE_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"), PathBuf::from);
    if shared.is_dir() {
        return Some(shared.join("fixtures").join(name));
    }
    skipped(&format!("{test}: there is no reference data at `{}`", shared.display()));
    None
}

/// Records a skipped test.
pub(crate) fn skipped(reason: &str) {
    // `scripts/test` lists the skipped tests at the end.
    if let Some(list) = std::env::var_os("LODE_TEST_SKIPPED") {
        let list = std::fs::File::options().append(true).create(true).open(list);
        list.expect("the list of what is skipped").write_all(format!("{reason}\n").as_bytes()).expect("a line");
    }
}
