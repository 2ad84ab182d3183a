//! Round trips of archives, and malformed or hostile archives.

use std::io::{Read, Write};

use crate::header::Header;
use crate::{Entry, Error, Kind, Reader, Writer, member_size};

/// Path and bytes.
type Member = (String, Vec<u8>);

fn written(members: &[Member]) -> Vec<u8> {
    let mut tar = Writer::new(Vec::new());
    for (path, bytes) in members {
        tar.member(path, bytes.len() as u64).expect("memory");
        tar.write_all(bytes).expect("memory");
    }
    tar.finish().expect("memory")
}

fn read(bytes: &[u8]) -> Result<Vec<Member>, Error> {
    let mut tar = Reader::new(bytes);
    let mut members = Vec::new();
    while let Some(Entry { path, size, .. }) = tar.next()? {
        let mut bytes = Vec::new();
        tar.read_to_end(&mut bytes)?;
        assert_eq!(bytes.len() as u64, size);
        members.push((path, bytes));
    }
    Ok(members)
}

/// Encodes a member with any path and type, also with values that [`Writer`] does not produce.
fn raw(path: &[u8], kind: u8, bytes: &[u8]) -> Vec<u8> {
    let header = Header { path: path.to_vec(), size: bytes.len() as u64, kind }.write();
    let mut all = [&header[..], bytes].concat();
    all.resize(all.len().next_multiple_of(512), 0);
    all
}

#[test]
fn gives_back_what_was_written() {
    let long = "x".repeat(300);
    let members = [("a", 0), ("b/c", 1), ("d", 511), ("e", 512), ("f", 513), (&*long, 7)]
        .map(|(path, size)| (path.to_owned(), vec![b'.'; size]));
    let bytes = written(&members);
    assert_eq!(read(&bytes).expect("readable"), members);
    assert_eq!(bytes, written(&members), "the same members give the same bytes");
    let size: u64 = members.iter().map(|(path, bytes)| member_size(path, bytes.len() as u64)).sum();
    assert_eq!(bytes.len() as u64, size + crate::END_SIZE);
}

#[test]
fn large_members_have_pax_records() {
    let size = 10 << 30;
    let mut head = Vec::new();
    Writer::new(&mut head).member("large", size).expect("memory");
    assert_eq!(head.len() as u64 + size, member_size("large", size));
    let mut tar = Reader::new(&head[..]);
    assert_eq!(tar.next().expect("a header").expect("a member").size, size);
    assert!(matches!(tar.next(), Err(Error::Malformed { .. })), "its bytes are not there");
}

#[test]
fn reads_what_other_programs_write() {
    let gnu = [raw(b"././@LongLink", b'L', &[&[b'n'; 200][..], b"\0"].concat()), raw(b"nnn", b'0', b"1")].concat();
    assert_eq!(read(&gnu).expect("GNU's long names, no end"), [("n".repeat(200), b"1".to_vec())]);
    let folders = [raw(b"./", b'5', b""), raw(b"./blobs/", 0, b""), raw(b"./blobs/x", 0, b"2")].concat();
    let mut tar = Reader::new(&folders[..]);
    let kinds: Vec<(String, Kind)> =
        std::iter::from_fn(|| tar.next().expect("readable")).map(|entry| (entry.path, entry.kind)).collect();
    let expect = [("", Kind::Directory), ("blobs", Kind::Directory), ("blobs/x", Kind::File)];
    assert_eq!(kinds, expect.map(|(path, kind)| (path.to_owned(), kind)));
    let links = [raw(b"x", b'K', b"target"), raw(b"a", b'0', b"4")].concat();
    assert_eq!(read(&links).expect("long targets"), [("a".to_owned(), b"4".to_vec())]);
    let comment = [raw(b"pax_global_header", b'g', b"15 comment=ok\n\n"), raw(b"a", b'0', b"3")].concat();
    assert_eq!(read(&comment).expect("global headers"), [("a".to_owned(), b"3".to_vec())]);
}

#[test]
fn refuses_what_leads_elsewhere() {
    for (path, kind) in [
        (&b"/etc/passwd"[..], b'0'),
        (b"../x", b'0'),
        (b"a/../../x", b'0'),
        (b"a/..", b'5'),
        (b"link", b'1'),
        (b"link", b'2'),
        (b"device", b'3'),
        (b"pipe", b'6'),
        (b"\xff", b'0'),
    ] {
        let found = read(&raw(path, kind, b""));
        assert!(matches!(found, Err(Error::Refused { .. })), "{}: {found:?}", String::from_utf8_lossy(path));
    }
    let renamed = [raw(b"pax", b'x', b"14 path=../xy\n"), raw(b"fine", b'0', b"")].concat();
    assert!(matches!(read(&renamed), Err(Error::Refused { .. })));
}

#[test]
fn refuses_what_is_no_archive() {
    let whole = written(&[("a".to_owned(), vec![1; 700])]);
    for cut in [1, 511, 513, 600, 1535] {
        assert!(read(&whole[..cut]).is_err(), "cut at {cut}");
    }
    let mut flipped = whole.clone();
    flipped[3] ^= 1;
    assert!(matches!(read(&flipped), Err(Error::Malformed { .. })), "the checksum is checked");
    assert!(read(&[b'x'; 2048]).is_err());
    for records in [&b"x"[..], b"5 a", b"0 a=b\n", b"99 a=b\n", b"6 ab\n", b"6 a=b ", b"10 size=-\n"] {
        let bytes = [raw(b"pax", b'x', records), raw(b"a", b'0', b"")].concat();
        assert!(matches!(read(&bytes), Err(Error::Malformed { .. })), "{}", String::from_utf8_lossy(records));
    }
    let global = [raw(b"pax", b'g', b"9 path=b\n"), raw(b"a", b'0', b"")].concat();
    assert!(matches!(read(&global), Err(Error::Malformed { .. })), "no path holds for all members");
    let huge = Header { path: b"pax".to_vec(), size: 1 << 30, kind: b'x' }.write();
    assert!(matches!(read(&huge), Err(Error::Malformed { .. })), "no memory is taken for it");
    let mut binary = Header { path: b"a".to_vec(), size: 0, kind: b'0' }.write();
    binary[124..136].fill(0xff);
    assert!(read(&binary).is_err(), "a size beyond all bounds");
}
