//! The last failure of the tier: many waiting requests fail with it, instead of each waiting for
//! its own retries.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use content::Error;
use content::operation::{Classified, ErrorClass, RemoteClass};

/// How long a failure is remembered.
const REMEMBERED: Duration = Duration::from_secs(1);

/// The last failure, if it is recent.
#[derive(Debug, Default)]
pub(crate) struct RecentFailure(Mutex<Option<(Instant, RemoteClass, String)>>);

impl RecentFailure {
    /// Remembers a failure of the tier itself. Others, such as those of the disk, are not.
    pub(crate) fn remember(&self, error: &Error) {
        if let ErrorClass::Remote(class @ (RemoteClass::Unreachable | RemoteClass::NoAccess)) = error.class() {
            let failure = (Instant::now(), class, error.to_string());
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        }
    }

    /// Returns the failure, if it is recent.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((time, class, text)) if time.elapsed() < REMEMBERED => {
                Err(Error::Remote { class: *class, source: text.clone().into() })
            }
            _ => Ok(()),
        }
    }
}
