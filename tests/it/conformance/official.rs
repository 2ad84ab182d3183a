//! The conformance programme of the specification, if there is one on this machine.
//!
//! `LODE_TEST_OCI` names the program, which `go build` makes of the folder `conformance` in a clone
//! of `https://github.com/opencontainers/distribution-spec`. Package registries do not have it, so
//! `scripts/test` cannot install it.

use std::path::PathBuf;

use crate::server::Server;
use crate::support::skip;

/// Checks that the programme switches on besides those of its development profile.
const EVERYTHING: [(&str, &str); 6] = [
    ("OCI_VERSION", "dev"),
    ("OCI_API_BLOBS_DIGEST_HEADER", "true"),
    ("OCI_API_BLOBS_UPLOAD_CANCEL", "true"),
    ("OCI_API_MANIFESTS_DIGEST_HEADER", "true"),
    ("OCI_API_MANIFESTS_TAG_PARAM", "true"),
    ("OCI_DATA_SPARSE", "true"),
];

/// Returns the program, or reports the test as skipped.
pub(crate) fn program(test: &str) -> Option<PathBuf> {
    let program = std::env::var_os("LODE_TEST_OCI").map(PathBuf::from);
    if program.is_none() {
        skip(test, "LODE_TEST_OCI names no conformance program of OCI's distribution specification");
    }
    program
}

/// Runs the program against a registry that accepts sparse manifests, with its defaults and with
/// everything switched on, and checks that all results are good.
pub(crate) async fn passes(program: PathBuf, address: &str) {
    for (profile, settings, least) in [("default", &[][..], 800), ("all", &EVERYTHING[..], 1000)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = tokio::process::Command::new(&program);
        command
            .current_dir(folder.path())
            .env("OCI_RESULTS_DIR", folder.path())
            .env("OCI_REGISTRY", address)
            .env("OCI_TLS", "disabled")
            .env("OCI_LOG", "error")
            .env("OCI_REPO1", format!("conformance/{profile}-1"))
            .env("OCI_REPO2", format!("conformance/{profile}-2"))
            .envs(settings.iter().copied());
        let ended = command.output().await.expect("it runs");
        let text = String::from_utf8_lossy(&ended.stdout);
        let failed: Vec<&str> = text.lines().filter(|line| line.ends_with(": FAIL")).collect();
        assert!(ended.status.success() && failed.is_empty(), "{profile}: {failed:?}");
        let report = std::fs::read_to_string(folder.path().join("junit.xml")).expect("a report");
        let number = |name: &str| {
            let (_, rest) = report.split_once(&format!("{name}=\""))?;
            rest.split_once('"')?.0.parse::<u32>().ok()
        };
        assert!(number("tests") > Some(least) && number("failures") == Some(0), "{profile}: {report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_programme_passes_over_the_disk() {
    let Some(program) = program("conformance::official::the_official_programme_passes_over_the_disk") else { return };
    let server = Server::start(&[("LODE_REGISTRY_SPARSE", "1")]).await;
    passes(program, &server.address).await;
}
