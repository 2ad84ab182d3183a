//! Fuzzes the parsers of model references and digests with any text. Every parsed value survives a
//! round trip through its text, and is safe in a path.
#![no_main]

use content::{Digest, IngestId, MediaType};
use lode_fuzz::assert_told;
use manifests::ModelRef;
use registry::RepositoryName;
use registry::server::Reference;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match text.parse::<ModelRef>() {
        Ok(reference) => check(&reference),
        Err(error) => assert_told(&error),
    }
    match text.parse::<Digest>() {
        Ok(digest) => {
            assert_eq!(digest.to_string(), text, "there is one spelling");
            assert_eq!(digest.as_bytes().len(), digest.algorithm().length());
            assert!(digest.hex().starts_with(&digest.short()));
            assert_eq!(IngestId::parse(IngestId::of(&digest).as_str()).ok(), Some(IngestId::of(&digest)));
        }
        Err(error) => assert_told(&error),
    }
    if let Ok(name) = RepositoryName::parse(text) {
        assert_eq!(name.as_str(), text);
        assert_safe(text);
    }
    if let Ok(reference) = Reference::parse(text) {
        assert_eq!(reference.to_string(), text);
        assert_safe(text);
    }
    if let Ok(media_type) = MediaType::parse(text) {
        assert_eq!(media_type.as_str(), text);
    }
});

fn check(reference: &ModelRef) {
    let shown = reference.to_string();
    assert_eq!(shown.parse::<ModelRef>().as_ref(), Ok(reference), "it is shown as `{shown}`");
    assert_safe(reference.repository());
    let Some(key) = reference.tag_key() else {
        assert!(reference.digest().is_some(), "there is a tag or a digest");
        return;
    };
    assert_safe(&key);
    let kept: ModelRef = key.parse().expect("a key reads as a reference");
    assert_eq!((kept.host(), kept.repository()), (reference.host(), reference.repository()), "`{key}`");
    assert_eq!((kept.tag(), kept.tag_key()), (reference.tag(), Some(key)));
}

/// Asserts that a text is a path that stays below its folder and needs no escapes in a URL.
fn assert_safe(text: &str) {
    let part = |part: &str| !part.is_empty() && part != "." && part != "..";
    let byte = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/".contains(&byte);
    assert!(text.split('/').all(part) && text.bytes().all(byte), "`{text}` is not safe");
}
