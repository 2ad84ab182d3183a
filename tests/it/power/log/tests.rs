//! Complete, truncated and invalid logs.

use std::path::{Path, PathBuf};

use super::{LogError, Record, boundaries, parse, read};

/// Converts a log with spaces between the fields, which is easier to read in tests.
fn tabbed(log: &str) -> Vec<u8> {
    log.replace(' ', "\t").into_bytes()
}

fn records(log: &str) -> Vec<Record> {
    parse(&tabbed(log)).expect("the log is whole")
}

/// Returns the offset and the reason of the error.
fn refused(log: &[u8]) -> (usize, String) {
    match parse(log) {
        Err(LogError::Malformed { offset, reason }) => (offset, reason),
        other => panic!("`{}` was to be refused: {other:?}", log.escape_ascii()),
    }
}

#[test]
fn every_kind_is_read() {
    let log =
        "M a 2\nC a/b 3\nW 3 4 5\nx\ny\n\n\nT 3 6\nS 3\nD 2 a\nR a/b a/c 3\nL a/c d 3\nU d 3\nX a 2\nP 3 600\nN done\n";
    let read: Vec<String> = records(log).iter().map(ToString::to_string).collect();
    let expect = [
        "make the folder `a` as inode 2",
        "create `a/b` as inode 3",
        "write 5 bytes at 4 of inode 3",
        "resize inode 3 to 6 bytes",
        "sync inode 3",
        "sync the folder `a`, inode 2",
        "rename `a/b` to `a/c`, inode 3",
        "link `a/c` as `d`, inode 3",
        "unlink `d`, inode 3",
        "remove the folder `a`, inode 2",
        "set the mode of inode 3 to 600",
        "mark `done`",
    ];
    assert_eq!(read, expect);
}

#[test]
fn escapes_in_paths_and_marks_are_undone() {
    let expect = [
        Record::Create { path: PathBuf::from("a b/c%\n\u{7f}ü"), inode: 1 },
        Record::SyncFolder { inode: 2, path: PathBuf::new() },
        Record::Mark("tag it".to_owned()),
    ];
    assert_eq!(records("C ./a%20b/c%25%0a%7Fü 1\nD 2 .\nN tag%20it\n"), expect);
}

#[test]
fn a_log_that_is_cut_off_says_where() {
    let whole = tabbed("C a 1\nW 1 0 4\nabcd\nS 1\n");
    let starts = [0, 6, 19, 23];
    for length in 1..=whole.len() {
        let cut = &whole[..length];
        if starts.contains(&length) {
            parse(cut).expect("it ends with a record");
        } else {
            let (offset, reason) = refused(cut);
            let begins = starts.iter().rfind(|start| **start < length);
            assert_eq!(Some(&offset), begins, "of {length} bytes");
            assert!(reason.contains("cut off"), "{reason}");
        }
    }
}

#[test]
fn what_is_no_record_is_refused() {
    let check = |log: &str, expect: &str| {
        let (offset, reason) = refused(&tabbed(&format!("S 1\n{log}")));
        assert_eq!(offset, 4, "{log}");
        assert!(reason.contains(expect), "{log}: {reason}");
    };
    check("Q 1\n", "not a record of a known kind");
    check("S\n", "not a record of a known kind");
    check("S 1 2\n", "not a record of a known kind");
    check("\n", "not a record of a known kind");
    check("S -1\n", "not a number");
    check("P 1 688\n", "not an octal mode");
    check("P 1 100644\n", "not an octal mode");
    check("C a%2 1\n", "without XX");
    check("C a%zz 1\n", "without XX");
    check("C ../a 1\n", "not a path below");
    check("C /a 1\n", "not a path below");
    check("W 1 0 2\nabc\n", "no line feed follows");
    check("W 1 0 18446744073709551615\nabc\n", "cut off");
}

#[test]
fn a_log_that_is_not_there_is_named() {
    let error = read(Path::new("no/such/log")).expect_err("it is not there");
    assert_eq!(error.to_string(), "cannot read the log `no/such/log`");
}

#[test]
fn boundaries_skip_what_is_within_a_run_of_writes() {
    let log = "C a 1\nP 1 600\nW 1 0 1\na\nT 1 3\nW 1 1 1\nb\nS 1\nW 1 2 1\nc\nN x\n";
    assert_eq!(boundaries(&records(log)), [1, 5, 6, 7, 8]);
    assert_eq!(boundaries(&records("S 1\nW 1 0 1\na\n")), [1, 2]);
}
