//! Pulls from a registry that lies, breaks connections, stalls and redirects in circles. The error
//! names the fault and the registry, no wrong content remains, and a second pull does not fetch
//! correct content again.

mod blobs;
mod crossed;
mod door;
mod manifests;
mod nearer;
mod registry;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::timeout;

use crate::peers::password;
use crate::server::Server;
use crate::stored;

use registry::{Content, Registry};

/// The number of concurrent cases; most cases spend most of their time waiting.
const AT_ONCE: usize = 6;

/// The expected outcome of a pull.
enum Expect {
    /// The pull succeeds despite the fault.
    Works,
    /// The pull fails, and the error contains the registry's address and these words.
    Fails(Vec<String>),
    /// Either outcome; only the state afterwards matters.
    Either,
}

impl Expect {
    fn fails(words: &[&str]) -> Self {
        Self::Fails(words.iter().map(|&word| word.to_owned()).collect())
    }
}

/// One kind of hostile behaviour.
struct Case {
    name: &'static str,
    /// Configures the registry.
    prepare: Box<dyn Fn(&Registry)>,
    /// The model to pull, without the registry's address.
    model: String,
    expect: Expect,
}

impl Case {
    fn new(name: &'static str, expect: Expect, prepare: impl Fn(&Registry) + 'static) -> Self {
        Self { name, prepare: Box::new(prepare), model: "library/tiny".to_owned(), expect }
    }
}

async fn check_all(content: Arc<Content>, cases: Vec<Case>) {
    stream::iter(&cases).for_each_concurrent(AT_ONCE, |case| check(&content, case)).await;
}

async fn check(content: &Content, case: &Case) {
    let registry = Registry::start(content);
    (case.prepare)(&registry);
    let prepare = |home: &std::path::Path| password(home, &registry.address);
    let target = Server::prepared(&[("LODE_STALL_TIMEOUT", "1s")], prepare).await;
    let what = case.name;
    let limit = Duration::from_mins(1);
    let pulled = timeout(limit, target.try_pull(&format!("{}/{}", registry.address, case.model))).await;
    let outcome = pulled.unwrap_or_else(|_| panic!("{what}: no end after {limit:?}"));
    match (&case.expect, &outcome) {
        (Expect::Works, Err(error)) => panic!("{what}: was to work: {error}"),
        (Expect::Fails(_), Ok(_)) => panic!("{what}: was to fail"),
        (Expect::Fails(words), Err(error)) => {
            let missing = words.iter().chain([&registry.address]).find(|word| !error.contains(*word));
            assert!(missing.is_none(), "{what}: the error does not say {missing:?}: {error}");
        }
        _ => {}
    }
    // Reads and hashes every blob.
    let before = stored::blobs(&target.home());
    if outcome.is_err() {
        assert!(target.names().await.is_empty(), "{what}: a pull that failed is listed");
        assert!(stored::tags(&target.home()).is_empty(), "{what}: a pull that failed left a tag");
    }
    let asked_tags = registry.seen().iter().any(|seen| seen.path.contains("/tags/list"));
    assert!(!asked_tags, "{what}: a pull has no business with the list of tags");

    registry.heal();
    let name = format!("{}/library/tiny", registry.address);
    let pulled = timeout(limit, target.try_pull(&name)).await.unwrap_or_else(|_| panic!("{what}: healed, and no end"));
    pulled.unwrap_or_else(|error| panic!("{what}: healed, and still: {error}"));
    let again: Vec<String> = registry.asked().into_iter().filter(|digest| before.contains_key(digest)).collect();
    assert!(again.is_empty(), "{what}: these were here already: {again:?}");
    let after = stored::blobs(&target.home());
    let manifest = stored::manifest(&target.home(), &name, "latest");
    assert_eq!(manifest.digest, content.manifest.digest, "{what}");
    for (digest, size) in content.manifest.blobs() {
        assert_eq!(after.get(&digest), Some(&size), "{what}: {digest}");
    }
}
