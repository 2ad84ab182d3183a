//! Fuzzes the parsers of `Range` and `Content-Range` with any text and any size of the content. An
//! accepted range lies inside the content, and every spelling of it parses to the same range. An
//! input is a size, a line break and a header.
#![no_main]

// Includes the registry's source file directly: the module is private there, and uses nothing of
// its crate.
#[path = "../../registry/src/server/range.rs"]
mod range;

use std::ops::Range;

use range::{RequestedRange, chunk, wanted};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (size, header) = text.split_once('\n').unwrap_or(("2048", text));
    let size: u64 = size.parse().unwrap_or(2048);
    assert_eq!(wanted(None, size), RequestedRange::All);
    let found = wanted(Some(header), size);
    assert_eq!(wanted(Some(&format!(" {header}\t")), size), found, "blanks around it mean nothing");
    if let RequestedRange::Part(range) = &found {
        check_part(range, size);
    }
    if let Some(range) = chunk(header) {
        check_chunk(&range);
    }
});

fn check_part(range: &Range<u64>, size: u64) {
    assert!(range.start < range.end && range.end <= size, "{range:?} of {size}");
    let Range { start, end } = range.clone();
    let spelled = |text: String, expect: Range<u64>| {
        assert_eq!(wanted(Some(&text), size), RequestedRange::Part(expect), "`{text}` of {size}");
    };
    spelled(format!("bytes={start}-{}", end - 1), start..end);
    spelled(format!("bytes={start}-"), start..size);
    spelled(format!("bytes=-{}", size - start), start..size);
    spelled(format!("bytes={start}-{}", u64::MAX), start..size);
}

fn check_chunk(range: &Range<u64>) {
    assert!(range.start < range.end, "{range:?}");
    let (first, last) = (range.start, range.end - 1);
    for text in [format!("{first}-{last}"), format!("bytes {first}-{last}/*"), format!(" bytes={first}-{last}/9 ")] {
        assert_eq!(chunk(&text).as_ref(), Some(range), "`{text}`");
    }
}
