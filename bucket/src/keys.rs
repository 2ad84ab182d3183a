//! The keys of objects.
//!
//! Names of repositories contain slashes. A key has `!` in their place, which no name contains:
//! some storages treat a slash as a folder, and list the entries of a folder apart from its
//! neighbours.

use content::Digest;
use registry::RepositoryName;

/// The folder of all repositories.
pub(crate) const REPOSITORIES: &str = "repos";
/// The folder with one object for each repository.
pub(crate) const NAMES: &str = "names";
/// The folder of the pointers of all blobs.
pub(crate) const BLOBS: &str = "blobs";
/// The folder of the bytes of all blobs.
pub(crate) const DATA: &str = "data";
/// The folder of all uploads.
pub(crate) const UPLOADS: &str = "uploads";
/// The folder of data that no pointer names any more.
pub(crate) const TRASH: &str = "trash";
/// The folder of all intents.
pub(crate) const INTENTS: &str = "intents";

/// A new random name: 32 hex digits.
pub(crate) fn random() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// The pointer of a blob. The number of hex digits implies the algorithm.
pub(crate) fn pointer(blob: &Digest) -> String {
    let hex = blob.hex();
    format!("{BLOBS}/{}/{hex}", &hex[..2])
}

/// The bytes of a blob.
pub(crate) fn data(id: &str) -> String {
    format!("{DATA}/{id}")
}

/// The state of an upload.
pub(crate) fn session(upload: &str) -> String {
    format!("{UPLOADS}/{upload}/session")
}

/// Bytes of an upload that are not in a part yet.
pub(crate) fn tail(upload: &str, name: &str) -> String {
    format!("{UPLOADS}/{upload}/{name}")
}

/// The announcement of a manifest.
pub(crate) fn intent(id: &str) -> String {
    format!("{INTENTS}/{id}")
}

/// The object that lists a repository in the catalog.
pub(crate) fn name(repository: &RepositoryName) -> String {
    format!("{NAMES}/{}", escaped(repository.as_str()))
}

/// The name of a repository in the last part of a key.
pub(crate) fn repository_of(key: &str) -> Option<RepositoryName> {
    RepositoryName::parse(&key.replace('!', "/")).ok()
}

/// The name of a repository as it is in keys.
pub(crate) fn escaped(name: &str) -> String {
    name.replace('/', "!")
}

/// A folder of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RepositoryFolder {
    Tags,
    Manifests,
    Blobs,
    Referrers,
    Pulls,
}

impl RepositoryFolder {
    const ALL: [Self; 5] = [Self::Tags, Self::Manifests, Self::Blobs, Self::Referrers, Self::Pulls];

    fn as_str(self) -> &'static str {
        match self {
            Self::Tags => "tags",
            Self::Manifests => "manifests",
            Self::Blobs => "blobs",
            Self::Referrers => "referrers",
            Self::Pulls => "pulls",
        }
    }

    /// The key of the folder.
    pub(crate) fn of(self, repository: &RepositoryName) -> String {
        format!("{REPOSITORIES}/{}/{}", escaped(repository.as_str()), self.as_str())
    }

    /// The key of an entry.
    pub(crate) fn entry(self, repository: &RepositoryName, entry: &str) -> String {
        format!("{}/{entry}", self.of(repository))
    }

    /// The folder and the entry of a key below `repos/`; `None` if it is not one.
    pub(crate) fn parse(key: &str) -> Option<(Self, &str)> {
        let (_, rest) = key.strip_prefix(REPOSITORIES)?.strip_prefix('/')?.split_once('/')?;
        let (folder, entry) = rest.split_once('/')?;
        Self::ALL.into_iter().find(|own| own.as_str() == folder).map(|own| (own, entry))
    }
}

/// Parses the hex digits in a key.
pub(crate) fn digest(hex: &str) -> Option<Digest> {
    let algorithm = if hex.len() == 128 { "sha512" } else { "sha256" };
    format!("{algorithm}:{hex}").parse().ok()
}

/// The last part of a key.
pub(crate) fn last(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(_, last)| last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back() {
        let name = RepositoryName::parse("team/a-b/Model.1_x").expect("a name");
        let digest = Digest::of(b"x");
        assert_eq!(super::digest(last(&pointer(&digest))), Some(digest));
        assert_eq!(repository_of(last(&super::name(&name))), Some(name.clone()));
        for folder in RepositoryFolder::ALL {
            assert_eq!(RepositoryFolder::parse(&folder.entry(&name, "a/b")), Some((folder, "a/b")));
        }
        for other in ["repos", "repos/x", "repos/x/tags", "repos/x/other/y", "blobs/aa/bb"] {
            assert_eq!(RepositoryFolder::parse(other), None, "{other}");
        }
        let long = "sha512:".to_owned() + &"ab".repeat(64);
        let long: Digest = long.parse().expect("a digest");
        assert_eq!(super::digest(last(&pointer(&long))), Some(long));
        assert_eq!(super::digest("session"), None);
    }
}
