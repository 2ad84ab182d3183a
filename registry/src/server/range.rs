//! Parsers of `Range` in a `GET` and `Content-Range` of a chunk.

use std::ops::Range;

/// The bytes that a `Range` header requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestedRange {
    /// Everything. The header is missing, has another unit or several ranges, or is malformed; HTTP
    /// ignores such headers.
    All,
    /// These bytes.
    Part(Range<u64>),
    /// Bytes beyond the end.
    Nothing,
}

/// Parses a `Range` header for content of `size` bytes.
pub(super) fn wanted(header: Option<&str>, size: u64) -> RequestedRange {
    let Some(range) = header.and_then(|text| text.trim().strip_prefix("bytes=")) else { return RequestedRange::All };
    let Some((first, last)) = range.trim().split_once('-').filter(|_| !range.contains(',')) else {
        return RequestedRange::All;
    };
    match (number(first), number(last)) {
        (Some(first), None) if last.is_empty() && first < size => RequestedRange::Part(first..size),
        (Some(first), Some(last)) if first <= last && first < size => {
            RequestedRange::Part(first..size.min(last.saturating_add(1)))
        }
        (None, Some(length)) if first.is_empty() && length > 0 && size > 0 => {
            RequestedRange::Part(size.saturating_sub(length)..size)
        }
        (Some(_), Some(_)) => RequestedRange::Nothing,
        (Some(_), None) if last.is_empty() => RequestedRange::Nothing,
        (None, Some(_)) if first.is_empty() => RequestedRange::Nothing,
        _ => RequestedRange::All,
    }
}

/// Parses the `Content-Range` of a chunk: `FIRST-LAST`, or `bytes FIRST-LAST/TOTAL`.
pub(super) fn chunk(text: &str) -> Option<Range<u64>> {
    let text = text.trim();
    let text = text.strip_prefix("bytes").map_or(text, |rest| rest.trim_start_matches([' ', '=']));
    let text = text.split('/').next()?;
    let (first, last) = text.split_once('-')?;
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then(|| last.checked_add(1).map(|end| first..end)).flatten()
}

/// Parses digits only; `parse` alone would accept a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ranges() {
        for (header, expect) in [
            (None, RequestedRange::All),
            (Some("bytes=500-1499"), RequestedRange::Part(500..1500)),
            (Some("bytes=500-"), RequestedRange::Part(500..2048)),
            (Some("bytes=-500"), RequestedRange::Part(1548..2048)),
            (Some("bytes=-5000"), RequestedRange::Part(0..2048)),
            (Some("bytes=2000-5000"), RequestedRange::Part(2000..2048)),
            (Some("bytes=0-18446744073709551615"), RequestedRange::Part(0..2048)),
            (Some("bytes=500-0"), RequestedRange::Nothing),
            (Some("bytes=5000-10000"), RequestedRange::Nothing),
            (Some("bytes=2048-"), RequestedRange::Nothing),
            (Some("bytes=-0"), RequestedRange::Nothing),
            (Some("bytes=0-1,4-5"), RequestedRange::All),
            (Some("bytes=x-1"), RequestedRange::All),
            (Some("bytes=+1-2"), RequestedRange::All),
            (Some("bytes=-"), RequestedRange::All),
            (Some("lines=0-1"), RequestedRange::All),
            (Some("bytes=99999999999999999999-"), RequestedRange::All),
        ] {
            assert_eq!(wanted(header, 2048), expect, "{header:?}");
        }
        assert_eq!(wanted(Some("bytes=0-0"), 0), RequestedRange::Nothing);
    }

    #[test]
    fn reads_chunks() {
        for (text, expect) in [
            ("0-9", Some(0..10)),
            ("bytes 5-9/100", Some(5..10)),
            ("bytes=5-9", Some(5..10)),
            ("9-5", None),
            ("5", None),
            ("-5", None),
            ("0-18446744073709551615", None),
            ("", None),
        ] {
            assert_eq!(chunk(text), expect, "{text}");
        }
    }
}
