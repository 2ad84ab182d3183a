//! Pictures of requests that are URLs: they are fetched if the settings allow it.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use protocol::limits::PICTURES;
use tokio::sync::Semaphore;

use crate::daemon::Daemon;
use crate::error::Failed;

/// Largest number of bytes of a picture, and of all fetched pictures of a request together.
const LARGEST: u64 = 32 << 20;
const TOGETHER: u64 = 48 << 20;
/// How long all fetches of a request may take together.
const TIMEOUT: Duration = Duration::from_mins(1);
/// Number of requests whose pictures are fetched at the same time, which bounds the memory.
const REQUESTS: usize = 2;

/// Places of requests whose pictures are fetched.
static PLACES: Semaphore = Semaphore::const_new(REQUESTS);

/// Replaces the URLs among the pictures of a request by their contents.
///
/// # Errors
/// 400 if pictures are not fetched here, there are too many, or one of them cannot be fetched; the
/// text is the reason.
pub(crate) async fn fetched(daemon: &Daemon, pictures: Vec<String>) -> Result<Vec<String>, Failed> {
    let Some(first) = pictures.iter().find(|picture| api::is_remote_picture(picture)) else { return Ok(pictures) };
    let Some(allowed) = &daemon.settings.fetched_images else {
        return Err(Failed::bad_request(api::picture_not_fetched(first)));
    };
    if pictures.len() > PICTURES {
        let count = pictures.len();
        return Err(Failed::bad_request(format!("the request has {count} pictures, expected at most {PICTURES}")));
    }
    let fetch = async {
        let _place = PLACES.acquire().await.map_err(|_| Failed::bad_request("pictures are not fetched any more"))?;
        fetch_all(pictures, allowed).await
    };
    let seconds = TIMEOUT.as_secs();
    let late =
        |_| Failed::bad_request(format!("the pictures of the request cannot be fetched within {seconds} seconds"));
    tokio::time::timeout(TIMEOUT, fetch).await.map_err(late)?
}

async fn fetch_all(pictures: Vec<String>, allowed: &[String]) -> Result<Vec<String>, Failed> {
    let mut left = TOGETHER;
    let mut all = Vec::with_capacity(pictures.len());
    for picture in pictures {
        if !api::is_remote_picture(&picture) {
            all.push(picture);
            continue;
        }
        if left == 0 {
            let most = TOGETHER >> 20;
            return Err(Failed::bad_request(format!("the fetched pictures of the request have more than {most} MiB")));
        }
        let bytes = transfer::fetch_picture(&picture, left.min(LARGEST), allowed).await;
        let bytes = bytes.map_err(|error| Failed::bad_request(error.with_causes()))?;
        left -= bytes.len() as u64;
        all.push(BASE64_STANDARD.encode(bytes));
    }
    Ok(all)
}
