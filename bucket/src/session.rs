//! The state of an upload between requests: any replica continues where another one stopped.
//!
//! The session exists from before the first byte of `data/ID` is stored until after a pointer names
//! it. A collection therefore finds the data of an upload that was interrupted: it is that of an
//! expired session whose digest has no pointer to it.

use content::{Algorithm, Digest, Hasher};
use serde::{Deserialize, Serialize};

use crate::Error;

/// How far an upload is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "lowercase")]
pub(crate) enum Phase {
    /// It takes bytes.
    Open,
    /// Its data may get a pointer. No request can resume it.
    Committing {
        /// The digest of the data.
        digest: String,
    },
    /// Its objects are being removed.
    Ended,
}

/// Bytes behind the parts, in an object of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tail {
    /// The last part of the key below `uploads/ID/`.
    pub(crate) name: String,
    pub(crate) size: u64,
}

/// The document `uploads/ID/session`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Session {
    #[serde(flatten)]
    pub(crate) phase: Phase,
    /// The id of the data: the last part of its key below `data/`.
    pub(crate) data: String,
    /// The multipart upload of the data, once it has begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) multipart: Option<String>,
    /// The ids of the parts that were sent.
    #[serde(default)]
    pub(crate) parts: Vec<String>,
    /// Number of bytes in parts and tail.
    pub(crate) offset: u64,
    #[serde(default)]
    pub(crate) tail: Vec<Tail>,
    /// The SHA-256 state after `offset` bytes, in hex.
    pub(crate) hash: String,
    pub(crate) nonce: String,
}

impl Session {
    /// The session of an upload without bytes.
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Open,
            data: crate::keys::random(),
            multipart: None,
            parts: Vec::new(),
            offset: 0,
            tail: Vec::new(),
            hash: hex(&Hasher::new(Algorithm::Sha256).state()),
            nonce: crate::keys::random(),
        }
    }

    /// The digest that is being committed.
    pub(crate) fn committing(&self) -> Option<Digest> {
        match &self.phase {
            Phase::Committing { digest } => digest.parse().ok(),
            Phase::Open | Phase::Ended => None,
        }
    }

    /// Continues the hash.
    pub(crate) fn hasher(&self, key: &str) -> Result<Hasher, Error> {
        let state = bytes(&self.hash).and_then(|state| Hasher::resume(Algorithm::Sha256, &state));
        state.ok_or_else(|| Error::Document {
            key: key.to_owned(),
            reason: "`hash` is not a state of SHA-256 that this version reads".to_owned(),
        })
    }

    /// Records the state of the hash.
    pub(crate) fn set_hash(&mut self, hasher: &Hasher) {
        self.hash = hex(&hasher.state());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if digits.len() % 2 == 1 { None } else { digits.chunks(2).map(pair).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_continues() {
        let mut session = Session::new();
        let mut hasher = session.hasher("x").expect("the state of no bytes");
        hasher.update(b"hello ");
        session.set_hash(&hasher);
        let mut again = session.hasher("x").expect("a state");
        again.update(b"world");
        assert_eq!(again.finish(), Digest::of(b"hello world"));
        for damaged in ["", "0", "zz", &session.hash[2..]] {
            let damaged = Session { hash: damaged.to_owned(), ..session.clone() };
            assert!(damaged.hasher("x").is_err(), "{}", damaged.hash);
        }
    }
}
