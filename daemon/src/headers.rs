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
