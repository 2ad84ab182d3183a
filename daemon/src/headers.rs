//! Response headers about the model and the prompt, shared by all APIs.

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use content::Digest;

/// The digest of the manifest of the model that answered.
const MODEL_DIGEST: HeaderName = HeaderName::from_static("x-lode-model-digest");
/// Number of prompt tokens that were dropped because they did not fit. Only in complete responses,
/// and only if it is not zero; streams report it in their last document.
const TRUNCATED_TOKENS: HeaderName = HeaderName::from_static("x-lode-truncated-tokens");

/// Requested features that the model or the daemon lacks and that were ignored: `option NAME`,
/// `thinking`, `tool TYPE`.
const IGNORED: HeaderName = HeaderName::from_static("x-lode-ignored");

/// Maximal number of listed features. Clients choose the names, and proxies may refuse long
/// headers.
const MOST_IGNORED: usize = 16;
/// Maximal length of a listed name, in characters.
const LONGEST_NAME: usize = 64;

/// Shortens the list of ignored features: the first ones, and the number of further ones.
pub(crate) fn listed(ignored: Vec<String>) -> Vec<String> {
    let count = ignored.len();
    let cut = |name: String| match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name,
    };
    let mut listed: Vec<String> = ignored.into_iter().take(MOST_IGNORED).map(cut).collect();
    if count > MOST_IGNORED {
        listed.push(format!("{} more", count - MOST_IGNORED));
    }
    listed
}

/// Adds the list of ignored features to a response. Names that are invalid in a header are left
/// out.
pub(crate) fn with_ignored(mut response: Response, ignored: &[String]) -> Response {
    let names: Vec<&str> =
        ignored.iter().map(String::as_str).filter(|name| HeaderValue::from_str(name).is_ok()).collect();
    if names.is_empty() {
        return response;
    }
    if let Ok(value) = HeaderValue::from_str(&names.join(", ")) {
        response.headers_mut().insert(IGNORED, value);
    }
    response
}

/// Adds the digest of the model to a response.
pub(crate) fn attested(mut response: Response, model: &Digest) -> Response {
    // A digest is always a valid header value; without the header the response would still be
    // correct.
    if let Ok(value) = HeaderValue::from_str(&model.to_string()) {
        response.headers_mut().insert(MODEL_DIGEST, value);
    }
    response
}

/// Adds the number of dropped prompt tokens to a response.
pub(crate) fn truncated(mut response: Response, tokens: u64) -> Response {
    if tokens > 0 {
        response.headers_mut().insert(TRUNCATED_TOKENS, tokens.into());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_ignored_features_are_listed() {
        let names: Vec<String> = (0..50_000).map(|number| format!("option {number}")).collect();
        let listed = listed(names);
        assert_eq!((listed.len(), listed[16].as_str()), (17, "49984 more"));
        assert_eq!(super::listed(vec!["x".repeat(100)]), [format!("{}…", "x".repeat(64))]);
    }
}
