//! Links: URLs of single blobs that are valid for a while without an `Authorization` header.
//!
//! Some clients request a blob, follow a redirect, and fetch parts from there without credentials.
//! A link grants its holder read access to one blob in one repository.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use content::Digest;
use ring::hmac;

use super::key::TokenKey;
use crate::RepositoryName;

const EXPIRES: &str = "lode-expires";
const SIGNATURE: &str = "lode-signature";

/// Creates and verifies links.
#[derive(Debug)]
pub(super) struct Linker(hmac::Key);

impl Linker {
    pub(super) fn new(key: &TokenKey) -> Self {
        Self(key.derive("lode registry link"))
    }

    /// The query that turns the URL of a blob into a link until `expires`.
    pub(super) fn sign(&self, repository: &RepositoryName, digest: &Digest, expires: u64) -> String {
        let tag = hmac::sign(&self.0, &signed(repository, digest, expires));
        format!("{EXPIRES}={expires}&{SIGNATURE}={}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// Whether the query is a valid link to the blob at the time `now`.
    pub(super) fn verify(&self, repository: &RepositoryName, digest: &Digest, query: &str, now: u64) -> bool {
        let value = |name: &str| {
            query.split('&').find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name)).map(|(_, v)| v)
        };
        let (Some(expires), Some(tag)) = (value(EXPIRES), value(SIGNATURE)) else { return false };
        let (Ok(expires), Ok(tag)) = (expires.parse::<u64>(), URL_SAFE_NO_PAD.decode(tag)) else { return false };
        now < expires && hmac::verify(&self.0, &signed(repository, digest, expires), &tag).is_ok()
    }
}

/// The signed text. Names and digests contain no line breaks, so each link has its own text.
fn signed(repository: &RepositoryName, digest: &Digest, expires: u64) -> Vec<u8> {
    format!("{repository}\n{digest}\n{expires}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_links_are_for_one_blob() {
        let name = |text| RepositoryName::parse(text).expect("a name");
        let linker = Linker::new(&TokenKey::random());
        let (a, one) = (name("a"), Digest::of(b"one"));
        let query = linker.sign(&a, &one, 1000);
        assert!(linker.verify(&a, &one, &query, 999));
        assert!(linker.verify(&a, &one, &format!("x=1&{query}&y"), 0));
        assert!(!linker.verify(&a, &one, &query, 1000), "over");
        assert!(!linker.verify(&a, &Digest::of(b"two"), &query, 999), "another blob");
        assert!(!linker.verify(&name("a/b"), &one, &query, 999), "another repository");
        assert!(!Linker::new(&TokenKey::random()).verify(&a, &one, &query, 999), "another key");
        for bad in ["", "&", "=", EXPIRES, &query.replace("1000", "1001"), &query[..query.len() - 1], "lode-expires=9"]
        {
            assert!(!linker.verify(&a, &one, bad, 999), "{bad}");
        }
    }
}
