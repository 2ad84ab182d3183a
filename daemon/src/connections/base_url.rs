//! Paths of clients whose base URL ends in another way than they expect.
//!
//! Clients put the path of a call behind a base URL from their settings. Where that ends in `/v1` already, they ask for
//! `/v1/v1/messages`; where it ends in `/`, for `//api/chat`; some end every path in `/`. Each of these paths has one meaning, so the daemon answers it.
//! The registry's paths and the page's are taken as they are: names in them are the user's.

use axum::http::Uri;
use axum::http::uri::PathAndQuery;

/// The URI that is meant, where it is another.
pub(super) fn corrected(uri: &Uri) -> Option<Uri> {
    let path = uri.path();
    let meant = meant(path).filter(|meant| meant != path)?;
    let text = uri.query().map_or_else(|| meant.clone(), |query| format!("{meant}?{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(text.parse::<PathAndQuery>().ok()?);
    Uri::from_parts(parts).ok()
}

/// A path of the APIs as it is served; none for other paths.
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
            // Ollama's API below a base URL that ends in `/v1`.
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
