//! `LODE_PEERS`: daemons that pulls ask for blobs first.

use anyhow::{Result, bail};

use super::DEFAULT_PORT;

/// Parses hosts with commas between them into base URLs. A host without a port has the port of a
/// daemon; `https://` asks for TLS.
///
/// # Errors
/// The text has an item that is not a host.
pub(super) fn peers(text: &str) -> Result<Vec<String>> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(url).collect()
}

fn url(item: &str) -> Result<String> {
    let (scheme, host) = item.split_once("://").unwrap_or(("http", item));
    let written = format!("{scheme}://{host}");
    let parsed = reqwest::Url::parse(&written).ok().filter(|url| {
        ["http", "https"].contains(&url.scheme())
            && url.path() == "/"
            && url.username().is_empty()
            && !host.ends_with('/')
    });
    let Some(parsed) = parsed else {
        // The text may contain a password.
        let shown = item.rsplit('@').next().unwrap_or_default();
        bail!("`{shown}` is not a host; expected e.g. gpu1,10.0.0.5:11434,https://models.example:443");
    };
    // The parser leaves out the default port of a scheme.
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(match parsed.port() {
        None if !has_port => format!("{written}:{DEFAULT_PORT}"),
        _ => written,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_a_port() {
        let expect = [
            "http://gpu1:11434",
            "http://10.0.0.5:80",
            "https://models.example:443",
            "http://[fd00::1]:11434",
            "http://[fd00::1]:5",
        ];
        let parsed = peers("gpu1, 10.0.0.5:80,https://models.example:443,[fd00::1],[fd00::1]:5,");
        assert_eq!(parsed.expect("hosts"), expect);
        assert!(peers("").expect("nothing").is_empty());
        for text in ["a b", "ftp://x", "http://x/path", "me:secret@x", "x:99999"] {
            let error = peers(text).expect_err(text).to_string();
            assert!(error.contains("is not a host") && !error.contains("secret"), "{error}");
        }
    }
}
