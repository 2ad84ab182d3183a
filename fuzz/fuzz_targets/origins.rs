//! Fuzzes origin documents with arbitrary bytes, over layers that are made to fit them. A parsed
//! document survives a round trip. A file that can be composed has the same content
//! for any range of the read.
#![no_main]

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use content::{Algorithm, Descriptor, Digest, MediaType};
use formats::Dtype;
use formats::safetensors::{Member, canonical_header};
use import::{Composed, OpenBlob, Origin, OriginFile, ReadAt, digest_of};
use lode_fuzz::VirtualFile;
use manifests::{Layer, media_types};

/// The longest file that is composed, in bytes. A small document can name an arbitrarily long file.
const LONGEST: u64 = 1 << 18;

type Blobs = HashMap<Digest, Vec<u8>>;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(origin) = serde_json::from_slice::<Origin>(bytes) else { return };
    let text = serde_json::to_string(&origin).expect("it is written");
    assert_eq!(serde_json::from_str::<Origin>(&text).expect("it is read"), origin);
    for file in origin.files.iter().take(4) {
        assert!(Composed::new(file, &[], open(Blobs::new())).is_err(), "there is no header");
        let Some((layers, blobs)) = blobs(file) else { continue };
        if let Ok(composed) = Composed::new(file, &layers, open(blobs.clone())) {
            check(file, &composed, &blobs);
        }
    }
});

fn open(blobs: Blobs) -> Arc<OpenBlob> {
    Arc::new(move |digest: &Digest| {
        let bytes = blobs.get(digest).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(VirtualFile::of(bytes)) as Arc<dyn ReadAt>)
    })
}

/// Returns the layers that a file names, with bytes of the stated lengths. Returns `None` if that
/// would be more than [`LONGEST`] bytes.
fn blobs(file: &OriginFile) -> Option<(Vec<Layer>, Blobs)> {
    let sizes = file.tensors.iter().map(|tensor| tensor.size).chain(file.gaps.iter().map(|gap| gap.size));
    let all = sizes.fold(file.header, u64::saturating_add);
    if all > LONGEST || file.size > LONGEST {
        return None;
    }
    let (mut layers, mut blobs) = (Vec::new(), Blobs::new());
    let mut put = |media_type: MediaType, name: &str, bytes: Vec<u8>| {
        let descriptor = Descriptor::of(media_type, &bytes);
        blobs.insert(descriptor.digest, bytes);
        layers.push(Layer::named(descriptor, name));
    };
    put(media_types::HEADER, &file.name, noise(1, file.header));
    for gap in &file.gaps {
        put(media_types::HEADER, &gap.layer, noise(2, gap.size));
    }
    let mut groups: BTreeMap<&String, BTreeMap<&String, u64>> = BTreeMap::new();
    for tensor in &file.tensors {
        let group = groups.entry(tensor.layer.as_ref().unwrap_or(&tensor.name)).or_default();
        group.entry(&tensor.name).or_insert(tensor.size);
    }
    for (name, group) in groups {
        let member = |(name, size): (&&String, &u64)| Member {
            name: (*name).clone(),
            dtype: Dtype::U8,
            shape: vec![*size],
            size: *size,
        };
        let members: Vec<Member> = group.iter().map(member).collect();
        let mut bytes = canonical_header(&members, &BTreeMap::new());
        bytes.extend(noise(3, group.values().sum()));
        put(media_types::TENSOR, name, bytes);
    }
    Some((layers, blobs))
}

/// Returns bytes that are never zero, so that they differ from ranges that the document leaves
/// undescribed.
fn noise(seed: u64, length: u64) -> Vec<u8> {
    (0..length).map(|at| ((at * 37 + seed * 101) % 255) as u8 + 1).collect()
}

fn check(file: &OriginFile, composed: &Composed, blobs: &Blobs) {
    assert_eq!(composed.size(), file.size);
    let mut expect = vec![0; file.size as usize];
    let mut at = 0;
    for piece in composed.pieces() {
        assert!(piece.size > 0 && piece.offset >= at && piece.offset + piece.size <= file.size, "{piece:?}");
        at = piece.offset + piece.size;
        let from = &blobs[&piece.blob][piece.begin as usize..][..piece.size as usize];
        expect[piece.offset as usize..at as usize].copy_from_slice(from);
    }
    for cut in [0, expect.len() / 3, expect.len() / 2 + 1, expect.len()] {
        let mut found = vec![0xff; expect.len()];
        let (begin, end) = found.split_at_mut(cut.min(expect.len()));
        composed.read_exact_at(begin, 0).expect("inside");
        composed.read_exact_at(end, begin.len() as u64).expect("inside");
        assert!(found == expect, "cut at {cut}");
    }
    assert!(composed.read_exact_at(&mut [0], file.size).is_err(), "after the end");
    assert_eq!(digest_of(composed, Algorithm::Sha256).expect("it is read"), Digest::of(&expect));
}
