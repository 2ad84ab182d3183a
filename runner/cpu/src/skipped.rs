//! Reports of tests that this machine cannot run.

use std::io::Write;

/// Reports that a test is skipped.
pub(crate) fn skipped(reason: &str) {
    // `scripts/test` lists skipped tests at the end.
    if let Some(list) = std::env::var_os("LODE_TEST_SKIPPED") {
        let list = std::fs::File::options().append(true).create(true).open(list);
        list.expect("the list of skipped tests").write_all(format!("{reason}\n").as_bytes()).expect("a line");
    }
    tracing::warn!("{reason}");
}
