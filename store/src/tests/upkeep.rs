//! Tests of histories, pins and the checks for damage.

use std::time::{Duration, SystemTime};

use content::Digest;

use super::{done, id, put, temporary};
use crate::{Children, Error, Verified};

const TAG: &str = "h/r:t";

#[expect(clippy::unnecessary_wraps, reason = "the collector takes functions that may fail")]
fn nothing(_: &[u8]) -> Result<Children, String> {
    Ok(Children::default())
}

#[test]
fn a_tag_remembers_what_it_named() {
    let (_folder, store) = temporary();
    let [a, b, c] = [b"a", b"b", b"c"].map(|bytes| put(&store, bytes));
    let digests =
        || store.names().history(TAG).expect("history").into_iter().map(|entry| entry.digest).collect::<Vec<_>>();
    assert_eq!(digests(), []);
    for digest in [a, a, b, b, c] {
        store.names().set(TAG, &digest).expect("tag");
    }
    assert_eq!(digests(), [a, b, c], "setting the same again is no change");
    assert_eq!(store.names().kept_versions(TAG).expect("kept"), [b]);
    assert_eq!(store.collect(SystemTime::now(), nothing), done(1, 1));
    assert!(store.blobs().size(&a).expect("size").is_none(), "only the last version is kept");

    store.names().set(TAG, &b).expect("back");
    assert_eq!((digests(), store.names().kept_versions(TAG).expect("kept")), (vec![a, b, c, b], vec![c]));
    store.names().forget_versions(TAG).expect("forget");
    assert_eq!(digests(), [b]);
    assert_eq!(store.names().all_kept_versions(), []);
    store.collect(SystemTime::now(), nothing);
    assert_eq!(store.blobs().list(), [(b, 1)]);

    assert!(store.names().remove(TAG).expect("removal"));
    assert_eq!(digests(), [], "the history goes with the tag");
}

#[test]
fn a_history_has_an_end() {
    let (_folder, store) = temporary();
    let digests: Vec<Digest> = (0u8..60).map(|n| put(&store, &[n])).collect();
    for digest in &digests {
        store.names().set(TAG, digest).expect("tag");
    }
    let history = store.names().history(TAG).expect("history");
    assert_eq!((history.len(), history.last().map(|entry| entry.digest)), (50, digests.last().copied()));
}

#[test]
fn a_change_that_did_not_happen_is_no_version() {
    let (folder, store) = temporary();
    let [a, b, c] = [b"a", b"b", b"c"].map(|bytes| put(&store, bytes));
    store.names().set(TAG, &a).expect("tag");
    // Killed after the history was written and before the tag was.
    let path = folder.path().join("history/h/r/:t");
    let text = std::fs::read_to_string(&path).expect("a history");
    std::fs::write(&path, format!("{text}7 {b}\n")).expect("write");
    assert_eq!(store.names().kept_versions(TAG).expect("kept"), [], "`b` was never named");
    store.names().set(TAG, &c).expect("tag");
    assert_eq!(store.names().kept_versions(TAG).expect("kept"), [a], "what the tag named before is the last version");
    let text = std::fs::read_to_string(&path).expect("a history");
    std::fs::write(&path, format!("{text}8 {b}\n")).expect("write");
    assert_eq!(store.names().kept_versions(TAG).expect("kept"), [a], "it is the last version still");
    // A store that is older than histories.
    std::fs::remove_file(&path).expect("remove");
    store.names().set(TAG, &a).expect("tag");
    assert_eq!(store.names().kept_versions(TAG).expect("kept"), [c]);
}

#[test]
fn a_file_beside_histories_keeps_nothing_and_is_named() {
    let (folder, store) = temporary();
    let digest = put(&store, b"blob");
    store.names().set(TAG, &digest).expect("tag");
    // A backup file of an editor.
    let history = folder.path().join("history/h/r/:t");
    std::fs::copy(&history, folder.path().join("history/h/r/:t~")).expect("a copy");
    let collected = store.collect(SystemTime::now(), nothing);
    assert_eq!(collected.put_off, None, "{collected:?}");
    let damaged = store.names().damaged(SystemTime::now());
    assert!(matches!(&damaged[..], [error] if error.to_string().contains(":t~")), "{damaged:?}");
}

#[test]
fn a_damaged_history_stops_deletion_and_is_named() {
    let (folder, store) = temporary();
    let digest = put(&store, b"a");
    store.names().set(TAG, &digest).expect("tag");
    assert!(store.names().damaged(SystemTime::now()).is_empty());
    std::fs::write(folder.path().join("history/h/r/:t"), "yesterday\n").expect("damage");
    let put_off = store.collect(SystemTime::now(), nothing).put_off.expect("it is told");
    assert!(put_off.reasons[0].contains("yesterday"), "{put_off:?}");
    assert_eq!(store.names().damaged(SystemTime::now()).len(), 1);
    store.names().set(TAG, &digest).expect("a new history begins");
    assert!(store.names().damaged(SystemTime::now()).is_empty());
}

#[test]
fn pins_go_with_their_tags() {
    let (_folder, store) = temporary();
    assert!(matches!(store.names().pin(TAG), Err(Error::Content(content::Error::TagNotFound(_)))));
    store.names().set(TAG, &put(&store, b"a")).expect("tag");
    assert!(!store.names().is_pinned(TAG).expect("pinned"));
    store.names().pin(TAG).expect("pin");
    store.names().pin(TAG).expect("again");
    assert!(store.names().is_pinned(TAG).expect("pinned"));
    assert_eq!(store.names().pins(), [TAG]);
    assert!(store.names().unpin(TAG).expect("unpin") && !store.names().unpin(TAG).expect("unpin"));
    store.names().pin(TAG).expect("pin");
    store.names().remove(TAG).expect("removal");
    assert_eq!(store.names().pins(), Vec::<String>::new());
}

#[test]
fn finds_damage_and_sets_it_aside() {
    let (_folder, store) = temporary();
    let digest = put(&store, b"whole");
    let verify = || store.blobs().verify(&digest, Some(5), &mut |_| true).expect("verify");
    let replace = |bytes: &[u8]| {
        std::fs::remove_file(store.blobs().path(&digest)).expect("damage");
        std::fs::write(store.blobs().path(&digest), bytes).expect("damage");
    };
    assert_eq!(verify(), Verified::Good);
    assert_eq!(store.blobs().last_verified(&digest), None);
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    store.blobs().record_verified(&digest, now);
    assert_eq!(store.blobs().last_verified(&digest), Some(now));
    store.blobs().forget_verified(&digest);
    assert_eq!(store.blobs().last_verified(&digest), None);
    store.blobs().record_verified(&digest, now);
    replace(b"who");
    assert_eq!(verify(), Verified::WrongSize { actual: 3 });
    replace(b"whale");
    assert_eq!(verify(), Verified::WrongBytes { actual: Digest::of(b"whale") });
    assert!(store.blobs().verify(&digest, Some(5), &mut |_| false).is_err(), "it can be stopped");

    assert!(store.blobs().set_aside(&digest).expect("set aside"));
    assert!(!store.blobs().set_aside(&digest).expect("set aside"));
    assert_eq!(verify(), Verified::Missing);
    assert_eq!(store.blobs().last_verified(&digest), None, "nothing is known of it any more");
    assert_eq!(store.blobs().damaged_bytes().expect("bytes"), 5);
    assert_eq!(put(&store, b"whole"), digest);
    assert_eq!(verify(), Verified::Good);
    assert!(store.blobs().discard_damaged(&digest).expect("discard"));
    assert_eq!(store.blobs().damaged_bytes().expect("bytes"), 0);
}

#[test]
fn tells_what_a_collection_would_delete() {
    let (_folder, store) = temporary();
    let (kept, lost) = (put(&store, b"kept"), put(&store, b"lost"));
    store.names().set(TAG, &kept).expect("tag");
    assert_eq!(store.collectable(SystemTime::now(), nothing).blobs, [(lost, 4)]);
    assert!(store.blobs().size(&lost).expect("size").is_some());
}

#[test]
fn tells_how_long_an_ingest_rests() {
    let (_folder, store) = temporary();
    let mut ingest = store.blobs().start_ingest(&id("x"), content::Expected::Unknown).expect("start");
    ingest.append(b"12345").expect("write");
    let entries = store.blobs().ingests(SystemTime::now() + Duration::from_hours(1)).expect("ingests");
    assert_eq!((entries.len(), &entries[0].id, entries[0].bytes), (1, &id("x"), 5));
    assert!(entries[0].idle > Duration::from_mins(59));
}

#[test]
fn derived_files_go_with_their_blob_and_their_version() {
    let (folder, store) = temporary();
    let (kept, lost) = (put(&store, b"kept"), Digest::of(b"lost"));
    store.notes().expire_derived(&["1"]).expect("there are none");
    assert_eq!(store.notes().derived(&kept, "1"), None);
    for (source, version) in [(&kept, "1"), (&kept, "2"), (&lost, "1")] {
        let path = store.notes().set_derived(source, version, b"made").expect("it is written");
        assert_eq!(store.notes().derived(source, version).as_ref(), Some(&path));
    }
    assert_eq!(std::fs::read_dir(folder.path().join("tmp")).expect("a folder").count(), 0);
    // An unexpected folder does not stop the removal of the other files.
    std::fs::create_dir(folder.path().join("derived/a")).expect("a folder");
    store.notes().expire_derived(&["1"]).expect_err("a folder is not removed");
    let there = [(&kept, "1"), (&kept, "2"), (&lost, "1")]
        .map(|(source, version)| store.notes().derived(source, version).is_some());
    assert_eq!(there, [true, false, false]);
    std::fs::remove_dir(folder.path().join("derived/a")).expect("a folder");
    assert!(store.blobs().set_aside(&kept).expect("set aside"));
    assert_eq!(store.notes().derived(&kept, "1"), None, "it may have been made of damaged bytes");
}
