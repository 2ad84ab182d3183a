//! Names of repositories, as in the paths of the protocol.

use std::fmt;

/// Maximum length of a name, as the specification advises. (255 minus the longest host name would
/// be stricter.)
const MAX_NAME: usize = 255;

/// The name of a repository: parts of `A-Z a-z 0-9 . _ -`, separated by slashes. Each part begins
/// and ends with a letter or digit. It is safe in a path and in a URL.
///
/// The specification allows lower-case letters only. Names of models also have upper-case letters,
/// so this server accepts them.
///
/// # Examples
///
/// ```
/// use lode_registry::RepositoryName;
///
/// assert!(RepositoryName::parse("team/model").is_ok());
/// assert!(RepositoryName::parse("Team/../model").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepositoryName(String);

impl RepositoryName {
    /// Parses a name from untrusted text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_NAME {
            return Err(format!("a repository's name has {MAX_NAME} characters at most"));
        }
        for part in text.split('/') {
            let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
            let bytes = part.as_bytes();
            let fine = bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
            if !fine || !edge(bytes.first()) || !edge(bytes.last()) || part.contains("..") {
                let shown: String = text.chars().take(100).collect();
                return Err(format!(
                    "`{shown}` is not a repository's name: expected parts of letters, digits and `.`, `_`, `-` between them"
                ));
            }
        }
        Ok(Self(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RepositoryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RepositoryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_names() {
        for good in ["a", "library/smollm2", "a/b/c", "me/Model-1.5_x"] {
            assert_eq!(RepositoryName::parse(good).expect(good).as_str(), good);
        }
        for bad in ["", "/", "a/", "/a", "a//b", "..", "a/../b", ".a", "a.", "-a", "a b", "a%2fb", "é", "a..b", "a:b"]
        {
            assert!(RepositoryName::parse(bad).is_err(), "{bad}");
        }
        assert!(RepositoryName::parse(&"a".repeat(256)).is_err());
    }
}
