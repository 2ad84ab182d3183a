//! The paths of the protocol. Repository names contain slashes, so paths are parsed from their end.

use axum::http::Uri;

use super::refusal::ErrorReply;
use super::storage::{Reference, Repository};
use crate::{ErrorCode, RepositoryName};

/// The meaning of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// `/v2/`
    Base,
    /// `/v2/_catalog`
    Catalog,
    /// An object of a repository.
    In(Repository, Object),
}

/// An object of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Object {
    /// `blobs/DIGEST`; the text is not checked yet.
    Blob(String),
    /// `blobs/uploads/`
    Uploads,
    /// `blobs/uploads/ID`
    Upload(String),
    /// `manifests/REFERENCE`
    Manifest(Reference),
    /// `tags/list`
    Tags,
    /// `referrers/DIGEST`; the text is not checked yet.
    Referrers(String),
}

/// Parses the path; `None` if the protocol does not define it.
pub(super) fn parse(uri: &Uri) -> Result<Option<Route>, ErrorReply> {
    let Some(rest) = uri.path().strip_prefix("/v2") else { return Ok(None) };
    let decoded = rest.trim_start_matches('/').split('/').map(decode).collect::<Option<Vec<String>>>();
    let Some(parts) = decoded else {
        return Err(ErrorReply::new(ErrorCode::NameInvalid, "the path is not UTF-8"));
    };
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let (name, object) = match parts.as_slice() {
        [""] => return Ok(Some(Route::Base)),
        ["_catalog"] => return Ok(Some(Route::Catalog)),
        [name @ .., "blobs", "uploads"] | [name @ .., "blobs", "uploads", ""] => (name, Object::Uploads),
        [name @ .., "blobs", "uploads", id] => (name, Object::Upload((*id).to_owned())),
        [name @ .., "blobs", digest] => (name, Object::Blob((*digest).to_owned())),
        [name @ .., "tags", "list"] => (name, Object::Tags),
        [name @ .., "referrers", digest] => (name, Object::Referrers((*digest).to_owned())),
        [name @ .., "manifests", reference] => {
            let code = if reference.contains(':') { ErrorCode::DigestInvalid } else { ErrorCode::ManifestInvalid };
            let reference = Reference::parse(reference).map_err(|reason| ErrorReply::new(code, reason))?;
            (name, Object::Manifest(reference))
        }
        _ => return Ok(None),
    };
    // Each part is checked on its own: an escaped slash does not separate parts of the path.
    let text = if name.iter().any(|part| part.contains('/')) { "%2f".to_owned() } else { name.join("/") };
    let name = RepositoryName::parse(&text).map_err(|reason| ErrorReply::new(ErrorCode::NameInvalid, reason))?;
    let namespace = query(uri, "ns").next().filter(|host| !host.is_empty());
    let host = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':');
    if namespace
        .as_deref()
        .is_some_and(|text| text.len() > 255 || text.starts_with(['.', ':']) || !text.bytes().all(host))
    {
        return Err(ErrorReply::new(ErrorCode::NameInvalid, "the query parameter `ns` is not a host name"));
    }
    Ok(Some(Route::In(Repository { name, namespace, mirrored: false }, object)))
}

/// The values of a query parameter.
pub(super) fn query<'a>(uri: &'a Uri, name: &'a str) -> impl Iterator<Item = String> + 'a {
    uri.query().unwrap_or_default().split('&').filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if key == name { decode(value) } else { None }
    })
}

/// Decodes percent-encoding; `None` if the result is not UTF-8. A malformed escape stays unchanged.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let escaped = (*first == b'%').then(|| more.get(..2)).flatten();
        let value = escaped.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(value.unwrap_or(*first));
        rest = if value.is_some() { &more[2..] } else { more };
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(path: &str) -> Option<Route> {
        parse(&path.parse::<Uri>().expect(path)).ok().flatten()
    }

    fn object(path: &str) -> (String, Object) {
        match route(path) {
            Some(Route::In(repository, object)) => (repository.to_string(), object),
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn reads_paths() {
        assert_eq!(route("/v2"), Some(Route::Base));
        assert_eq!(route("/v2/"), Some(Route::Base));
        assert_eq!(route("/v2/_catalog?n=5"), Some(Route::Catalog));
        assert_eq!(object("/v2/a/b/tags/list"), ("a/b".to_owned(), Object::Tags));
        assert_eq!(object("/v2/a/blobs/uploads/"), ("a".to_owned(), Object::Uploads));
        assert_eq!(object("/v2/a/blobs/uploads"), ("a".to_owned(), Object::Uploads));
        assert_eq!(object("/v2/a/blobs/uploads/x?ns=hf.co"), ("hf.co/a".to_owned(), Object::Upload("x".to_owned())));
        assert_eq!(object("/v2/a/blobs/sha256%3Aab"), ("a".to_owned(), Object::Blob("sha256:ab".to_owned())));
        let tag = Reference::Tag("latest".to_owned());
        assert_eq!(object("/v2/blobs/uploads/manifests/latest"), ("blobs/uploads".to_owned(), Object::Manifest(tag)));
    }

    #[test]
    fn refuses_hostile_paths() {
        for path in [
            "/v2/../etc/manifests/x",
            "/v2/a%2fb/manifests/x",
            "/v2/a/%2e%2e/b/manifests/x",
            "/v2/a/manifests/..",
            "/v2/a/manifests/%2e%2e",
            "/v2/a//b/manifests/x",
            "/v2/manifests/x",
            "/v2/a%00/manifests/x",
            "/v2/a/manifests/sha256:xyz",
            "/v2/a/manifests/md5:d41d8cd98f00b204e9800998ecf8427e",
            "/v2/%ff/manifests/x",
        ] {
            assert!(parse(&path.parse::<Uri>().expect(path)).is_err(), "{path} was accepted");
        }
        assert_eq!(route("/v2/a/nothing"), None);
    }

    #[test]
    fn reads_queries() {
        let uri: Uri = "/v2/?a=1&b=x%2Fy&a=%zz&c".parse().expect("a URI");
        assert_eq!(query(&uri, "a").collect::<Vec<_>>(), ["1", "%zz"]);
        assert_eq!(query(&uri, "b").next().as_deref(), Some("x/y"));
        assert_eq!(query(&uri, "c").next().as_deref(), Some(""));
        assert_eq!(query(&uri, "d").next(), None);
    }
}
