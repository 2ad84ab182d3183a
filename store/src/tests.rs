//! Tests of the store: the conformance suite, properties of ingests, locks, tags and collections.

mod collection;
mod extents;
mod upkeep;

use std::time::{Duration, SystemTime};

use content::{Digest, Expected, IngestId};
use proptest::prelude::*;

use crate::{
    BLOB_LINK_LIFE, Children, Collected, Description, Error, FORMAT_VERSION, Leased, LinkKind, Options, Store,
};

pub(crate) fn temporary() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store::open(folder.path(), Options::default()).expect("a new store opens");
    (folder, store)
}

pub(crate) fn id(text: &str) -> IngestId {
    IngestId::parse(text).expect("valid id")
}

pub(crate) fn put(store: &Store, bytes: &[u8]) -> Digest {
    let mut ingest = store.blobs().start_ingest(&id("put"), Expected::Unknown).expect("start");
    ingest.append(bytes).expect("write");
    ingest.commit().expect("commit").0
}

/// The result of a collection that put nothing off.
fn done(blobs: u64, bytes: u64) -> Collected {
    Collected { blobs, bytes, ..Collected::default() }
}

#[tokio::test]
async fn conformance() {
    let folders = std::sync::Mutex::new(Vec::new());
    content::testsuite::run(|| async {
        let (folder, store) = temporary();
        folders.lock().expect("no panic").push(folder);
        store
    })
    .await;
}

#[test]
fn a_tag_is_replaced_and_removed() {
    const TAG: &str = "example.com/team/model:latest";
    let (_folder, store) = temporary();
    let (one, two) = (put(&store, b"one"), put(&store, b"two"));
    let resolve = || store.names().resolve(TAG).expect("resolve");
    assert_eq!(resolve(), None);
    store.names().set(TAG, &one).expect("tag");
    assert_eq!(resolve(), Some(one));
    store.names().set(TAG, &two).expect("retag");
    assert_eq!(resolve(), Some(two));
    let missing = store.names().set(TAG, &Digest::of(b"missing"));
    let refused = matches!(missing, Err(Error::Content(content::Error::BlobNotFound(_))));
    assert!(refused, "a tag of a missing blob was set: {missing:?}");
    assert_eq!(resolve(), Some(two), "a refused tag changes nothing");
    assert!(store.names().remove(TAG).expect("removal"));
    assert!(!store.names().remove(TAG).expect("removal"), "a second removal finds nothing");
    assert_eq!(resolve(), None);
    assert_eq!(store.blobs().size(&two).expect("size"), Some(3), "the removal of a tag leaves the blob");
}

#[test]
fn a_newer_store_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path().join("store");
    drop(Store::open(&home, Options::default()).expect("a new store"));
    let version = home.join("version");
    assert_eq!(std::fs::read_to_string(&version).expect("a version"), format!("{FORMAT_VERSION}\n"));
    // The state that version 0.1 left.
    std::fs::remove_file(&version).expect("a version");
    drop(Store::open(&home, Options::default()).expect("an old store"));
    assert!(version.is_file());
    for (text, says) in [("7\n", "format version 7, this program reads 1"), ("x\n", "found `x`"), ("", "found ``")] {
        std::fs::write(&version, text).expect("another version");
        std::fs::remove_dir_all(home.join("tmp")).expect("a folder");
        let error = Store::open(&home, Options::default()).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
        assert!(!home.join("tmp").exists(), "nothing was touched");
        std::fs::create_dir(home.join("tmp")).expect("a folder");
    }
}

#[test]
fn is_locked_against_a_second_opener() {
    let (folder, store) = temporary();
    match Store::open(folder.path(), Options::default()) {
        Err(Error::Locked { holder, .. }) => assert_eq!(holder, std::process::id().to_string()),
        other => panic!("a second opener was let in: {other:?}"),
    }
    drop(store);
    Store::open(folder.path(), Options::default()).expect("the lock goes with the store");
}

#[test]
fn finds_its_content_again_without_an_index() {
    let (folder, store) = temporary();
    let (child, parent) = (put(&store, b"child"), put(&store, b"parent"));
    store.names().set("h/r:t", &parent).expect("tag");
    let description = Description { children: vec![child], subject: None, notes: vec![("kind", b"fact".to_vec())] };
    store.notes().describe(&parent, &description);
    let before = store.blobs().list();
    drop(store);
    std::fs::remove_dir_all(folder.path().join("index")).expect("the index is there");

    let store = Store::open(folder.path(), Options::default()).expect("opens without an index");
    assert_eq!(store.blobs().list(), before);
    assert_eq!(store.notes().get("kind", &parent), None);
    let rebuilt = store.rebuild(|digest| {
        assert_eq!(*digest, parent);
        Ok(Some(description.clone()))
    });
    assert_eq!(rebuilt.expect("rebuild").documents, 1);
    assert_eq!(store.notes().get("kind", &parent), Some(b"fact".to_vec()));
    assert_eq!(store.notes().referrers(&child), Some(vec![parent]));
    assert_eq!(store.blobs().list(), before);
}

#[test]
fn opens_with_a_broken_index() {
    let (folder, store) = temporary();
    let digest = put(&store, b"blob");
    drop(store);
    for entry in std::fs::read_dir(folder.path().join("index")).expect("index") {
        let path = entry.expect("entry").path();
        if path.is_file() {
            std::fs::write(path, b"garbage").expect("write");
        }
    }
    let store = Store::open(folder.path(), Options::default()).expect("opens");
    assert_eq!(store.blobs().list(), [(digest, 4)]);
}

#[test]
fn tags_of_nested_repositories_do_not_collide() {
    let (_folder, store) = temporary();
    let digest = put(&store, b"m");
    for name in ["h/a:b", "h/a/b:c", "h/a/b/c:d", "h:80/a:b"] {
        store.names().set(name, &digest).expect(name);
    }
    let names: Vec<_> = store.names().list().into_iter().map(|tag| tag.name).collect();
    assert_eq!(names, ["h/a/b/c:d", "h/a/b:c", "h/a:b", "h:80/a:b"]);
    assert!(store.names().remove("h/a/b:c").expect("remove"));
    assert_eq!(store.names().resolve("h/a/b/c:d").expect("resolve"), Some(digest));
    for bad in [
        "",
        ":",
        "a",
        "a:b",
        "h/:t",
        "h/a:",
        "h/../a:t",
        "/a:t",
        "h/a:../t",
        "h/a/..:t",
        "h/a:.t",
        "h/b:8/a:t",
        "h/a\0:t",
    ] {
        assert!(store.names().set(bad, &digest).is_err(), "{bad:?} was accepted");
    }
}

#[test]
fn collects_what_nothing_leads_to() {
    let (_folder, store) = temporary();
    let (layer, lost, leased) = (put(&store, b"layer"), put(&store, b"lost"), put(&store, b"leased"));
    let document = put(&store, layer.to_string().as_bytes());
    let other = put(&store, b"not a document");
    let index = put(&store, format!(">{document}").as_bytes());
    store.names().set("h/r:t", &index).expect("tag");
    let now = SystemTime::now();
    store.leases().set(&id("l"), &[leased], now + Duration::from_mins(1)).expect("lease");
    let children = |raw: &[u8]| {
        let text = String::from_utf8_lossy(raw).into_owned();
        // A `>` precedes the digest of a document; other text is the digest of a blob.
        let (documents, blobs) = match text.strip_prefix('>') {
            Some(document) => (vec![document.to_owned()], vec![]),
            None => (vec![], vec![text.clone()]),
        };
        let parse = |texts: Vec<String>| texts.iter().map(|t| t.parse()).collect::<Result<Vec<Digest>, _>>();
        let bad = |_| format!("`{text}` is no digest");
        Ok(Children { documents: parse(documents).map_err(bad)?, blobs: parse(blobs).map_err(bad)? })
    };

    store.names().set("h/r:broken", &other).expect("tag");
    let put_off = store.collect(now, children).put_off.expect("what the broken one refers to is not known");
    assert_eq!((put_off.blobs, put_off.bytes), (1, 4), "{put_off:?}");
    assert!(put_off.reasons[0].contains(&other.to_string()), "{put_off:?}");
    assert!(store.blobs().size(&lost).expect("size").is_some(), "it may be what the broken one refers to");

    store.names().remove("h/r:broken").expect("untag");
    let Leased { blobs, bytes, until } = store.collectable(now, children).leased;
    assert_eq!((blobs, bytes), (1, 6), "what only the lease keeps");
    let until = until.expect("an end").duration_since(now).expect("it is later");
    assert!((58..=60).contains(&until.as_secs()), "{until:?}");
    assert_eq!(Collected { leased: Leased::default(), ..store.collect(now, children) }, done(2, 18));
    for (digest, there) in
        [(layer, true), (index, true), (document, true), (leased, true), (lost, false), (other, false)]
    {
        assert_eq!(store.blobs().size(&digest).expect("size").is_some(), there);
    }
    let later = now + Duration::from_mins(2);
    assert_eq!(store.collect(later, children), done(1, 6));
}

#[test]
fn ingests_for_other_bytes_are_not_resumed() {
    let (_folder, store) = temporary();
    let mut ingest = store.blobs().start_ingest(&id("x"), Expected::Size(10)).expect("start");
    ingest.append(b"12345").expect("write");
    drop(ingest);
    assert_eq!(store.blobs().start_ingest(&id("x"), Expected::Size(11)).expect("start").offset(), 0);
    assert_eq!(store.blobs().ingest_ids().expect("ids"), [id("x")]);
    let later = SystemTime::now() + Duration::from_hours(1);
    assert_eq!(store.blobs().expire_ingests(Duration::from_hours(2), later).expect("expire"), 0);
    assert_eq!(store.blobs().expire_ingests(Duration::from_mins(1), later).expect("expire"), 1);
    assert_eq!(store.blobs().ingest_ids().expect("ids"), []);
}

#[test]
fn an_ingest_whose_id_is_its_digest_keeps_no_promise_beside_it() {
    let (_folder, store) = temporary();
    let bytes = b"0123456789";
    let digest = Digest::of(bytes);
    let ingest_id = IngestId::of(&digest);
    let start = |size| store.blobs().start_ingest(&ingest_id, Expected::Blob { digest, size }).expect("start");
    start(10).append(&bytes[..4]).expect("write");
    let folder = store.home().join("ingest").join(ingest_id.as_str());
    let names: Vec<_> =
        std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(names, ["data"]);
    let mut resumed = start(10);
    assert_eq!(resumed.offset(), 4);
    resumed.append(&bytes[4..]).expect("write");
    drop(resumed);
    assert_eq!(store.blobs().start_ingest(&ingest_id, Expected::Digest(digest)).expect("start").offset(), 10);
    // The data is longer than a blob of three bytes can be.
    assert_eq!(start(3).offset(), 0);
    let mut again = start(10);
    again.append(bytes).expect("write");
    assert_eq!(again.commit().expect("commit"), (digest, 10));
    assert!(!folder.exists());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The blob equals the bytes, however they are split and wherever the writer stops.
    #[test]
    fn ingest_is_the_concatenation(pieces in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), any::<bool>()), 0..12)) {
        let (_folder, store) = temporary();
        let all: Vec<u8> = pieces.iter().flat_map(|(piece, _)| piece.clone()).collect();
        let expected = Expected::Blob { digest: Digest::of(&all), size: all.len() as u64 };
        let mut ingest = store.blobs().start_ingest(&id("p"), expected).expect("start");
        for (piece, stops) in &pieces {
            ingest.append(piece).expect("write");
            if *stops {
                let offset = ingest.offset();
                drop(ingest);
                ingest = store.blobs().start_ingest(&id("p"), expected).expect("resume");
                prop_assert_eq!(ingest.offset(), offset);
            }
        }
        let (digest, size) = ingest.commit().expect("commit");
        prop_assert_eq!((digest, size), (Digest::of(&all), all.len() as u64));
        prop_assert_eq!(store.blobs().read(&digest, size).expect("read"), all);
        prop_assert_eq!(store.blobs().ingest_ids().expect("ids"), vec![]);
    }

    /// Bytes with another digest than expected are refused and leave nothing visible.
    #[test]
    fn wrong_bytes_are_never_visible(bytes in prop::collection::vec(any::<u8>(), 1..200), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let (_folder, store) = temporary();
        let mut wrong = bytes.clone();
        wrong[at.index(bytes.len())] ^= 1 << bit;
        let promised = Digest::of(&bytes);
        let mut ingest = store.blobs().start_ingest(&id("p"), Expected::Digest(promised)).expect("start");
        ingest.append(&wrong).expect("write");
        prop_assert!(ingest.commit().is_err());
        prop_assert_eq!(store.blobs().size(&promised).expect("size"), None);
        prop_assert_eq!(store.blobs().list(), vec![]);
    }
}

#[test]
fn a_damaged_tag_hides_nothing_and_stops_deletion() {
    let (folder, store) = temporary();
    let digest = put(&store, b"m");
    store.names().set("h/r:good", &digest).expect("tag");
    std::fs::write(folder.path().join("tags/h/r/:bad"), b"").expect("damage");
    assert_eq!(store.names().list().len(), 1);
    let children = |_: &[u8]| Ok(Children::default());
    let put_off = store.collect(SystemTime::now(), children).put_off.expect("it is told");
    assert!(put_off.reasons[0].contains(":bad"), "{put_off:?}");
    assert!(store.names().remove("h/r:bad").expect("removal"), "it can be removed all the same");
    assert_eq!(store.collect(SystemTime::now(), children), done(0, 0));
}

#[test]
fn a_damaged_blob_is_replaced() {
    let (_folder, store) = temporary();
    let digest = put(&store, b"whole");
    let path = store.blobs().path(&digest);
    std::fs::remove_file(&path).expect("damage");
    std::fs::write(&path, b"cut").expect("damage");
    assert_eq!(put(&store, b"whole"), digest);
    assert_eq!(store.blobs().read(&digest, 10).expect("read"), b"whole");
}

#[test]
fn one_name_may_be_set_by_many_at_once() {
    let (_folder, store) = temporary();
    let digest = put(&store, b"m");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    store.names().set("h/r:t", &digest).expect("tag");
                    store.names().remove("h/r:t").expect("untag");
                }
            });
        }
    });
}

#[test]
fn links_are_roots() {
    let (_folder, store) = temporary();
    let (blob, child, document) = (put(&store, b"blob"), put(&store, b"child"), put(&store, b"document"));
    let collect = |now| store.collect(now, |_| Ok(Children { documents: Vec::new(), blobs: vec![child] }));
    store.names().link("h/a/b", LinkKind::Blob, &blob).expect("link");
    store.names().link("h/a/b", LinkKind::Blob, &blob).expect("link again");
    store.names().link("h/a", LinkKind::Manifest, &document).expect("link");
    assert_eq!(store.names().linked_repositories(), ["h/a", "h/a/b"]);
    assert!(store.names().is_linked("h/a/b", LinkKind::Blob, &blob).expect("linked"));
    assert!(!store.names().is_linked("h/a", LinkKind::Blob, &blob).expect("not linked"));
    assert_eq!(store.notes().documents(), [document]);
    let now = SystemTime::now();
    assert_eq!(collect(now), done(0, 0));

    // The link to the blob expires, the link to the document does not.
    assert_eq!(collect(now + BLOB_LINK_LIFE * 2), done(1, 4));
    assert_eq!(store.blobs().size(&child).expect("size"), Some(5));
    assert!(!store.names().is_linked("h/a/b", LinkKind::Blob, &blob).expect("unlinked"));
    assert!(store.names().unlink("h/a", LinkKind::Manifest, &document).expect("unlink"));
    assert!(!store.names().unlink("h/a", LinkKind::Manifest, &document).expect("unlink again"));
    assert_eq!(collect(now), done(2, 13));
    assert!(store.names().linked_repositories().is_empty());
    assert!(store.names().link("../x", LinkKind::Blob, &blob).is_err());
}

#[test]
fn an_index_may_list_what_was_never_sent() {
    let (_folder, store) = temporary();
    let document = put(&store, b"index");
    store.names().set("h/r:t", &document).expect("tag");
    let absent = Digest::of(b"absent");
    let children = |_: &[u8]| Ok(Children { documents: vec![absent], blobs: Vec::new() });
    assert_eq!(store.collect(SystemTime::now(), children), done(0, 0));
}

#[test]
fn a_copy_without_empty_folders_is_whole() {
    let (folder, store) = temporary();
    drop(store);
    let shelves = std::fs::read_dir(folder.path().join("blobs/sha256")).expect("shelves");
    for shelf in shelves.map(|shelf| shelf.expect("a shelf")).filter(|shelf| shelf.file_name() != "ff") {
        std::fs::remove_dir(shelf.path()).expect("it is empty");
    }
    let store = Store::open(folder.path(), Options::default()).expect("it opens");
    put(&store, b"a blob");
}

#[test]
fn learns_the_digest_late() {
    let (_folder, store) = temporary();
    let id = IngestId::parse("upload").expect("an id");
    let mut hasher = content::Hasher::new(content::Algorithm::Sha512);
    hasher.update(b"long name");
    let long = hasher.finish();
    let mut ingest = store.blobs().start_ingest(&id, Expected::Unknown).expect("start");
    ingest.append(b"long ").expect("append");
    ingest.expect(Expected::Digest(long)).expect("expect");
    ingest.append(b"name").expect("append");
    assert_eq!(ingest.commit().expect("commit"), (long, 9));
}
