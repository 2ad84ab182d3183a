//! States after a power cut, for each kind of loss and for common mistakes of programs.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::super::log::parse;
use super::super::loss::Loss;
use super::Disk;

/// Applies a log, written with spaces between the fields, to a disk.
fn apply(disk: &mut Disk, log: &str) {
    let records = parse(log.replace(' ', "\t").as_bytes()).expect("the log is whole");
    for record in &records {
        disk.apply(record).expect("the records follow each other");
    }
}

/// Returns an empty folder after applying a log.
fn disk(log: &str) -> Disk {
    let mut disk = Disk::empty();
    apply(&mut disk, log);
    disk
}

/// Asserts the names and lengths in a state.
#[track_caller]
fn check(disk: &Disk, loss: Loss, expect: &str) {
    assert_eq!(disk.state(loss).to_string(), expect, "with {loss:?}");
}

/// Returns all outcomes of random losses for a file: its content, or `None`.
fn outcomes(disk: &Disk, path: &str) -> BTreeSet<Option<Vec<u8>>> {
    (0..200).map(|seed| disk.state(Loss::Random(seed)).file(path).map(<[u8]>::to_vec)).collect()
}

fn bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

#[test]
fn a_rename_needs_the_sync_of_its_folder() {
    let mut disk = disk("C new 5\nW 5 0 3\nabc\nS 5\nD 1 .\nR new tag 5\n");
    check(&disk, Loss::Everything, "new 3\n");
    check(&disk, Loss::Names, "new 3\n");
    check(&disk, Loss::Nothing, "tag 3\n");
    check(&disk, Loss::Data, "tag 3\n");
    apply(&mut disk, "D 1 .\n");
    check(&disk, Loss::Everything, "tag 3\n");
}

#[test]
fn a_rename_within_a_folder_leaves_one_of_the_two_names() {
    let disk = disk("C new 5\nS 5\nD 1 .\nR new tag 5\n");
    let states: BTreeSet<String> = (0..50).map(|seed| disk.state(Loss::Random(seed)).to_string()).collect();
    assert_eq!(states, BTreeSet::from(["new 0\n".to_owned(), "tag 0\n".to_owned()]));
}

#[test]
fn a_rename_between_folders_is_pending_in_each() {
    let log = "M a 2\nM b 3\nD 1 .\nC a/x 5\nS 5\nD 2 a\nR a/x b/x 5\n";
    check(&disk(log), Loss::Everything, "a/\na/x 0\nb/\n");
    check(&disk(&format!("{log}D 3 b\n")), Loss::Everything, "a/\na/x 0\nb/\nb/x = a/x\n");
    check(&disk(&format!("{log}D 2 a\n")), Loss::Everything, "a/\nb/\n");
    check(&disk(&format!("{log}D 2 a\nD 3 b\n")), Loss::Everything, "a/\nb/\nb/x 0\n");
    check(&disk(log), Loss::Nothing, "a/\nb/\nb/x 0\n");
}

#[test]
fn a_rename_replaces() {
    let disk = disk("C a 5\nW 5 0 3\nold\nS 5\nC b 6\nW 6 0 4\nnext\n");
    let mut renamed = disk.clone();
    apply(&mut renamed, "D 1 .\nS 6\nR b a 6\n");
    assert_eq!(renamed.state(Loss::Everything).file("a"), Some(&b"old"[..]));
    assert_eq!(renamed.state(Loss::Nothing).file("a"), Some(&b"next"[..]));
    check(&renamed, Loss::Nothing, "a 4\n");
    // The clone does not affect the original disk.
    check(&disk, Loss::Nothing, "a 3\nb 4\n");
}

#[test]
fn the_sync_of_a_file_says_nothing_of_its_name() {
    let disk = disk("C a 5\nW 5 0 3\nabc\nS 5\n");
    check(&disk, Loss::Everything, "");
    check(&disk, Loss::Names, "");
    check(&disk, Loss::Data, "a 3\n");
}

#[test]
fn a_file_renamed_before_its_sync_is_empty() {
    let disk = disk("C new 5\nW 5 0 3\nabc\nR new tag 5\nD 1 .\n");
    check(&disk, Loss::Everything, "tag 0\n");
    check(&disk, Loss::Data, "tag 0\n");
    check(&disk, Loss::Names, "tag 3\n");
    assert_eq!(disk.state(Loss::Zeros).file("tag"), Some(&[0, 0, 0][..]));
}

#[test]
fn what_grew_is_zeros_and_what_was_overwritten_is_old() {
    let mut disk = disk("C a 5\nD 1 .\nW 5 0 4\nabcd\nS 5\nW 5 2 4\nwxyz\n");
    assert_eq!(disk.state(Loss::Zeros).file("a"), Some(&b"abcd\0\0"[..]));
    assert_eq!(disk.state(Loss::Nothing).file("a"), Some(&b"abwxyz"[..]));
    apply(&mut disk, "T 5 0\nW 5 0 2\nhi\n");
    assert_eq!(disk.state(Loss::Zeros).file("a"), Some(&b"\0\0"[..]));
    assert_eq!(disk.state(Loss::Everything).file("a"), Some(&b"abcd"[..]));
}

#[test]
fn writes_are_kept_lost_or_torn() {
    let one = disk("C a 5\nD 1 .\nW 5 0 4\nabcd\n");
    assert_eq!(outcomes(&one, "a"), BTreeSet::from([Some(bytes("")), Some(bytes("ab")), Some(bytes("abcd"))]));
    let two = disk("C a 5\nD 1 .\nW 5 0 2\nab\nW 5 2 2\ncd\n");
    let expect = ["", "a", "ab", "\0\0c", "\0\0cd", "a\0c", "a\0cd", "abc", "abcd"].map(|text| Some(bytes(text)));
    assert_eq!(outcomes(&two, "a"), BTreeSet::from(expect));
}

#[test]
fn a_resize_is_kept_or_lost() {
    let disk = disk("C a 5\nD 1 .\nW 5 0 4\nabcd\nS 5\nT 5 1\n");
    assert_eq!(outcomes(&disk, "a"), BTreeSet::from([Some(bytes("a")), Some(bytes("abcd"))]));
}

#[test]
fn random_losses_keep_a_first_part_of_the_names() {
    let disk = disk("C a 5\nC b 6\nC c 7\n");
    let states: BTreeSet<String> = (0..100).map(|seed| disk.state(Loss::Random(seed)).to_string()).collect();
    let expect = ["", "a 0\n", "a 0\nb 0\n", "a 0\nb 0\nc 0\n"].map(str::to_owned);
    assert_eq!(states, BTreeSet::from(expect));
}

#[test]
fn what_was_synced_is_in_every_state() {
    let disk = disk("M d 2\nC d/a 5\nW 5 0 3\nabc\nS 5\nD 2 d\nD 1 .\nC d/b 6\nW 6 0 1\nx\n");
    let random = (0..50).map(Loss::Random);
    for loss in Loss::CERTAIN.into_iter().chain(random) {
        assert_eq!(disk.state(loss).file("d/a"), Some(&b"abc"[..]), "with {loss:?}");
        assert_eq!(disk.state(loss).fingerprint(), disk.state(loss).fingerprint(), "with {loss:?}");
    }
}

#[test]
fn an_unlinked_file_may_come_back() {
    let mut disk = disk("C a 5\nW 5 0 3\nabc\nS 5\nD 1 .\nU a 5\n");
    check(&disk, Loss::Everything, "a 3\n");
    check(&disk, Loss::Nothing, "");
    assert_eq!(outcomes(&disk, "a"), BTreeSet::from([None, Some(bytes("abc"))]));
    // The file is still open in a process.
    apply(&mut disk, "W 5 3 1\nd\nS 5\n");
    check(&disk, Loss::Everything, "a 4\n");
    apply(&mut disk, "D 1 .\n");
    check(&disk, Loss::Everything, "");
}

#[test]
fn a_folder_that_its_parent_does_not_name_is_lost_with_all_in_it() {
    let mut disk = disk("M d 2\nM d/e 3\nC d/e/a 5\nW 5 0 3\nabc\nS 5\nD 3 d/e\nD 2 d\n");
    check(&disk, Loss::Everything, "");
    check(&disk, Loss::Names, "");
    check(&disk, Loss::Nothing, "d/\nd/e/\nd/e/a 3\n");
    apply(&mut disk, "D 1 .\n");
    check(&disk, Loss::Everything, "d/\nd/e/\nd/e/a 3\n");
    apply(&mut disk, "U d/e/a 5\nX d/e 3\nD 2 d\n");
    check(&disk, Loss::Everything, "d/\n");
}

#[test]
fn a_folder_that_two_folders_name_is_in_one_of_them() {
    // The root's part of both renames is not synced, so the root still names both folders, and each
    // is also inside the other.
    let moved = "M a 2\nM b 3\nD 1 .\nR a b/a 2\nD 3 b\n";
    check(&disk(moved), Loss::Everything, "a/\nb/\n");
    let swapped = format!("{moved}R b/a a 2\nR b a/b 3\nD 2 a\n");
    check(&disk(&swapped), Loss::Everything, "a/\na/b/\n");
    check(&disk(&swapped), Loss::Nothing, "a/\na/b/\n");
}

#[test]
fn an_inode_number_may_be_used_again() {
    let disk = disk("C a 5\nW 5 0 3\nabc\nS 5\nD 1 .\nU a 5\nC b 5\nW 5 0 1\nx\nS 5\n");
    check(&disk, Loss::Everything, "a 3\n");
    check(&disk, Loss::Nothing, "b 1\n");
    assert_eq!(disk.state(Loss::Everything).file("a"), Some(&b"abc"[..]));
}

#[test]
fn two_names_of_one_file() {
    let mut disk = disk("C a 5\nL a b 5\nW 5 0 3\nabc\n");
    check(&disk, Loss::Nothing, "a 3\nb = a\n");
    assert_eq!(disk.state(Loss::Nothing).file("b"), Some(&b"abc"[..]));
    // rename(2) specifies that both names remain.
    apply(&mut disk, "R a b 5\n");
    check(&disk, Loss::Nothing, "a 3\nb = a\n");
    apply(&mut disk, "U a 5\n");
    check(&disk, Loss::Nothing, "b 3\n");
}

#[test]
fn sockets_are_not_on_the_disk() {
    let disk = disk("C a 5\nU a 5\nC b 6\nP 9 666\nU daemon.sock 9\nU daemon.sock 5\n");
    check(&disk, Loss::Nothing, "b 0\n");
}

#[test]
fn records_that_contradict_what_was_before_are_refused() {
    let check = |log: &str, expect: &str| {
        let mut disk = disk("M d 2\nC a 5\nC b 6\n");
        let record = parse(log.replace(' ', "\t").as_bytes()).expect("the log is whole").remove(0);
        let error = disk.apply(&record).expect_err("it cannot follow").to_string();
        assert_eq!(error, expect, "{log}");
        assert_eq!(disk.state(Loss::Nothing).to_string(), "a 0\nb 0\nd/\n", "{log}");
    };
    check("S 9\n", "sync inode 9: no record made inode 9");
    check("S 2\n", "sync inode 2: inode 2 is a folder");
    check("D 9 e\n", "sync the folder `e`, inode 9: no record made the folder");
    check("C a 7\n", "create `a` as inode 7: `a` is there already");
    check("C e/a 7\n", "create `e/a` as inode 7: no record made the folder `e`");
    check("C a/b 7\n", "create `a/b` as inode 7: a file stands where a folder was to be");
    check("R c d 7\n", "rename `c` to `d`, inode 7: nothing is at `c`");
    check("R a c 6\n", "rename `a` to `c`, inode 6: what is at `a` is not inode 6");
    check("U c 6\n", "unlink `c`, inode 6: nothing is at `c`");
    check("L a b 5\n", "link `a` as `b`, inode 5: `b` is there already");
    check(
        "T 5 1073741825\n",
        "resize inode 5 to 1073741825 bytes: the file would have 1073741825 bytes, the model holds at most 1073741824",
    );
}

#[test]
fn a_log_goes_on_from_a_snapshot() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("d")).expect("made");
    fs::write(folder.path().join("d/a"), "abc").expect("written");
    let inode = |path: &str| fs::metadata(folder.path().join(path)).expect("it is there").ino();
    let mut disk = Disk::snapshot(folder.path()).expect("read");
    check(&disk, Loss::Everything, "d/\nd/a 3\n");
    let (root, d, a) = (inode(""), inode("d"), inode("d/a"));
    apply(&mut disk, &format!("W {a} 3 1\nd\nR d/a b {a}\n"));
    check(&disk, Loss::Everything, "d/\nd/a 3\n");
    apply(&mut disk, &format!("S {a}\nD {root} .\nD {d} d\n"));
    check(&disk, Loss::Everything, "b 4\nd/\n");
}

#[test]
fn a_state_that_is_written_and_read_is_the_same() {
    let disk = disk("M d 2\nC d/a 5\nW 5 0 3\nabc\nP 5 400\nL d/a e 5\nC f 6\nM g 7\nC g/h 8\nP 7 500\n");
    let state = disk.state(Loss::Nothing);
    let folder = tempfile::tempdir().expect("a folder");
    state.write(folder.path()).expect("written");
    let mode = |path: &str| fs::metadata(folder.path().join(path)).expect("it is there").permissions().mode() & 0o7777;
    assert_eq!(["d", "d/a", "e", "f", "g", "g/h"].map(mode), [0o755, 0o400, 0o400, 0o644, 0o500, 0o644]);
    let again = Disk::snapshot(folder.path()).expect("read").state(Loss::Everything);
    assert_eq!(again.to_string(), state.to_string());
    assert_eq!(again.fingerprint(), state.fingerprint());
    let error = state.write(folder.path()).expect_err("the folder is not empty").to_string();
    assert!(error.ends_with("is not empty"), "{error}");
    // The temporary folder could not be removed otherwise.
    fs::set_permissions(folder.path().join("g"), fs::Permissions::from_mode(0o700)).expect("permissions");
}

#[test]
fn fingerprints_tell_states_apart() {
    let logs = ["", "C a 5\n", "C b 5\n", "M a 5\n", "C a 5\nP 5 600\n", "C a 5\nT 5 1\n", "C a 5\nL a b 5\n"];
    let fingerprints: BTreeSet<u64> = logs.iter().map(|log| disk(log).state(Loss::Nothing).fingerprint()).collect();
    assert_eq!(fingerprints.len(), logs.len());
}
