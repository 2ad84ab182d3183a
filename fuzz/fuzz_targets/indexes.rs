//! Fuzzes the parser of image indexes with arbitrary bytes. A parsed index keeps its bytes, and
//! parses to the same value as an [`Index`] and as a [`Document`].
#![no_main]

use content::Digest;
use lode_fuzz::assert_told;
use manifests::{Document, Index};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let index = Index::parse(bytes);
    match &index {
        Ok(index) => {
            assert_eq!((index.raw(), *index.digest()), (bytes, Digest::of(bytes)));
            let named = index.manifests().iter().map(|entry| *entry.digest());
            let children = Document::Index(index.clone()).children();
            assert!(children.blobs.is_empty() && named.eq(children.manifests.iter().copied()));
        }
        Err(error) => assert_told(error),
    }
    if let Ok(document @ Document::Index(_)) = Document::parse(bytes) {
        let index = index.expect("what is an index is read as one");
        assert_eq!(document.media_type(), index.media_type());
        assert_eq!((document.artifact_type(), document.subject()), (index.artifact_type(), index.subject()));
        assert_eq!(document.annotations(), index.annotations());
    }
});
