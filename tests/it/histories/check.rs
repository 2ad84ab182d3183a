//! What must hold whenever nothing is under way.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::json;

use super::campaign::{Campaign, REPOSITORIES};
use super::model::{Place, Side, Value};
use super::request::{Answer, ask};
use crate::server::Server;
use crate::stored;
use crate::support::{entries, read};

/// How often a collection is asked for that must not be put off in the end.
const COLLECTIONS: u32 = 20;

/// Checks the daemon that is killed, and the names of its peer. Nothing may be under way.
pub(super) async fn all(campaign: &Campaign, server: &Server, random: &mut StdRng) {
    let here = campaign.listed(&server.address).await;
    let there = campaign.listed(&campaign.peer.address).await;
    campaign.compare(&seen(campaign, &here, &there));
    let answer = campaign.post(&server.address, "/api/lode/fsck", &json!({})).await;
    let last = answer.last_line().unwrap_or_else(|| panic!("fsck: {answer:?}"));
    assert_eq!(last["report"]["problems"], json!([]), "{last}");
    assert_eq!(last["report"]["models"], json!(here.len()), "{last}");
    // Each is hashed.
    stored::blobs(&server.home());
    if !here.is_empty() {
        let name = here.keys().nth(random.random_range(0..here.len())).expect("an index of the list");
        campaign.generate(&server.address, name).await.expect_done(name);
    }
    for (whose, log) in [("the daemon", server.log()), ("its peer", campaign.peer.log())] {
        let panics: Vec<&str> = log.lines().filter(|line| line.contains("panicked")).collect();
        assert!(panics.is_empty(), "{whose} panicked: {panics:#?}");
    }
}

/// What every name names, by the lists of both. There are no other names.
fn seen(
    campaign: &Campaign,
    here: &BTreeMap<String, String>,
    there: &BTreeMap<String, String>,
) -> BTreeMap<Place, Value> {
    let of = |place: &Place| match place.side {
        Side::Here => here.get(&place.name).cloned(),
        Side::Peer => there.get(&place.name).cloned(),
    };
    let named = |place: Place| {
        let value = of(&place);
        (place, value)
    };
    let seen: BTreeMap<Place, Value> = campaign.places().into_iter().map(named).collect();
    let known = seen.values().flatten().count();
    assert_eq!(known, here.len() + there.len(), "names that nobody gave: {here:?} {there:?}");
    seen
}

/// Removes every model, and what a registry's clients may still count on for a day; then no blob may be left.
///
/// The daemon must have been started anew: what it has promised to clients only it knows. A pull that was killed keeps
/// its blobs by a lease of a day, which nobody can end: what leases name may stay.
pub(super) async fn nothing_stays(campaign: &Campaign, server: &Server) {
    let (address, home) = (server.address.as_str(), server.home());
    for name in campaign.listed(address).await.into_keys() {
        let request = campaign.http.delete(format!("http://{address}/api/delete")).json(&json!({"model": name}));
        ask(request).await.expect_done(&name);
    }
    assert!(stored::tags(&home).is_empty(), "every model was removed");
    collected(campaign, address).await;
    // A blob that a manifest of the repository refers to cannot be taken out of it.
    for kind in ["manifests", "blobs"] {
        for repository in REPOSITORIES {
            unlink(campaign, address, &home, &format!("/v2/library/{repository}/{kind}")).await;
        }
    }
    collected(campaign, address).await;
    let leased = leased(&home);
    let left: BTreeSet<String> = stored::blobs(&home).into_keys().filter(|digest| !leased.contains(digest)).collect();
    assert!(left.is_empty(), "there is no model, no link and no lease, and {} blobs are left: {left:?}", left.len());
}

/// Collects what nothing refers to.
async fn collected(campaign: &Campaign, address: &str) {
    for _ in 0..COLLECTIONS {
        let answer = campaign.post(address, "/api/lode/gc", &json!({})).await;
        let done = answer.document().unwrap_or_else(|| panic!("gc: {answer:?}"));
        if done["put_off"].is_null() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("collections are put off although nobody adds anything");
}

/// Takes all that is left in the store out of a repository.
async fn unlink(campaign: &Campaign, address: &str, home: &Path, folder: &str) {
    for digest in stored::blobs(home).into_keys() {
        let answer = ask(campaign.http.delete(format!("http://{address}{folder}/{digest}"))).await;
        let gone = matches!(answer, Answer::Done(_) | Answer::Refused { status: 404, .. });
        assert!(gone, "{folder}/{digest}: {answer:?}");
    }
}

/// The digests under a lease: of each the first line is its end, the others are digests.
fn leased(home: &Path) -> BTreeSet<String> {
    let mut leased = BTreeSet::new();
    for path in entries(&home.join("leases")) {
        let text = String::from_utf8(read(&path)).expect("a lease is text");
        leased.extend(text.lines().skip(1).map(str::to_owned));
    }
    leased
}
