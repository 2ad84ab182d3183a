//! Invariants that hold whenever no operation is in progress.

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

/// The number of attempts until a collection must no longer be postponed.
const COLLECTIONS: u32 = 20;

/// Checks the daemon that is killed, and the names of its peer. No operation may be in progress.
pub(super) async fn all(campaign: &Campaign, server: &Server, random: &mut StdRng) {
    let here = campaign.listed(&server.address).await;
    let there = campaign.listed(&campaign.peer.address).await;
    campaign.compare(&seen(campaign, &here, &there));
    let answer = campaign.post(&server.address, "/api/lode/fsck", &json!({})).await;
    let last = answer.last_line().unwrap_or_else(|| panic!("fsck: {answer:?}"));
    assert_eq!(last["report"]["problems"], json!([]), "{last}");
    assert_eq!(last["report"]["models"], json!(here.len()), "{last}");
    // Reads and hashes each blob.
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

/// Returns the value of every possible name, from the lists of both daemons. Asserts that there are
/// no other names.
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

/// Removes every model, and the links that keep a registry client's blobs for a day. Then no blob
/// may be left.
///
/// The daemon must have been restarted, because only its process knows the blobs that it has
/// promised to clients. A killed pull protects its blobs with a lease of a day, which no request
/// can end, so leased blobs may stay.
pub(super) async fn nothing_stays(campaign: &Campaign, server: &Server) {
    let (address, home) = (server.address.as_str(), server.home());
    for name in campaign.listed(address).await.into_keys() {
        let request = campaign.http.delete(format!("http://{address}/api/delete")).json(&json!({"model": name}));
        ask(request).await.expect_done(&name);
    }
    assert!(stored::tags(&home).is_empty(), "every model was removed");
    collected(campaign, address).await;
    // The registry refuses to unlink a blob that a manifest of the repository refers to.
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

/// Runs collections until one is not postponed.
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

/// Unlinks all remaining blobs of the store from a repository.
async fn unlink(campaign: &Campaign, address: &str, home: &Path, folder: &str) {
    for digest in stored::blobs(home).into_keys() {
        let answer = ask(campaign.http.delete(format!("http://{address}{folder}/{digest}"))).await;
        let gone = matches!(answer, Answer::Done(_) | Answer::Refused { status: 404, .. });
        assert!(gone, "{folder}/{digest}: {answer:?}");
    }
}

/// Returns the leased digests. The first line of a lease is its expiry; the other lines are
/// digests.
fn leased(home: &Path) -> BTreeSet<String> {
    let mut leased = BTreeSet::new();
    for path in entries(&home.join("leases")) {
        let text = String::from_utf8(read(&path)).expect("a lease is text");
        leased.extend(text.lines().skip(1).map(str::to_owned));
    }
    leased
}
