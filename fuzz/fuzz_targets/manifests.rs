//! Fuzzes the parsers of manifests and configs with arbitrary bytes. A parsed document keeps its
//! bytes, and survives a round trip through its builder.
#![no_main]

use content::Digest;
use lode_fuzz::assert_told;
use manifests::{Document, Manifest, ManifestBuilder, ModelConfig};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    match Document::parse(bytes) {
        Ok(document) => {
            if let Document::Manifest(manifest) = &document {
                check(manifest, &document, bytes);
            }
        }
        Err(error) => assert_told(&error),
    }
    match ModelConfig::parse(bytes) {
        Ok(config) => {
            let written = config.to_bytes().expect("it is written");
            assert_eq!(ModelConfig::parse(&written).expect("it is read"), config);
            assert_eq!(config.facts().facts(), config.facts());
        }
        Err(error) => assert_told(&error),
    }
});

fn check(manifest: &Manifest, document: &Document, bytes: &[u8]) {
    assert_eq!((manifest.raw(), *manifest.digest()), (bytes, Digest::of(bytes)));
    let children = document.children();
    assert!(children.manifests.is_empty() && children.blobs.len() == manifest.layers().len() + 1);
    assert!(manifest.total_size() >= manifest.config().size, "a blob is counted once, but it is counted");
    assert!(document.artifact_type().is_some(), "a manifest is what its config is");
    let builder = ManifestBuilder {
        config: manifest.config().clone(),
        layers: manifest.layers().to_vec(),
        annotations: manifest.annotations().clone(),
    };
    let built = builder.build().expect("what was read can be written");
    assert_eq!((built.config(), built.layers()), (manifest.config(), manifest.layers()));
    assert_eq!(built.annotations(), manifest.annotations());
    let again = builder.build().expect("what was written can be written");
    assert_eq!(built.raw(), again.raw(), "the same content gives the same bytes");
}
