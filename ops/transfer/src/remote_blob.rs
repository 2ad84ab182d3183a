//! Blobs of a registry as files that an import can read.

use content::Descriptor;
use library::RangeSource;
use registry::client::{Host, Remote};

/// Returns a blob of a registry as a file. `name` is the name of its layer.
pub(crate) fn remote_blob(remote: &Remote, name: &str, blob: &Descriptor) -> RangeSource {
    let host = remote.sources().last().map(Host::name).unwrap_or_default();
    RangeSource::blob(remote, format!("{name} ({} at {host})", blob.digest), blob)
}
