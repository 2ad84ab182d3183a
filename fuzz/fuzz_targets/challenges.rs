//! Fuzzes the parser of `WWW-Authenticate` with arbitrary bytes, one header a line. Parsing never
//! fails, and every parsed challenge survives a round trip through its text.
#![no_main]

// Includes the client's source file directly, because the module is private in its crate. A
// challenge that arrived through the client would make it contact hosts on the network.
#[path = "../../registry/src/client/challenge.rs"]
mod challenge;

use challenge::{Challenge, AuthScheme, read};
use reqwest::header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE};

/// The number of bytes of a header that the parser reads.
const LONGEST: usize = 16 * 1024;
/// The most challenges that the parser returns, and the most parameters of each.
const MOST: usize = 32;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let lines = bytes.split(|byte| *byte == b'\n');
    let found = read(&headers(lines));
    assert!(found.len() <= MOST);
    for challenge in &found {
        assert!(!challenge.scheme.is_empty() && is_name(&challenge.scheme), "{challenge:?}");
        assert!(challenge.parameters.len() <= MOST, "{challenge:?}");
        for (name, value) in &challenge.parameters {
            assert!(!name.is_empty() && is_name(name), "{challenge:?}");
            let first = challenge.parameters.iter().find(|(other, _)| other == name).map(|(_, value)| value);
            assert!(challenge.get(name) == first.map(String::as_str) && value.len() <= 3 * LONGEST);
        }
    }
    check_choice(&found);
    let written = found.iter().map(written).collect::<Vec<_>>().join(", ");
    if written.len() <= LONGEST {
        assert_eq!(read(&headers([written.as_bytes()].into_iter())), found, "{written}");
    }
});

fn check_choice(challenges: &[Challenge]) {
    let has = |scheme: &str| challenges.iter().any(|challenge| challenge.scheme == scheme);
    match AuthScheme::choose(challenges) {
        Ok(AuthScheme::Basic) => assert!(has("basic")),
        Ok(AuthScheme::Bearer { realm, service, scope }) => {
            assert!(has("bearer") && !realm.scheme().is_empty());
            assert!([service, scope].into_iter().flatten().all(|text| !text.is_empty()));
        }
        Err(reason) => assert!(!has("basic") && !reason.trim().is_empty()),
    }
}

/// Returns the lines as header values. Lines that are not valid header values are left out.
fn headers<'b>(lines: impl Iterator<Item = &'b [u8]>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in lines.filter_map(|line| HeaderValue::from_bytes(line).ok()).take(2 * MOST) {
        headers.append(WWW_AUTHENTICATE, value);
    }
    headers
}

/// Whether a text is a token of the grammar in lower case.
fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase() && !b"=\", ".contains(&byte))
}

/// Formats a challenge by the grammar, with all values in quotes.
fn written(challenge: &Challenge) -> String {
    let quoted = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"");
    let pairs = challenge.parameters.iter().map(|(name, value)| format!("{name}=\"{}\"", quoted(value)));
    format!("{} {}", challenge.scheme, pairs.collect::<Vec<_>>().join(", "))
}
