//! What the headers of an answer tell of the model and the prompt, whatever the dialect.

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use content::Digest;

/// Which model answered: the digest of its manifest.
const MODEL_DIGEST: HeaderName = HeaderName::from_static("x-lode-model-digest");
/// How many of the prompt's tokens were dropped because they did not fit. Only where there are any, and only in answers
/// that are sent when all is known; streams tell it in their last document.
const TRUNCATED_TOKENS: HeaderName = HeaderName::from_static("x-lode-truncated-tokens");

/// Features that the request asks for, that the model or the daemon does not have, and that were ignored: `option NAME`,
/// `thinking`, `tool TYPE`.
const IGNORED: HeaderName = HeaderName::from_static("x-lode-ignored");

/// The most ignored features that are listed: clients choose the names, and servers between may refuse long headers.
const MOST_IGNORED: usize = 16;
/// The longest name of one that is listed, in bytes.
const LONGEST_NAME: usize = 64;

/// Ignored features as they are listed: the first of them, and how many more there are.
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

/// An answer that lists the ignored features of the request. Names that a header cannot carry are left out.
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

/// An answer that names the model.
pub(crate) fn attested(mut response: Response, model: &Digest) -> Response {
    // A digest is text that a header can carry; were it not, the answer is still right.
    if let Ok(value) = HeaderValue::from_str(&model.to_string()) {
        response.headers_mut().insert(MODEL_DIGEST, value);
    }
    response
}

/// An answer that says how many tokens of its prompt were dropped.
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
