//! Paths in an OCI image layout.

use content::{Algorithm, Digest};

/// The file that makes a folder an image layout.
pub(crate) const LAYOUT_FILE: &str = "oci-layout";
/// The file that lists the manifests.
pub(crate) const INDEX_FILE: &str = "index.json";
/// Content of the file `oci-layout`.
pub(crate) const MARKER: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;

/// Returns the path of a blob in a layout.
pub(crate) fn path(digest: &Digest) -> String {
    format!("blobs/{}/{}", digest.algorithm().name(), digest.hex())
}

/// Parses the digest from the path of a blob in a layout.
pub(crate) fn digest_of(path: &str) -> Option<Digest> {
    let (algorithm, hex) = path.strip_prefix("blobs/")?.split_once('/')?;
    let known = [Algorithm::Sha256, Algorithm::Sha512].iter().any(|known| known.name() == algorithm);
    known.then(|| format!("{algorithm}:{hex}").parse().ok()).flatten()
}
