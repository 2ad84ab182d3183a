//! The web page: its HTML at `/` for browsers and at `/ui/…`, its files at `/ui/files/VERSION/…`.
//!
//! Browsers revalidate the HTML at every visit. It names the files by their version, so browsers
//! may cache the files forever. Access needs no key, because the files are the same in every copy
//! of this program. The page's calls of the API need the usual permissions.

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use registry::server::names_tag;

use crate::error::Failed;

/// Headers of every response with a part of the page.
const ALWAYS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, web::POLICY),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Returns the HTML; it is the same for all views.
pub(crate) async fn page(headers: HeaderMap) -> Response {
    let tag = format!("\"{}\"", web::VERSION);
    let asked = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let known = names_tag(asked, &tag);
    let mut response = if known { StatusCode::NOT_MODIFIED.into_response() } else { sent(web::page(), &headers) };
    // A weak tag, because it is the same for plain and compressed bytes.
    let tag = HeaderValue::from_str(&format!("W/{tag}")).expect("invariant: a version is hexadecimal digits");
    response.headers_mut().insert(header::ETAG, tag);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    with_headers(response)
}

/// Returns a file of the page.
pub(crate) async fn file(
    Path((version, path)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let Some(file) = web::file(&version, &path) else {
        let message = format!("the page has no file `{path}` in version `{version}`; reload the page");
        return Err(Failed::new(StatusCode::NOT_FOUND, message));
    };
    let mut response = sent(file, &headers);
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    response.headers_mut().insert(header::CACHE_CONTROL, forever);
    Ok(with_headers(response))
}

fn sent(file: web::File, headers: &HeaderMap) -> Response {
    let mut response = if takes_gzip(headers) {
        ([(header::CONTENT_ENCODING, "gzip")], file.compressed).into_response()
    } else {
        file.plain().into_response()
    };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(file.media));
    response
}

fn with_headers(mut response: Response) -> Response {
    for (name, value) in ALWAYS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response.headers_mut().append(header::VARY, HeaderValue::from_static("accept-encoding"));
    response
}

/// Whether the client accepts gzip. An entry for `gzip` itself takes precedence over `*`.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let offered = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let codings: Vec<(&str, bool)> = offered
        .flat_map(|value| value.split(','))
        .map(|coding| {
            let mut parts = coding.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            (name, !parts.any(|part| matches!(part.strip_prefix("q="), Some(q) if q.parse() == Ok(0.0_f32))))
        })
        .collect();
    let said_of = |wanted: &str| {
        codings.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, is_taken)| *is_taken)
    };
    said_of("gzip").or_else(|| said_of("*")).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_gzip_says_so() {
        for (offered, expect) in [
            ("gzip, deflate, br", true),
            ("br;q=1.0, gzip;q=0.8, *;q=0.1", true),
            ("gzip;q=0", false),
            ("gzip;q=0, *", false),
            ("*;q=0, gzip", true),
            ("identity", false),
            ("*", true),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(offered))]);
            assert_eq!(takes_gzip(&headers), expect, "{offered}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }
}
