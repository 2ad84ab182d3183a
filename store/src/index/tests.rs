//! Tests: whichever way the index fails, it costs only time.

use super::*;
use crate::tests::{put, temporary};
use crate::{Options, Store};

fn description(child: &Digest) -> Description {
    Description { children: vec![*child], ..Description::default() }
}

/// A closed store with a document that refers to a blob.
fn closed() -> (tempfile::TempDir, Digest, Digest) {
    let (folder, store) = temporary();
    let (child, parent) = (put(&store, b"child"), put(&store, b"parent"));
    store.names().set("h/r:t", &parent).expect("tag");
    store.notes().describe(&parent, &description(&child));
    store.notes().set("kind", &parent, b"note");
    store.mend_index(|_| Ok(None)).expect("there is an index");
    (folder, child, parent)
}

/// Checks that the store opens, lists its content, and fills its index again.
fn works(home: &std::path::Path, child: &Digest, parent: &Digest) {
    let store = Store::open(home, Options::default()).expect("it opens");
    assert_eq!(store.names().list().len(), 1);
    assert_eq!(store.blobs().list().len(), 2);
    store.mend_index(|_| Ok(Some(description(child)))).expect("it is filled");
    assert_eq!(store.notes().referrers(child), Some(vec![*parent]));
    let note = store.notes().get("kind", parent);
    assert!(note.as_deref().is_none_or(|note| note == b"note"), "{note:?}");
    store.notes().set("kind", parent, b"note");
    store.names().set("h/r:t", parent).expect("it can be written");
}

#[test]
fn is_found_again_after_it_was_closed() {
    let (folder, child, parent) = closed();
    let store = Store::open(folder.path(), Options::default()).expect("it opens");
    assert_eq!(
        (store.notes().referrers(&child), store.notes().get("kind", &parent)),
        (Some(vec![parent]), Some(b"note".to_vec()))
    );
}

#[test]
fn short_notes_survive_a_crash_and_damage() {
    let (folder, store) = temporary();
    let about = [b"a", b"b", b"c"].map(|bytes| Digest::of(bytes));
    for digest in &about {
        store.notes().set("kind", digest, digest.as_bytes());
    }
    store.blobs().forget_verified(&about[0]);
    store.notes().set("long", &about[0], b"short");
    store.notes().set("long", &about[0], &[7; 5000]);
    store.0.index.remove_note("kind", &about[1]);
    let notes =
        |store: &Store| about.map(|digest| store.notes().get("kind", &digest).map(|note| note == digest.as_bytes()));
    store.0.index.reset();
    store.mend_index(|_| Ok(None)).expect("will be recreated");
    assert_eq!(notes(&store), [Some(true), None, Some(true)]);
    assert_eq!(store.notes().get("long", &about[0]), None, "long ones are made again");
    // The state that a crash or a disk error leaves.
    let journal = folder.path().join("index.journal");
    let mut bytes = std::fs::read(&journal).expect("a journal");
    bytes[20] ^= 1;
    bytes.extend(b"\nhalf a li");
    std::fs::write(&journal, bytes).expect("damage");
    store.0.index.reset();
    store.mend_index(|_| Ok(None)).expect("will be recreated");
    assert_eq!(notes(&store), [None, None, Some(true)], "one line is damaged");
    store.notes().set("kind", &about[1], about[1].as_bytes());
    drop(store);
    assert!(!journal.exists(), "the index has them");
    let store = Store::open(folder.path(), Options::default()).expect("it opens");
    assert_eq!(notes(&store), [None, Some(true), Some(true)]);
}

#[test]
fn is_not_trusted_after_a_crash() {
    let (folder, child, parent) = closed();
    let store = Store::open(folder.path(), Options::default()).expect("it opens");
    assert!(!folder.path().join("index.seal").exists(), "the seal holds once");
    // The state that a killed process leaves: nothing is closed.
    let copy = tempfile::tempdir().expect("a folder");
    let status = std::process::Command::new("cp").arg("-r").arg(folder.path().join(".")).arg(copy.path()).status();
    assert!(status.expect("cp").success());
    drop(store);
    let store = Store::open(copy.path(), Options::default()).expect("it opens");
    assert_eq!(
        (store.notes().referrers(&child), store.notes().get("kind", &parent)),
        (None, None),
        "what was closed is gone"
    );
    store.mend_index(|_| Ok(Some(description(&child)))).expect("it is filled");
    assert_eq!(store.notes().referrers(&child), Some(vec![parent]));
}

#[test]
fn what_was_described_while_it_was_away_is_described_again() {
    let (folder, store) = temporary();
    let (child, parent) = (put(&store, b"child"), put(&store, b"parent"));
    store.0.index.fail("a test", store.0.index.generation());
    store.notes().describe(&parent, &description(&child));
    assert_eq!(store.notes().referrers(&child), None);
    // No name leads to it yet: the index knows it only from its description.
    store.mend_index(|_| Ok(Some(description(&child)))).expect("it is filled");
    assert_eq!(store.notes().referrers(&child), Some(vec![parent]));
    drop((store, folder));
}

#[test]
fn what_was_described_to_a_database_that_is_gone_is_described_again() {
    let (_folder, store) = temporary();
    let (child, parent) = (put(&store, b"child"), put(&store, b"parent"));
    store.notes().describe(&parent, &description(&child));
    store.0.index.reset();
    store.mend_index(|_| Ok(None)).expect("nothing has a name");
    assert_eq!(store.notes().referrers(&child), Some(Vec::new()));
    store.names().set("h/r:t", &parent).expect("a name");
    assert_eq!(store.notes().referrers(&child), None, "it has a name, and was not described");
    store.mend_index(|_| Ok(Some(description(&child)))).expect("it is filled");
    assert_eq!(store.notes().referrers(&child), Some(vec![parent]));
}

#[test]
fn one_that_lacks_what_cannot_be_read_says_so() {
    let (_folder, store) = temporary();
    let (child, parent) = (put(&store, b"child"), put(&store, b"parent"));
    store.names().set("h/r:t", &parent).expect("a name");
    let unreadable = |_: &Digest| Err(Error::io("read", std::path::Path::new("x"), std::io::ErrorKind::Other));
    store.mend_index(unreadable).expect_err("a document cannot be read now");
    assert_eq!(store.notes().referrers(&child), None);
    store.mend_index(|_| Ok(Some(description(&child)))).expect("now it can");
    assert_eq!(store.notes().referrers(&child), Some(vec![parent]));
}

#[test]
fn a_panic_of_sled_is_a_failure_like_others() {
    let (_folder, store) = temporary();
    let asked = store.0.index.with(|_| -> sled::Result<()> { panic!("an assertion") });
    assert!(asked.is_none());
    assert!(!store.0.index.is_filled());
    store.mend_index(|_| Ok(None)).expect("will be recreated");
    assert!(store.0.index.is_filled());
}

/// Makes one change to the files of an index. The same number makes the same change.
fn mutate(home: &std::path::Path, number: u64) {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    let index = home.join("index");
    match number % 16 {
        0 => {
            std::fs::remove_dir_all(&index).expect("removal");
            std::fs::write(&index, b"a plain file").expect("a file");
        }
        1 => std::fs::remove_dir_all(&index).expect("removal"),
        2 => std::fs::remove_file(home.join("index.seal")).expect("removal"),
        3 => std::fs::write(home.join("index.seal"), [number as u8; 80]).expect("a seal"),
        _ => {
            let mut files: Vec<PathBuf> = files::entries(&index)
                .expect("files")
                .into_iter()
                .map(|entry| entry.path())
                .filter(|path| path.is_file())
                .collect();
            files.push(home.join("index.seal"));
            let path = &files[next(files.len())];
            let mut bytes = std::fs::read(path).expect("a file");
            match (number / 16) % 4 {
                0 if !bytes.is_empty() => {
                    // At a byte that is not zero: most of a database is zeros.
                    let used: Vec<usize> =
                        bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(at, _)| at).collect();
                    let at = used.get(next(used.len())).copied().unwrap_or(0);
                    bytes[at] ^= 1 << next(8);
                }
                1 => bytes.truncate(next(bytes.len())),
                2 => bytes.extend((0..=next(4096)).map(|byte| byte as u8)),
                _ => {
                    let (from, length) = (next(bytes.len()), next(64));
                    bytes
                        .iter_mut()
                        .skip(from)
                        .take(length)
                        .for_each(|byte| *byte = byte.wrapping_add(number as u8 | 1));
                }
            }
            std::fs::write(path, bytes).expect("a mutation");
        }
    }
}

#[test]
fn any_damage_to_its_files_costs_nothing() {
    let (folder, child, parent) = closed();
    // `LODE_CAMPAIGN_MUTATIONS` sets a larger number.
    let count = std::env::var("LODE_CAMPAIGN_MUTATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(96);
    for number in 0..count {
        mutate(folder.path(), number);
        works(folder.path(), &child, &parent);
        assert!(folder.path().join("index.seal").is_file(), "{number}: it was made anew and closed");
    }
}

#[test]
fn one_that_cannot_be_made_is_done_without() {
    let (folder, store) = temporary();
    let (child, parent) = (put(&store, b"child"), put(&store, b"parent"));
    let layout = crate::layout::StoreLayout::of(std::path::Path::new("/proc/self/nothing"));
    let (index, closed) = Index::open(&layout);
    assert!(!closed && index.mend().is_err());
    index.describe(&parent, &description(&child));
    index.set_note("kind", &parent, b"note");
    assert_eq!((index.referrers(&child), index.note("kind", &parent)), (None, None));
    index.close();
    drop((store, folder));
}
