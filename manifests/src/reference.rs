//! Model references: `[host[:port]/][namespace/…]name[:tag][@digest]`.
//!
//! - host: the first part, if a `/` follows and it contains `.` or `:` or is `localhost`. Letters,
//!   digits, `.` and `-`, and a port. Default: [`DEFAULT_HOST`].
//! - namespace: zero or more parts of letters, digits, `.`, `_` and `-`, each with at most 80
//!   characters. Default: [`DEFAULT_NAMESPACE`], on the default host only.
//! - name: the same characters as a part of the namespace. It is required.
//! - tag: letters, digits, `.`, `_` and `-`, at most 128 characters. Default: [`DEFAULT_TAG`],
//!   unless there is a digest.
//! - digest: see [`Digest`].
//!
//! No part is empty or begins with `.` or `-`. The complete reference, with the defaults filled in,
//! has at most 350 bytes. Host names are converted to lower case; the other parts keep their case.
//! A reference is therefore always safe in a path and in a URL.
//!
//! Names are compatible with Ollama: `smollm2` is `registry.ollama.ai/library/smollm2:latest`, and
//! is shown as `smollm2:latest`.

use std::fmt;
use std::str::FromStr;

use content::Digest;

use crate::Error;

/// The default host.
pub const DEFAULT_HOST: &str = "registry.ollama.ai";
/// The default namespace, on the default host only.
pub const DEFAULT_NAMESPACE: &str = "library";
/// The default tag.
pub const DEFAULT_TAG: &str = "latest";

const MAX_PART: usize = 80;
const MAX_TAG: usize = 128;
const MAX_REFERENCE: usize = 350;

/// The name of a model, complete and well-formed.
///
/// # Examples
///
/// ```
/// use lode_manifests::ModelRef;
///
/// let reference: ModelRef = "registry.example:5000/team/model:1".parse()?;
/// assert_eq!(reference.host(), "registry.example:5000");
/// assert_eq!(reference.repository(), "team/model");
/// assert_eq!(reference.tag(), Some("1"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelRef {
    host: String,
    repository: String,
    target: Target,
}

/// The part of a reference that selects one model of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// The manifest that the tag names at the moment.
    Tag(String),
    /// The manifest with this digest.
    Digest(Digest),
    /// The manifest with this digest. The tag is informative.
    Pinned(String, Digest),
}

impl ModelRef {
    /// Host name, with the port if there is one.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Namespace and name, with slashes.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag or digest that selects a model of the repository.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The tag, if there is one.
    pub fn tag(&self) -> Option<&str> {
        match &self.target {
            Target::Tag(tag) | Target::Pinned(tag, _) => Some(tag),
            Target::Digest(_) => None,
        }
    }

    /// The digest, if there is one.
    pub fn digest(&self) -> Option<&Digest> {
        match &self.target {
            Target::Digest(digest) | Target::Pinned(_, digest) => Some(digest),
            Target::Tag(_) => None,
        }
    }

    /// `host/repository:tag`, the name of the tag in a store. `None` for a reference by digest
    /// alone.
    pub fn tag_key(&self) -> Option<String> {
        self.tag().map(|tag| format!("{}/{}:{tag}", self.host, self.repository))
    }
}

impl FromStr for ModelRef {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text).map_err(|reason| Error::Reference { name: text.chars().take(100).collect(), reason })
    }
}

fn parse(text: &str) -> Result<ModelRef, String> {
    if text.len() > MAX_REFERENCE {
        return Err(format!("it has {} bytes, {MAX_REFERENCE} at most are allowed", text.len()));
    }
    let text = text.strip_prefix("https://").unwrap_or(text);
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest.parse::<Digest>().map_err(|e| e.to_string())?)),
        None => (text, None),
    };
    let (path, tag) = match rest.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(check_tag(tag)?)),
        _ => (rest, None),
    };
    let (host, repository) = match path.split_once('/') {
        Some((first, more)) if is_host(first) => (check_host(first)?, more),
        _ => (DEFAULT_HOST.to_owned(), path),
    };
    for part in repository.split('/') {
        check_part(part, MAX_PART)?;
    }
    let repository = if host == DEFAULT_HOST && !repository.contains('/') {
        format!("{DEFAULT_NAMESPACE}/{repository}")
    } else {
        repository.to_owned()
    };
    let target = match (tag, digest) {
        (Some(tag), Some(digest)) => Target::Pinned(tag, digest),
        (None, Some(digest)) => Target::Digest(digest),
        (tag, None) => Target::Tag(tag.unwrap_or_else(|| DEFAULT_TAG.to_owned())),
    };
    let reference = ModelRef { host, repository, target };
    let complete = reference.host.len() + 1 + reference.repository.len() + reference.target.to_string().len();
    if complete > MAX_REFERENCE {
        return Err(format!("it has {complete} bytes with all that is left out, {MAX_REFERENCE} at most are allowed"));
    }
    Ok(reference)
}

fn is_host(part: &str) -> bool {
    part.contains(['.', ':']) || part.eq_ignore_ascii_case("localhost")
}

fn check_host(host: &str) -> Result<String, String> {
    let (name, port) = match host.split_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (host, None),
    };
    for label in name.split('.') {
        let fine = !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !fine || label.starts_with('-') || label.ends_with('-') || label.len() > 63 {
            return Err(format!("`{host}` is not a host name"));
        }
    }
    if let Some(port) = port
        && (port.parse::<u16>().is_err() || !port.bytes().all(|b| b.is_ascii_digit()))
    {
        return Err(format!("`{port}` is not a port"));
    }
    Ok(host.to_ascii_lowercase())
}

fn check_part(part: &str, longest: usize) -> Result<(), String> {
    if part.is_empty() {
        return Err("a part of it is empty".to_owned());
    }
    if part.starts_with(['.', '-']) {
        return Err(format!("`{part}` begins with `{}`", &part[..1]));
    }
    if part.len() > longest {
        return Err(format!("a part of it has {} characters, {longest} at most are allowed", part.len()));
    }
    match part.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '_' | '-')) {
        Some(odd) => Err(format!("{odd:?} is not allowed in it")),
        None => Ok(()),
    }
}

fn check_tag(tag: &str) -> Result<String, String> {
    check_part(tag, MAX_TAG)?;
    Ok(tag.to_owned())
}

impl fmt::Display for ModelRef {
    /// Writes the shortest text that parses to the same reference. A tag is always written out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.repository.split_once('/') {
            _ if self.host != DEFAULT_HOST => write!(f, "{}/{}", self.host, self.repository)?,
            Some((DEFAULT_NAMESPACE, name)) if !name.contains('/') => f.write_str(name)?,
            // Without the host, the first part of the path would be parsed as a host.
            Some((first, _)) if is_host(first) => write!(f, "{}/{}", self.host, self.repository)?,
            _ => f.write_str(&self.repository)?,
        }
        write!(f, "{}", self.target)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => write!(f, ":{tag}"),
            Self::Digest(digest) => write!(f, "@{digest}"),
            Self::Pinned(tag, digest) => write!(f, ":{tag}@{digest}"),
        }
    }
}

impl fmt::Debug for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, host: &str, repository: &str, tag: &str, shown: &str) {
        let reference: ModelRef = text.parse().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((reference.host(), reference.repository()), (host, repository), "{text}");
        assert_eq!(reference.tag(), Some(tag), "{text}");
        assert_eq!(reference.to_string(), shown);
        assert_eq!(shown.parse::<ModelRef>().expect("what is shown parses"), reference);
    }

    #[test]
    fn fills_in_defaults() {
        let host = DEFAULT_HOST;
        check("smollm2", host, "library/smollm2", "latest", "smollm2:latest");
        check("smollm2:135m", host, "library/smollm2", "135m", "smollm2:135m");
        check("me/Model:Q4_K_M", host, "me/Model", "Q4_K_M", "me/Model:Q4_K_M");
        check("registry.ollama.ai/library/x", host, "library/x", "latest", "x:latest");
        check("hf.co/u/R-GGUF:Q8_0", "hf.co", "u/R-GGUF", "Q8_0", "hf.co/u/R-GGUF:Q8_0");
        check("localhost:5000/a/b/c:t", "localhost:5000", "a/b/c", "t", "localhost:5000/a/b/c:t");
        check("LOCALHOST/x", "localhost", "x", "latest", "localhost/x:latest");
        check("example.com/x", "example.com", "x", "latest", "example.com/x:latest");
        check("https://example.com/x", "example.com", "x", "latest", "example.com/x:latest");
        check("a.b", host, "library/a.b", "latest", "a.b:latest");
        // Names that would parse differently if the default host or namespace were left out.
        check("registry.ollama.ai/a.b/c:t", host, "a.b/c", "t", "registry.ollama.ai/a.b/c:t");
        check("registry.ollama.ai/localhost/x", host, "localhost/x", "latest", "registry.ollama.ai/localhost/x:latest");
        check("library/a.b/c", host, "library/a.b/c", "latest", "library/a.b/c:latest");
        check("library/x/y:t", host, "library/x/y", "t", "library/x/y:t");
    }

    #[test]
    fn reads_digests() {
        let digest = Digest::of(b"m");
        let by_digest: ModelRef = format!("x@{digest}").parse().expect("by digest");
        assert_eq!((by_digest.tag(), by_digest.digest()), (None, Some(&digest)));
        let pinned: ModelRef = format!("x:t@{digest}").parse().expect("pinned");
        assert_eq!((pinned.tag(), pinned.digest()), (Some("t"), Some(&digest)));
        assert_eq!(pinned.to_string(), format!("x:t@{digest}"));
    }

    #[test]
    fn refuses_hostile_names() {
        let upper = format!("x@{}", Digest::of(b"m").to_string().to_uppercase());
        let long_part = "a".repeat(81);
        let long = vec!["abc"; 100].join("/");
        let long_tag = format!("x:{}", "t".repeat(129));
        for bad in [
            "",
            "/",
            ":",
            "@",
            "a/",
            "/a",
            "a//b",
            "../a",
            "a/../b",
            "./a",
            "a/.",
            "a:",
            "a:..",
            "a:-t",
            "a:.t",
            ":t",
            "a b",
            "a\0b",
            "a\n",
            "é",
            "a\\b",
            "C:\\x",
            "~/x",
            "-a",
            ".a",
            "a:b:c",
            "a@b",
            "a@",
            "x@sha256:00",
            "host.com:99999/a",
            "host.com:/a",
            "host.com:+80/a",
            "-x.com/a",
            "x..com/a",
            "a?b",
            "a#b",
            "a%2e",
            "http://x.com/a",
            &upper,
            &long_part,
            &long,
            &long_tag,
        ] {
            assert!(bad.parse::<ModelRef>().is_err(), "{bad:?} was accepted as {:?}", bad.parse::<ModelRef>());
        }
    }
}
