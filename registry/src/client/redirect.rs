//! Where an answer sends us, and whether we go.

use reqwest::header::LOCATION;
use reqwest::{Method, Response, StatusCode, Url};

use super::Border;

/// How many redirects are followed in a row.
pub(super) const MOST: usize = 5;

/// Whether two URLs have the same scheme, host and port: the border that `Authorization` does not cross.
pub(super) fn same_origin(one: &Url, other: &Url) -> bool {
    one.origin() == other.origin()
}

/// Where `response` sends a request made with `method`; `None` where it is an answer.
///
/// Only what may be read again is sent again after 301, 302 and 303; 307 and 308 repeat any request.
///
/// # Errors
/// Why a place may not be gone to, as the end of a sentence.
pub(super) fn target(border: &Border, method: &Method, response: &Response) -> Result<Option<Url>, String> {
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
    border.check_step(response.url(), &url)?;
    // It would become an `Authorization` that nobody meant to send.
    if url.set_username("").is_err() || url.set_password(None).is_err() {
        return Err("the place is not a URL".to_owned());
    }
    Ok(Some(url))
}
