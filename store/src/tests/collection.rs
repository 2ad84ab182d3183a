//! Tests of collections: deleted, kept and reported blobs, with concurrent callers and unreadable
//! files.

use std::path::Path;
use std::time::{Duration, SystemTime};

use content::{Digest, Expected};

use super::{done, id, put, temporary};
use crate::{Children, Description, LinkKind, Store};

/// Parses a document: one line for each blob that it refers to; `>` precedes the digest of a
/// document.
fn children(raw: &[u8]) -> Result<Children, String> {
    let mut children = Children::default();
    let text = std::str::from_utf8(raw).map_err(|e| e.to_string())?;
    for line in text.strip_prefix("document\n").ok_or("it is no document")?.lines() {
        let (kind, digest) = match line.strip_prefix('>') {
            Some(digest) => (&mut children.documents, digest),
            None => (&mut children.blobs, line),
        };
        kind.push(digest.parse().map_err(|_| format!("`{line}` is no digest"))?);
    }
    Ok(children)
}

fn document(store: &Store, blobs: &[Digest]) -> Digest {
    let lines: Vec<String> = blobs.iter().map(|blob| format!("{blob}\n")).collect();
    let digest = put(store, format!("document\n{}", lines.concat()).as_bytes());
    store.notes().describe(&digest, &Description { children: blobs.to_vec(), ..Description::default() });
    digest
}

fn collect(store: &Store) -> crate::Collected {
    store.collect(SystemTime::now(), children)
}

fn is_there(store: &Store, digest: &Digest) -> bool {
    store.blobs().path(digest).is_file()
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(path, bytes).expect("a file");
}

#[test]
fn works_beside_who_adds() {
    let (_folder, store) = temporary();
    let before = put(&store, b"before");
    let guard = store.guard();
    let (added, found) = (put(&store, b"added"), before);
    let other = Digest::of(b"other");
    assert!(guard.keep(&other).expect("a look").is_none());
    let lost = {
        // Copied in without the store: no caller committed it.
        let (_other_folder, elsewhere) = temporary();
        let digest = put(&elsewhere, b"lost");
        std::fs::copy(elsewhere.blobs().path(&digest), store.blobs().path(&digest)).expect("a copy");
        digest
    };
    assert_eq!(store.blobs().size(&lost).expect("a look"), Some(4));
    assert_eq!(store.blobs().read(&lost, 4).expect("a look"), b"lost");
    assert!(guard.keep(&found).expect("a look").is_some());
    let collected = collect(&store);
    assert_eq!((collected.blobs, collected.bytes), (1, 4), "a look or a read does not keep a blob");
    let put_off = collected.put_off.expect("the rest is told");
    assert_eq!((put_off.blobs, put_off.bytes, put_off.in_use, put_off.reasons.len()), (2, 11, true, 0), "{put_off:?}");
    assert!(is_there(&store, &added) && is_there(&store, &found) && !is_there(&store, &lost));
    store.names().set("h/r:t", &document(&store, &[added])).expect("a name");
    drop(guard);
    assert_eq!(collect(&store), done(1, 6));
    assert!(is_there(&store, &added));
}

#[test]
fn a_younger_guard_keeps_nothing_of_what_came_before() {
    let (_folder, store) = temporary();
    let older = store.guard();
    put(&store, b"of the older");
    let younger = store.guard();
    let digest = put(&store, b"of the younger");
    drop(older);
    let collected = collect(&store);
    assert_eq!(collected.blobs, 1, "{collected:?}");
    assert!(is_there(&store, &digest));
    drop(younger);
    assert_eq!(collect(&store), done(1, 14));
}

#[test]
fn a_reader_holds_its_own_blobs_only() {
    let (_folder, store) = temporary();
    let (read, lost) = (put(&store, b"read"), put(&store, b"lost"));
    let (hold, twice) = (store.hold(vec![read]), store.hold(vec![read]));
    let collected = collect(&store);
    assert_eq!((collected.blobs, collected.put_off.map(|put_off| put_off.blobs)), (1, Some(1)));
    assert!(is_there(&store, &read) && !is_there(&store, &lost));
    drop(twice);
    assert_eq!(collect(&store).blobs, 0);
    drop(hold);
    assert_eq!(collect(&store), done(1, 4));
}

#[test]
fn a_damaged_manifest_keeps_what_it_refers_to() {
    let (_folder, store) = temporary();
    let (layer, lost) = (put(&store, b"layer"), put(&store, b"lost"));
    let manifest = document(&store, &[layer]);
    store.names().set("h/r:t", &manifest).expect("a name");
    std::fs::remove_file(store.blobs().path(&manifest)).expect("damage");
    std::fs::write(store.blobs().path(&manifest), b"document\n").expect("damage that reads as another document");
    assert_eq!(collect(&store), done(1, 4), "the index knows what it referred to");
    assert!(is_there(&store, &layer) && !is_there(&store, &lost));
    // The index has failed, so the references are unknown.
    let lost = put(&store, b"lost");
    store.0.index.fail("a test", store.0.index.generation());
    let put_off = collect(&store).put_off.expect("it is told");
    assert_eq!((put_off.blobs, put_off.bytes), (2, 9));
    assert!(put_off.reasons[0].contains("lode repair"), "{put_off:?}");
    assert!(is_there(&store, &layer) && is_there(&store, &lost));
}

#[test]
fn one_bad_file_costs_one_name() {
    let (folder, store) = temporary();
    let (layer, mine, lost) = (put(&store, b"layer"), put(&store, b"mine"), put(&store, b"lost"));
    let (good, bad) = (document(&store, &[mine]), document(&store, &[layer]));
    store.names().set("h/r:good", &good).expect("a name");
    store.names().set("h/r:bad", &bad).expect("a name");
    write(&folder.path().join("tags/h/r/:bad"), b"\xff\xfe");
    std::fs::create_dir(folder.path().join("tags/h/r/:folder")).expect("a folder in the place of a file");
    let tags: Vec<String> = store.names().list().into_iter().map(|tag| tag.name).collect();
    assert_eq!(tags, ["h/r:good"]);
    assert_eq!(store.names().of_repository("h/r").expect("the repository").len(), 1);
    let damaged: Vec<String> = store.names().damaged(SystemTime::now()).iter().map(ToString::to_string).collect();
    assert!(damaged.len() == 2 && damaged[0].contains(":bad") && damaged[1].contains(":folder"), "{damaged:?}");
    assert_eq!(Store::damaged_names_at(folder.path(), SystemTime::now()).len(), 2, "also where somebody has it open");
    // `:folder` has no history, so it may name any document in the store.
    let collected = collect(&store);
    assert_eq!((collected.blobs, collected.bytes), (1, 4), "{collected:?}");
    assert!(collected.put_off.is_some_and(|put_off| put_off.reasons.len() == 1));
    assert!(is_there(&store, &layer) && is_there(&store, &mine) && !is_there(&store, &lost));
    std::fs::remove_dir(folder.path().join("tags/h/r/:folder")).expect("removal");
    assert_eq!(collect(&store), done(0, 0), "what `:bad` named is known from its history");
    store.names().set("h/r:bad", &good).expect("it can be set again");
    assert!(store.names().damaged(SystemTime::now()).is_empty());
}

#[test]
fn a_damaged_tag_keeps_its_last_versions_only() {
    let (folder, store) = temporary();
    let mut layers = Vec::new();
    for number in 0..6_u8 {
        layers.push(put(&store, &[number]));
        store.names().set("h/r:t", &document(&store, &layers[layers.len() - 1..])).expect("a name");
        collect(&store);
    }
    write(&folder.path().join("tags/h/r/:t"), b"?");
    let lost = put(&store, b"lost");
    assert_eq!(collect(&store), done(1, 4), "earlier versions are gone, which is no damage");
    assert!(is_there(&store, &layers[5]) && is_there(&store, &layers[4]) && !is_there(&store, &lost));
}

#[test]
fn a_document_without_a_readable_name_stays_whole() {
    let (folder, store) = temporary();
    let layer = put(&store, b"layer");
    let (manifest, lost) = (document(&store, &[layer]), put(&store, b"lost"));
    write(&folder.path().join("tags/h/r/:t"), b"");
    let collected = collect(&store);
    assert_eq!(collected.blobs, 1, "{collected:?}");
    assert!(is_there(&store, &manifest) && is_there(&store, &layer) && !is_there(&store, &lost));
}

#[test]
fn a_damaged_manifest_may_be_the_one_without_a_readable_name() {
    let (folder, store) = temporary();
    let layer = put(&store, b"layer");
    let manifest = document(&store, &[layer]);
    write(&folder.path().join("tags/h/r/:t"), b"");
    std::fs::remove_file(store.blobs().path(&manifest)).expect("damage");
    std::fs::write(store.blobs().path(&manifest), b"document\n").expect("damage that reads as another document");
    assert_eq!(collect(&store).blobs, 0, "the index knows what it referred to");
    store.0.index.fail("a test", store.0.index.generation());
    let put_off = collect(&store).put_off.expect("nobody knows any more");
    assert_eq!((put_off.blobs, put_off.reasons.len()), (2, 2), "{put_off:?}");
    assert!(is_there(&store, &layer));
}

#[test]
fn what_a_damaged_manifest_referred_to_is_known_when_it_is_set_aside() {
    let (_folder, store) = temporary();
    let layer = put(&store, b"layer");
    let manifest = document(&store, &[layer]);
    store.names().set("h/r:t", &manifest).expect("a name");
    store.notes().set("kind", &manifest, b"of damaged bytes");
    std::fs::remove_file(store.blobs().path(&manifest)).expect("damage");
    std::fs::write(store.blobs().path(&manifest), b"document\n").expect("damage that reads as another document");
    assert!(store.blobs().set_aside(&manifest).expect("it is there"));
    assert_eq!((collect(&store), store.notes().get("kind", &manifest)), (done(0, 0), None));
    assert!(is_there(&store, &layer), "it can be fetched again, and needs its layer then");
}

#[test]
fn a_name_that_may_come_back_keeps_what_it_led_to() {
    let (folder, store) = temporary();
    let lost = put(&store, b"lost");
    // A folder that cannot be synced: a file is in the place of its parent.
    write(&folder.path().join("file"), b"");
    store.0.pending_renames.mark_unsynced(vec![folder.path().join("file/folder"), folder.path().join("gone")]);
    let put_off = collect(&store).put_off.expect("it is told");
    assert_eq!((put_off.blobs, put_off.reasons.len()), (1, 1), "{put_off:?}");
    store.names().set("h/r:t", &lost).expect_err("what it names may be in there");
    std::fs::remove_file(folder.path().join("file")).expect("removal");
    store.names().set("h/r:t", &lost).expect("what is gone is in nobody's way");
    assert!(store.0.pending_renames.is_settled());
}

#[test]
fn questions_about_what_is_not_here_leave_nothing() {
    let (_folder, store) = temporary();
    let (here, elsewhere) = (put(&store, b"here"), Digest::of(b"elsewhere"));
    let guard = store.guard();
    assert_eq!(guard.keep(&here).expect("a look"), Some(4));
    assert_eq!(guard.keep(&elsewhere).expect("a look"), None);
    store.blobs().open(&elsewhere).expect_err("it is not here");
    let state = store.0.collection_lock.lock();
    assert!(state.keeps(&here) && !state.keeps(&elsewhere));
}

#[test]
fn what_cannot_be_known_keeps_everything() {
    let (folder, store) = temporary();
    let lost = put(&store, b"lost");
    for (path, because) in [("links/h/r/:blobs", "links of blobs"), ("leases/l", "a lease")] {
        let path = folder.path().join(path);
        write(&path, b"\xff");
        let put_off = collect(&store).put_off.expect(because);
        assert_eq!((put_off.blobs, put_off.reasons.len()), (1, 1), "{because}: {put_off:?}");
        assert!(store.names().damaged(SystemTime::now()).len() == 1, "{because}");
        std::fs::remove_file(path).expect("removal");
    }
    write(&folder.path().join("leases/l"), b"\xff");
    let later = SystemTime::now() + Duration::from_hours(24 * 8);
    assert_eq!(store.collect(later, children), done(1, 4), "no lease is as long as that");
    assert!(!is_there(&store, &lost) && !folder.path().join("leases/l").exists());
}

#[test]
fn a_link_that_is_renewed_in_time_stays() {
    let (_folder, store) = temporary();
    let blob = put(&store, b"blob");
    store.names().link("h/r", LinkKind::Blob, &blob).expect("a link");
    let marked = store.mark(SystemTime::now() + Duration::from_hours(48), &children);
    let [link] = marked.expired_links.as_slice() else { panic!("one has run out: {marked:?}") };
    store.remove_expired_link(link, SystemTime::now()).expect("a look");
    assert!(store.names().is_linked("h/r", LinkKind::Blob, &blob).expect("a look"), "it was renewed meanwhile");
}

#[test]
fn what_was_put_there_again_is_not_taken_out() {
    let (_folder, store) = temporary();
    let blobs = [put(&store, b"first"), put(&store, b"last")];
    let (document, kind) = (put(&store, b"document"), LinkKind::Blob);
    // Times of different clocks would be out of order, because one clock is coarse.
    for _ in 0..50 {
        store.names().link("h/r", kind, &blobs[0]).expect("a link");
        store.names().link("h/r", kind, &blobs[0]).expect("it is renewed");
        store.names().link("h/r", LinkKind::Manifest, &document).expect("a link");
        let until =
            store.names().linked_at("h/r", LinkKind::Manifest, &document).expect("a look").expect("it is there");
        store.names().link("h/r", kind, &blobs[1]).expect("a link");
        assert!(store.names().unlink_unless_renewed("h/r", kind, &blobs[0], until).expect("a look"));
        assert!(!store.names().unlink_unless_renewed("h/r", kind, &blobs[1], until).expect("a look"));
        assert!(store.names().unlink("h/r", LinkKind::Manifest, &document).expect("it is there"));
        assert!(store.names().unlink("h/r", kind, &blobs[1]).expect("it is there"));
    }
}

#[test]
fn the_use_of_a_model_is_no_cache() {
    let (folder, store) = temporary();
    let manifest = document(&store, &[]);
    store.names().set("h/r:t", &manifest).expect("a name");
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    assert_eq!(store.notes().last_use(&manifest).expect("a look"), None);
    store.notes().record_use(&manifest, then).expect("a note");
    store.0.index.fail("a test", store.0.index.generation());
    assert_eq!(store.notes().last_use(&manifest).expect("a look"), Some(then));
    store.notes().expire_uses().expect("nothing to do");
    assert_eq!(store.notes().last_use(&manifest).expect("a look"), Some(then));
    drop(store);
    // A store of an older version: none of its models counts as unused.
    std::fs::remove_dir_all(folder.path().join("used")).expect("removal");
    let store = Store::open(folder.path(), crate::Options::default()).expect("it opens");
    assert!(store.notes().last_use(&manifest).expect("a look").is_some_and(|used| used > then));
    // The folder could not be created when the store was opened.
    std::fs::remove_dir_all(folder.path().join("used")).expect("removal");
    store.notes().expire_uses().expect("there is nothing to forget");
    assert!(
        store.notes().last_use(&manifest).expect("a look").is_some_and(|used| used > then),
        "nothing counts as unused"
    );
    store.notes().record_use(&manifest, then).expect("the folder is made");
    assert_eq!(store.notes().last_use(&manifest).expect("a look"), Some(then));
    store.names().remove("h/r:t").expect("removal");
    collect(&store);
    store.notes().expire_uses().expect("the model is gone");
    assert_eq!(store.notes().last_use(&manifest).expect("a look"), None);
}

#[test]
fn an_ingest_without_data_rests_too() {
    let (folder, store) = temporary();
    // The state that a full disk leaves.
    std::fs::create_dir(folder.path().join("ingest/x")).expect("a folder");
    let ingests = store.blobs().ingests(SystemTime::now() + Duration::from_hours(2)).expect("ingests");
    assert!(ingests[0].idle > Duration::from_hours(1), "{ingests:?}");
    let mut ingest = store.blobs().start_ingest(&id("y"), Expected::Digest(Digest::of(b"other"))).expect("start");
    ingest.append(b"wrong").expect("write");
    ingest.commit().expect_err("wrong bytes");
    assert_eq!(store.blobs().ingest_ids().expect("ids"), [id("x")], "bytes that fail are not resumed");
}
