//! Blobs of a registry as files that an import can read.

use std::io;

use content::operation::RemoteClass;
use content::{Descriptor, Error};
use library::RangeSource;
use registry::client::{Host, Remote};

/// Returns a blob of a registry as a file. `name` is the name of its layer.
pub(crate) fn remote_blob(remote: &Remote, name: &str, blob: &Descriptor) -> RangeSource {
    let host = remote.sources().last().map(Host::name).unwrap_or_default();
    RangeSource::blob(&remote.without_peers(), format!("{name} ({} at {host})", blob.digest), blob, failed)
}

/// Makes a missing blob an error of the registry: the text of [`Error::BlobNotFound`] names the
/// local store.
fn failed(error: Error) -> io::Error {
    io::Error::other(match error {
        Error::BlobNotFound(digest) => Error::Remote {
            class: RemoteClass::NotFound,
            source: format!("the registry does not have blob `{digest}`").into(),
        },
        error => error,
    })
}

#[cfg(test)]
mod tests {
    use content::Digest;
    use content::operation::{Classified, ErrorClass};

    use super::*;

    #[test]
    fn a_missing_blob_is_an_error_of_the_registry() {
        let error = import::Error::io("read", "config.json", failed(Error::BlobNotFound(Digest::of(b"x"))));
        assert_eq!(error.class(), ErrorClass::Remote(RemoteClass::NotFound));
        assert!(error.to_string().starts_with("cannot read `config.json`: the registry does not have blob"), "{error}");
        let other = import::Error::io("read", "config.json", failed(Error::Busy("x".to_owned())));
        assert_eq!(other.class(), ErrorClass::Conflict);
    }
}
