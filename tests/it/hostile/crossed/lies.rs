//! False statements in documents. Each document matches its digest, so only a client that
//! interprets the document can detect the lie.

use axum::body::Bytes;
use content::Digest;
use serde_json::{Value, json};

use super::outcome::Expect;
use super::subjects::Subject;

/// More entries than any real document has; a manifest with them exceeds 4 MiB.
const MANY: usize = 100_000;
/// About as many entries as a document may have.
const FEWER: usize = 20_000;
/// The depth of nested documents.
const DEEP: usize = 100_000;

/// A false or malformed part of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lie {
    NulByte,
    TwiceTheSameKey,
    Nested,
    /// Nesting in an unknown field.
    NestedAside,
    AnotherKind,
    CutOff,
    /// The size in a descriptor, as its JSON text.
    Size(Size),
    /// The name of a layer or file.
    Called(&'static str),
    /// The digest in a descriptor.
    Digest(&'static str),
    /// A digest for which no content exists.
    NobodysDigest,
    Many,
    Fewer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Negative,
    /// 2⁶² bytes.
    Huge,
    /// A number that exceeds 64 bits.
    Beyond,
    Fraction,
    OneMore,
    OneLess,
    Zero,
}

impl Lie {
    pub(super) const ALL: [(Self, &str); 24] = [
        (Self::NulByte, "nul-byte"),
        (Self::TwiceTheSameKey, "twice-the-same-key"),
        (Self::Nested, "nested"),
        (Self::NestedAside, "nested-aside"),
        (Self::AnotherKind, "another-kind-of-json"),
        (Self::CutOff, "cut-off-json"),
        (Self::Size(Size::Negative), "negative-size"),
        (Self::Size(Size::Huge), "huge-size"),
        (Self::Size(Size::Beyond), "size-beyond-64-bits"),
        (Self::Size(Size::Fraction), "fraction-for-size"),
        (Self::Size(Size::OneMore), "size-plus-1"),
        (Self::Size(Size::OneLess), "size-minus-1"),
        (Self::Size(Size::Zero), "size-0"),
        (Self::Called("../../../../escaped"), "name-that-climbs"),
        (Self::Called("a/../../../escaped"), "name-that-climbs-later"),
        (Self::Called("..\\..\\escaped"), "name-that-climbs-backwards"),
        (Self::Called("/tmp/escaped"), "absolute-name"),
        (Self::Digest("sha256:../../../../etc/passwd"), "path-for-digest"),
        (Self::Digest("sha256:abc"), "short-digest"),
        (Self::Digest(""), "empty-digest"),
        (Self::Digest("md5:d41d8cd98f00b204e9800998ecf8427e"), "digest-of-another-kind"),
        (Self::NobodysDigest, "nobody-s-digest"),
        (Self::Many, "100000-entries"),
        (Self::Fewer, "20000-entries"),
    ];

    /// Returns the expected outcome, or `None` if the lie does not apply to the subject.
    pub(super) fn expect(self, subject: Subject) -> Option<Expect> {
        let documents = [Subject::Tag, Subject::Digest, Subject::Index];
        let described = [Subject::Config, Subject::Tensor, Subject::Template, Subject::Gguf];
        let is_in = |few: &[Subject]| documents.contains(&subject) || few.contains(&subject);
        let of_json = [Subject::Config, Subject::HubListing, Subject::Token];
        let (applies, expect) = match self {
            Self::NestedAside => (is_in(&of_json), Expect::Either),
            Self::NulByte | Self::TwiceTheSameKey | Self::Nested | Self::AnotherKind | Self::CutOff => {
                (is_in(&of_json), Expect::Refused)
            }
            Self::Size(_) => (described.contains(&subject), Expect::Refused),
            Self::Called(_) => {
                let named = described.contains(&subject) && subject != Subject::Config;
                (named || subject == Subject::HubListing, Expect::Refused)
            }
            Self::Digest(_) | Self::NobodysDigest => {
                let refers = [Subject::Index, Subject::HubListing].contains(&subject);
                (refers || described.contains(&subject), Expect::Refused)
            }
            // A hub repository may have more files than a model needs.
            Self::Fewer if subject == Subject::HubListing => (true, Expect::Recovers),
            Self::Many | Self::Fewer => (is_in(&[Subject::HubListing]), Expect::Refused),
        };
        applies.then_some(expect)
    }

    /// Returns the JSON text of the document with the lie. `member` is a key and value that the
    /// document already contains.
    pub(super) fn json(self, text: &[u8], member: &str) -> Bytes {
        let with = |more: &str| Bytes::from([&b"{"[..], more.as_bytes(), &text[1..]].concat());
        let nested = || "[".repeat(DEEP) + &"]".repeat(DEEP);
        match self {
            Self::NulByte => with("\0"),
            Self::TwiceTheSameKey => with(&format!("{member},")),
            Self::Nested => nested().into(),
            Self::NestedAside => with(&format!("\"aside\":{},", nested())),
            Self::AnotherKind => Bytes::from_static(b"7"),
            Self::CutOff => Bytes::copy_from_slice(&text[..text.len() - 1]),
            _ => Bytes::copy_from_slice(text),
        }
    }

    /// Applies the lie to a descriptor.
    pub(super) fn describe(self, descriptor: &mut Value) {
        match self {
            Self::Size(size) => descriptor["size"] = size.instead_of(descriptor["size"].as_u64().unwrap_or_default()),
            Self::Digest(digest) => descriptor["digest"] = json!(digest),
            Self::NobodysDigest => descriptor["digest"] = json!(nobodys(0)),
            Self::Called(name) => {
                descriptor["name"] = json!(name);
                descriptor["annotations"] = json!({"org.opencontainers.image.title": name});
            }
            _ => {}
        }
    }

    /// Applies the lie to a file in a hub listing.
    pub(super) fn sibling(self, sibling: &mut Value) {
        match self {
            Self::Called(name) => sibling["rfilename"] = json!(format!("{name}.safetensors")),
            Self::Digest(digest) => sibling["lfs"]["sha256"] = json!(digest.trim_start_matches("sha256:")),
            Self::NobodysDigest => sibling["lfs"]["sha256"] = json!(nobodys(0).trim_start_matches("sha256:")),
            _ => {}
        }
    }

    /// Returns the manifest with additional layers.
    pub(super) fn layers(self, manifest: &Value) -> Value {
        let layer = |number| {
            let media_type = "application/vnd.ollama.image.tensor";
            json!({"mediaType": media_type, "digest": nobodys(number), "size": 1})
        };
        let mut manifest = manifest.clone();
        if let Some(layers) = manifest["layers"].as_array_mut() {
            layers.extend((0..self.count().min(FEWER)).map(layer));
            // Layers beyond `FEWER` exceed every limit, so they need not differ.
            let same = layer(0);
            layers.extend((FEWER..self.count()).map(|_| same.clone()));
        }
        manifest
    }

    /// Returns the entries of an index; the added ones match no existing platform.
    pub(super) fn entries(self, entries: Vec<Value>) -> Vec<Value> {
        if self.count() == 0 {
            return entries;
        }
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let same = json!({"mediaType": media_type, "digest": nobodys(0), "size": 1});
        vec![same; self.count()]
    }

    /// Returns the listing with additional files.
    pub(super) fn siblings(self, listing: &Value) -> Value {
        let mut listing = listing.clone();
        if let Some(siblings) = listing["siblings"].as_array_mut() {
            siblings.extend((0..self.count()).map(|number| json!({"rfilename": format!("n/{number}"), "size": 1})));
        }
        listing
    }

    fn count(self) -> usize {
        match self {
            Self::Many => MANY,
            Self::Fewer => FEWER,
            _ => 0,
        }
    }
}

impl Size {
    fn instead_of(self, size: u64) -> Value {
        match self {
            Self::Negative => json!(-1),
            Self::Huge => json!(1_u64 << 62),
            Self::Beyond => json!(1e20),
            Self::Fraction => json!(1.5),
            Self::OneMore => json!(size + 1),
            Self::OneLess => json!(size - 1),
            Self::Zero => json!(0),
        }
    }
}

/// Returns a digest for which no content exists.
fn nobodys(number: usize) -> String {
    Digest::of(format!("nobody has {number}").as_bytes()).to_string()
}
