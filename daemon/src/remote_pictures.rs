//! Pictures of requests that are URLs: they are fetched if the settings allow it.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::daemon::Daemon;
use crate::error::Failed;

/// Largest number of bytes of a picture, and of all pictures of a request together.
const LARGEST: u64 = 32 << 20;
const TOGETHER: u64 = 48 << 20;

/// Replaces the URLs among the pictures of a request by their contents.
///
/// # Errors
/// 400 if pictures are not fetched here, or one of them cannot be fetched; the text is the reason.
pub(crate) async fn fetched(daemon: &Daemon, pictures: Vec<String>) -> Result<Vec<String>, Failed> {
    let mut left = TOGETHER;
    let mut all = Vec::with_capacity(pictures.len());
    for picture in pictures {
        if !api::is_remote_picture(&picture) {
            all.push(picture);
            continue;
        }
        let Some(allowed) = &daemon.settings.fetched_images else {
            return Err(Failed::bad_request(api::picture_not_fetched(&picture)));
        };
        let bytes = transfer::fetch_picture(&picture, left.min(LARGEST), allowed).await;
        let bytes = bytes.map_err(|error| Failed::bad_request(error.with_causes()))?;
        left -= bytes.len() as u64;
        all.push(BASE64_STANDARD.encode(bytes));
    }
    Ok(all)
}
