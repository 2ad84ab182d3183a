//! The key that signs the registry's tokens and links, which all replicas share.

use bytes::Bytes;

use crate::{Bucket, Error};

const KEY: &str = "keys/token";

impl Bucket {
    /// Returns the key; the first replica makes it. `new` is a random key.
    ///
    /// # Errors
    /// The storage fails.
    pub async fn token_key(&self, new: &[u8]) -> Result<Bytes, Error> {
        let new = Bytes::copy_from_slice(new);
        if self.objects.swap(KEY, None, new.clone()).await?.is_some() {
            return Ok(new);
        }
        let kept = self.objects.get(KEY).await?;
        kept.map(|object| object.bytes).ok_or_else(|| Error::Contended { key: KEY.to_owned() })
    }
}
