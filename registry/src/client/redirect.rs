//! Redirects: their targets, and whether to follow them.

use reqwest::header::LOCATION;
use reqwest::{Method, Response, StatusCode, Url};

use super::RedirectPolicy;

/// Maximum number of consecutive redirects.
pub(super) const MOST: usize = 5;

/// Whether two URLs have the same scheme, host and port. `Authorization` is not sent to another
/// origin.
pub(super) fn same_origin(one: &Url, other: &Url) -> bool {
    one.origin() == other.origin()
}

/// The target of a redirect of a request with `method`; `None` if `response` is not a redirect.
///
/// After 301, 302 and 303 only `GET` and `HEAD` are repeated; 307 and 308 repeat any request.
///
/// # Errors
/// Why the redirect must not be followed, as the end of a sentence.
pub(super) fn target(
    redirect_policy: &RedirectPolicy,
    method: &Method,
    response: &Response,
) -> Result<Option<Url>, String> {
    let reads = matches!(*method, Method::GET | Method::HEAD);
    let follows = match response.status() {
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER => reads,
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => true,
        _ => false,
    };
    if !follows {
        return Ok(None);
    }
    let location = response.headers().get(LOCATION).ok_or("it does not say where")?;
    let location = location.to_str().map_err(|_| "the place is not text")?;
    let mut url = response.url().join(location).map_err(|_| "the place is not a URL")?;
    redirect_policy.check_step(response.url(), &url)?;
    // User information in the URL would become an `Authorization` header by accident.
    if url.set_username("").is_err() || url.set_password(None).is_err() {
        return Err("the place is not a URL".to_owned());
    }
    Ok(Some(url))
}
