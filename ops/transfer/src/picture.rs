//! Pictures at URLs that requests name.

use std::time::Duration;

use bytes::Bytes;
use content::bail;
use content::operation::{Context, Result};

use crate::http_file::Endpoint;

/// How long a picture may take, with redirects and repeated attempts.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Fetches a picture of at most `most` bytes from an https URL. The server and the
/// targets of its redirects must be on the Internet, or among the hosts `allowed`.
///
/// # Errors
/// The URL is not allowed, the server cannot be reached or takes too long, or the answer is too
/// long.
pub async fn fetch_picture(url: &str, most: u64, allowed: &[String]) -> Result<Bytes> {
    let fetch = async {
        let endpoint = Endpoint::of_named_url(url, allowed)?;
        endpoint.document(url, most).await
    };
    match tokio::time::timeout(TIMEOUT, fetch).await {
        Ok(fetched) => fetched.context("a picture cannot be fetched"),
        Err(_) => bail!("a picture cannot be fetched: its server took more than {} seconds", TIMEOUT.as_secs()),
    }
}
