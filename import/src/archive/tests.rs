//! Tests of reading and refusing hand-made archives.

use std::sync::Arc;

use super::*;
use crate::read_at::InMemory;

/// Returns a header and its content, padded to whole blocks.
fn member(name: &str, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[124..136].copy_from_slice(format!("{:011o}\0", content.len()).as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    seal(&mut block);
    block.extend_from_slice(content);
    block.resize(block.len().next_multiple_of(512), 0);
    block
}

fn seal(block: &mut [u8]) {
    block[148..156].copy_from_slice(b"        ");
    let sum: u64 = block[..512].iter().map(|byte| u64::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn pax(key: &str, value: &str) -> Vec<u8> {
    let rest = format!(" {key}={value}\n");
    let length = (1..1000).find(|length| *length == length.to_string().len() + rest.len()).expect("one fits");
    member("pax", b'x', format!("{length}{rest}").as_bytes())
}

fn read(parts: &[Vec<u8>]) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let archive: Arc<dyn ReadAt> = Arc::new(InMemory(parts.concat()));
    members(&archive)?
        .into_iter()
        .map(|file| {
            let mut bytes = vec![0; file.source.size() as usize];
            file.source.read_exact_at(&mut bytes, 0).expect("inside");
            Ok((file.name, bytes))
        })
        .collect()
}

fn refused(parts: &[Vec<u8>], says: &str) {
    let error = read(parts).expect_err(says).to_string();
    assert!(error.contains(says), "`{error}` should say `{says}`");
}

#[test]
fn reads_all_kinds_of_names() {
    let long = format!("{}/config.json", "d".repeat(150));
    let mut prefixed = member("b.txt", b'0', b"prefixed");
    prefixed[345..348].copy_from_slice(b"pre");
    seal(&mut prefixed);
    let found = read(&[
        member("./", b'5', b""),
        member("./config.json", b'0', b"{}"),
        prefixed,
        member("././@LongLink", b'L', format!("{long}\0").as_bytes()),
        member("cut", b'0', b"long"),
        pax("path", "p/ü.json"),
        member("cut", b'0', b"pax"),
        member("old", 0, &[7; 600]),
        member("empty", b'0', b""),
        vec![0; 1024],
        member("after the end", b'0', b""),
    ]);
    let expect = [
        ("config.json", b"{}".to_vec()),
        ("pre/b.txt", b"prefixed".to_vec()),
        (&long, b"long".to_vec()),
        ("p/ü.json", b"pax".to_vec()),
        ("old", vec![7; 600]),
        ("empty", Vec::new()),
    ];
    let expect: Vec<(String, Vec<u8>)> = expect.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    assert_eq!(found.expect("reads"), expect);
}

#[test]
fn a_size_may_be_binary_or_in_a_record() {
    let mut binary = member("b", b'0', b"12345");
    binary[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
    seal(&mut binary);
    let mut recorded = member("r", b'0', b"123");
    recorded[124..136].copy_from_slice(b"00000000000\0");
    seal(&mut recorded);
    let found = read(&[binary, pax("size", "3"), recorded]).expect("reads");
    assert_eq!(found, [("b".to_owned(), b"12345".to_vec()), ("r".to_owned(), b"123".to_vec())]);
}

#[test]
fn refuses_what_leads_out_or_is_no_file() {
    refused(&[member("../x", b'0', b"")], "leads out");
    refused(&[member("/x", b'0', b"")], "absolute");
    refused(&[pax("path", "a/../../x"), member("a", b'0', b"")], "leads out");
    refused(&[member("a", b'1', b"")], "is a link");
    refused(&[member("a", b'2', b"")], "is a link");
    refused(&[member("a", b'3', b"")], "neither a file nor a folder");
    refused(&[member("a", b'S', b"")], "neither a file nor a folder");
    refused(&[member("a", b'0', b""), member("./a", b'0', b"")], "second `a`");
}

#[test]
fn refuses_what_is_broken() {
    let mut flipped = member("a", b'0', b"");
    flipped[3] ^= 1;
    refused(&[flipped], "checksum");
    refused(&[member("a", b'0', b"1"), member("b", b'0', b"")[..100].to_vec()], "ends within a header");
    refused(&[member("a", b'0', &[1; 2000])[..1024].to_vec()], "truncated");
    let mut huge = member("a", b'0', b"");
    huge[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    seal(&mut huge);
    assert!(read(&[huge]).is_err());
    refused(&[member("x", b'x', b"99 path=a\n"), member("a", b'0', b"")], "malformed");
    refused(&[member("x", b'x', b"0 path=a\n"), member("a", b'0', b"")], "malformed");
    refused(&[member("x", b'L', &vec![b'a'; 70 << 10])], "at most are read");
    refused(&[vec![0x1f, 0x8b, 8, 0]], "gzip");
    refused(&[vec![0x28, 0xb5, 0x2f, 0xfd]], "zstd");
    assert!(read(&[]).expect("an empty archive").is_empty());
}
