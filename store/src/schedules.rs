//! Tests of thread interleavings: in every order of threads, each name leads to a complete
//! document.
//!
//! `LODE_CAMPAIGN_SCHEDULES` sets the number of orders for each strategy.

use std::path::PathBuf;
use std::time::SystemTime;

use content::{Digest, Expected, IngestId};
use shuttle::thread;

use crate::{Children, LinkKind, Options, Store};

/// Tries random orders, and orders with few switches between threads, which find rare bugs.
fn check(scenario: fn()) {
    let asked = std::env::var("LODE_CAMPAIGN_SCHEDULES").ok().and_then(|text| text.parse().ok());
    let orders = asked.unwrap_or(100);
    shuttle::check_random(scenario, orders);
    shuttle::check_pct(scenario, orders, 4);
}

/// A store in memory if the machine has `/dev/shm`, so that the speed of a disk has no influence.
fn store() -> (tempfile::TempDir, Store) {
    let memory = PathBuf::from("/dev/shm");
    let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let folder = tempfile::tempdir_in(parent).expect("a folder");
    let store = Store::open(folder.path(), Options::default()).expect("a store");
    (folder, store)
}

fn put(store: &Store, who: &str, bytes: &[u8]) -> Digest {
    let id = IngestId::parse(who).expect("an id");
    let mut ingest = store.blobs().start_ingest(&id, Expected::Unknown).expect("start");
    ingest.append(bytes).expect("write");
    ingest.commit().expect("commit").0
}

/// Stores a document: the digests that it refers to, one a line.
fn document(store: &Store, who: &str, blobs: &[Digest]) -> Digest {
    let lines: Vec<String> = blobs.iter().map(|blob| format!("{blob}\n")).collect();
    put(store, who, lines.concat().as_bytes())
}

fn children(raw: &[u8]) -> Result<Children, String> {
    let text = String::from_utf8_lossy(raw);
    let blobs = text.lines().map(|line| line.parse().map_err(|_| format!("`{line}`"))).collect::<Result<_, _>>()?;
    Ok(Children { documents: Vec::new(), blobs })
}

fn collect(store: &Store) {
    store.collect(SystemTime::now(), children);
}

/// Checks that every named document exists with all blobs that it refers to.
fn whole(store: &Store) {
    for tag in store.names().list() {
        let raw = store.blobs().read(&tag.digest, 1 << 20).unwrap_or_else(|error| panic!("{}: {error}", tag.name));
        for blob in children(&raw).expect("a document").blobs {
            assert!(store.blobs().path(&blob).is_file(), "{} lacks {blob}", tag.name);
        }
    }
}

/// Gives a model a second name, as `copy` does.
fn copy(store: &Store, from: &str, to: &str) {
    let Some(digest) = store.names().resolve(from).expect("a look") else { return };
    let Ok(raw) = store.blobs().read(&digest, 1 << 20) else { return };
    let mut needs = children(&raw).expect("a document").blobs;
    needs.push(digest);
    let _hold = store.hold(needs);
    if store.names().resolve(from).expect("a look") == Some(digest) {
        store.names().set(to, &digest).expect("a name");
    }
}

/// Adds a model of which one blob may exist already, as `create` and a push do.
fn add(store: &Store, who: &str, shared: &[u8], name: &str) {
    let guard = store.guard();
    let digest = Digest::of(shared);
    if guard.keep(&digest).expect("a look").is_none() {
        put(store, who, shared);
    }
    let own = put(store, who, who.as_bytes());
    store.names().set(name, &document(store, who, &[digest, own])).expect("a name");
}

#[test]
fn collections_beside_copies_and_removals() {
    check(|| {
        let (_folder, store) = store();
        let blob = put(&store, "a", b"blob");
        store.names().set("h/r:old", &document(&store, "a", &[blob])).expect("a name");
        let [copier, remover, collector, second] = [(); 4].map(|()| store.clone());
        let threads = [
            thread::spawn(move || copy(&copier, "h/r:old", "h/r:new")),
            thread::spawn(move || assert!(remover.names().remove("h/r:old").expect("removal"))),
            thread::spawn(move || collect(&collector)),
            thread::spawn(move || collect(&second)),
        ];
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        whole(&store);
        collect(&store);
        whole(&store);
    });
}

#[test]
fn collections_beside_who_adds() {
    check(|| {
        let (_folder, store) = store();
        let shared = put(&store, "a", b"shared");
        store.names().set("h/r:old", &document(&store, "a", &[shared])).expect("a name");
        let [first, second, remover, collector] = [(); 4].map(|()| store.clone());
        let threads = [
            thread::spawn(move || add(&first, "first", b"shared", "h/r:first")),
            thread::spawn(move || add(&second, "second", b"shared", "h/r:second")),
            thread::spawn(move || assert!(remover.names().remove("h/r:old").expect("removal"))),
            thread::spawn(move || collect(&collector)),
        ];
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(store.names().list().len(), 2);
        whole(&store);
        collect(&store);
        whole(&store);
        for tag in ["h/r:first", "h/r:second"] {
            store.names().remove(tag).expect("removal");
        }
        collect(&store);
        assert_eq!(store.blobs().list(), [], "nothing is kept for who has ended");
    });
}

#[test]
fn collections_beside_readers_and_promises() {
    check(|| {
        let (_folder, store) = store();
        let (read, told) = (put(&store, "a", b"read"), put(&store, "a", b"told"));
        let [reader, teller, collector] = [(); 3].map(|()| store.clone());
        let threads = [
            thread::spawn(move || {
                let _hold = reader.hold(vec![read]);
                if reader.blobs().size(&read).expect("a look").is_some() {
                    thread::yield_now();
                    reader.blobs().read(&read, 100).expect("what is held can be read");
                }
            }),
            thread::spawn(move || {
                let later = SystemTime::now() + std::time::Duration::from_hours(1);
                teller.leases().promise("h/r", &told, later);
                if teller.blobs().size(&told).expect("a look").is_some() {
                    thread::yield_now();
                    teller.blobs().read(&told, 100).expect("what was promised can be read");
                }
            }),
            thread::spawn(move || collect(&collector)),
        ];
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

#[test]
fn links_that_run_out_beside_their_renewal() {
    check(|| {
        let (_folder, store) = store();
        let blob = put(&store, "a", b"blob");
        store.names().link("h/r", LinkKind::Blob, &blob).expect("a link");
        let [pusher, collector] = [(); 2].map(|()| store.clone());
        let threads = [
            thread::spawn(move || {
                let guard = pusher.guard();
                if guard.keep(&blob).expect("a look").is_some() {
                    pusher.names().link("h/r", LinkKind::Blob, &blob).expect("a link");
                    assert!(pusher.blobs().path(&blob).is_file(), "what was linked is here");
                }
            }),
            thread::spawn(move || {
                // For a clock that is one day ahead the link has expired; the renewed link has not.
                let later = SystemTime::now() + crate::BLOB_LINK_LIFE;
                collector.collect(later, children);
            }),
        ];
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

#[test]
fn one_ingest_has_one_writer() {
    check(|| {
        let (_folder, store) = store();
        let threads = [(); 3].map(|()| {
            let store = store.clone();
            thread::spawn(move || {
                let id = IngestId::parse("x").expect("an id");
                match store.blobs().start_ingest(&id, Expected::Digest(Digest::of(b"bytes"))) {
                    Ok(mut ingest) => {
                        let rest = &b"bytes"[ingest.offset() as usize..];
                        ingest.append(rest).expect("write");
                        ingest.commit().expect("commit");
                    }
                    Err(crate::Error::Content(content::Error::Busy(_))) => {}
                    Err(error) => panic!("{error}"),
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(store.blobs().list().len(), 1);
        assert_eq!(store.blobs().ingest_ids().expect("ids"), []);
    });
}
