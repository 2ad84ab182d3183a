//! Corrects paths of clients whose base URL has another ending than they expect.
//!
//! Clients append the path of a call to a base URL from their settings. If that ends in `/v1`
//! already, they request `/v1/v1/messages`; if it ends in `/`, they request `//api/chat`; some end
//! every path in `/`. Each of these paths has one meaning, so the daemon serves it. Paths of the
//! registry and of the web page stay unchanged, because they contain names that users chose.

use axum::http::Uri;
use axum::http::uri::PathAndQuery;

/// Returns the corrected URI if it differs.
pub(super) fn corrected(uri: &Uri) -> Option<Uri> {
    let path = uri.path();
    let meant = meant(path).filter(|meant| meant != path)?;
    let text = uri.query().map_or_else(|| meant.clone(), |query| format!("{meant}?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(text.parse::<PathAndQuery>().ok()?);
    Uri::from_parts(parts).ok()
}

/// Returns the canonical form of an API path; `None` for other paths.
fn meant(path: &str) -> Option<String> {
    let rest = path.trim_start_matches('/').trim_end_matches('/');
    let (first, _) = rest.split_once('/')?;
    let rest = match first {
        "api" => rest,
        "v1" => {
            let mut rest = rest;
            while let Some(again) = rest.strip_prefix("v1/").filter(|again| again.starts_with("v1/")) {
                rest = again;
            }
            // A path of Ollama's API below a base URL that ends in `/v1`.
            rest.strip_prefix("v1/").filter(|again| again.starts_with("api/")).unwrap_or(rest)
        }
        _ => return None,
    };
    Some(format!("/{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_meant() {
        for (asked, expect) in [
            ("/v1/v1/messages?beta=true", "/v1/messages?beta=true"),
            ("/v1/v1/v1/models", "/v1/models"),
            ("/v1/chat/completions/", "/v1/chat/completions"),
            ("//v1/models", "/v1/models"),
            ("/api/tags/", "/api/tags"),
            ("//api/chat", "/api/chat"),
            ("/v1/api/tags", "/api/tags"),
        ] {
            let corrected = corrected(&asked.parse().expect("a URI")).map(|uri| uri.to_string());
            assert_eq!(corrected.as_deref(), Some(expect), "{asked}");
        }
        for plain in ["/", "/api/chat", "/v1/models", "/v2/", "/v2/v1/blobs/", "/ui/", "/api", "/v1"] {
            assert_eq!(corrected(&plain.parse().expect("a URI")), None, "{plain}");
        }
    }
}
