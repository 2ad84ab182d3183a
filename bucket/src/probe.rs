//! Checks at the start: whether a storage has the properties that the registry relies on.

use bytes::Bytes;

use crate::location::Location;
use crate::objects::{Objects, Version};
use crate::{Bucket, Error, keys};

/// The folder of the probes.
const PROBES: &str = "probes";

impl Bucket {
    /// Checks that the storage can be read and written, and that it refuses writes whose condition
    /// does not hold. Without that, two replicas would overwrite each other's changes.
    ///
    /// # Errors
    /// The storage cannot be reached, refuses the credentials, or ignores conditions.
    pub async fn probe(&self, location: &Location) -> Result<(), Error> {
        let key = format!("{PROBES}/{}", keys::random());
        let probed = conditions(&self.objects, &key).await;
        let deleted = self.objects.delete(&key).await;
        match probed? {
            None => deleted,
            Some(reason) => Err(Error::Unusable { storage: location.to_string(), reason: reason.to_owned() }),
        }
    }

    /// Checks that the storage answers.
    ///
    /// # Errors
    /// It does not.
    pub async fn ready(&self) -> Result<(), Error> {
        self.objects.exists(PROBES).await.map(drop)
    }
}

/// Returns the property that is missing.
async fn conditions(objects: &Objects, key: &str) -> Result<Option<&'static str>, Error> {
    let write = async |version: Option<&Version>, text| objects.swap(key, version, Bytes::from_static(text)).await;
    let ignored = "it ignores the condition of a write (`If-None-Match`, `If-Match`), so replicas would overwrite \
                   each other's changes; use a storage or version with conditional writes";
    let Some(first) = write(None, b"first").await? else {
        return Ok(Some("a new object is reported as existing"));
    };
    if write(None, b"second").await?.is_some() {
        return Ok(Some(ignored));
    }
    let Some(second) = write(Some(&first), b"third").await? else {
        return Ok(Some("it refuses a write with the version that the object has"));
    };
    if first == second || write(Some(&first), b"fourth").await?.is_some() {
        return Ok(Some(ignored));
    }
    Ok(None)
}
