//! Limits on unfinished uploads of one client, so that abandoned uploads cannot fill the disk.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use content::IngestId;

use super::refusal::ErrorReply;
use super::sync::{Mutex, MutexGuard, PoisonError};
use crate::ErrorCode;

/// Maximum number of unfinished uploads of one address. A client that pushes has a few at a time.
const MOST: usize = 512;
/// Maximum number of bytes of the unfinished uploads of one address.
const MOST_BYTES: u64 = 256 << 30;
/// How long an abandoned upload counts. Collections remove its file.
const FORGOTTEN: Duration = Duration::from_hours(1);

/// Unfinished uploads, with the addresses of their clients.
#[derive(Debug)]
pub(super) struct Quota {
    uploads: Mutex<HashMap<IngestId, Unfinished>>,
    scope: UploadScope,
}

/// The processes that take the requests of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadScope {
    /// This process takes all of them, and limits the uploads of a client.
    Process,
    /// Other processes take some of them. None of them knows when an upload ends, so uploads are
    /// not limited.
    Replicas,
}

#[derive(Debug)]
struct Unfinished {
    /// The address of the client; `None` if it is unknown.
    peer: Option<IpAddr>,
    bytes: u64,
    last: Instant,
}

impl Unfinished {
    fn of(peer: Option<IpAddr>) -> Self {
        Self { peer, bytes: 0, last: Instant::now() }
    }
}

/// The address that a client's uploads are counted for. An IPv6 /64 network counts as one client.
pub(super) fn share_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

impl Quota {
    pub(super) fn new(scope: UploadScope) -> Self {
        Self { uploads: Mutex::default(), scope }
    }

    /// Counts a new upload.
    ///
    /// # Errors
    /// 429 if `peer` has too many uploads.
    pub(super) fn begin(&self, id: &IngestId, peer: Option<IpAddr>) -> Result<(), ErrorReply> {
        if self.scope == UploadScope::Replicas {
            return Ok(());
        }
        let mut unfinished = self.lock();
        unfinished.retain(|_, upload| upload.last.elapsed() < FORGOTTEN);
        let has = unfinished.values().filter(|upload| upload.peer == peer).count();
        if peer.is_some() && has >= MOST {
            return Err(refused(&format!("{has} uploads from this address are unfinished, {MOST} may be")));
        }
        unfinished.insert(id.clone(), Unfinished::of(peer));
        Ok(())
    }

    /// Counts bytes that `peer` sends for an upload. The upload counts for its latest sender.
    ///
    /// # Errors
    /// 429 if the uploads of `peer` would have too many bytes.
    pub(super) fn take(&self, id: &IngestId, peer: Option<IpAddr>, bytes: u64) -> Result<(), ErrorReply> {
        if self.scope == UploadScope::Replicas {
            return Ok(());
        }
        let mut unfinished = self.lock();
        let theirs = unfinished.values().filter(|upload| upload.peer == peer).map(|upload| upload.bytes);
        if peer.is_some() && theirs.fold(bytes, u64::saturating_add) > MOST_BYTES {
            let reason = format!("the unfinished uploads from this address have more than {} GiB", MOST_BYTES >> 30);
            return Err(refused(&reason));
        }
        let upload = unfinished.entry(id.clone()).or_insert_with(|| Unfinished::of(peer));
        (upload.peer, upload.last) = (peer, Instant::now());
        upload.bytes = upload.bytes.saturating_add(bytes);
        Ok(())
    }

    /// Forgets an upload that was committed or cancelled.
    pub(super) fn end(&self, id: &IngestId) {
        self.lock().remove(id);
    }

    #[cfg(all(test, feature = "schedules"))]
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IngestId, Unfinished>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn refused(reason: &str) -> ErrorReply {
    ErrorReply::new(ErrorCode::TooManyRequests, format!("{reason}; finish or cancel some"))
}

#[cfg(all(test, not(feature = "schedules")))]
mod tests {
    use super::*;

    fn id(number: usize) -> IngestId {
        IngestId::parse(&format!("upload-{number}")).expect("an id")
    }

    #[test]
    fn one_address_has_a_bounded_share() {
        let quota = Quota::new(UploadScope::Process);
        let [near, same] = ["2001:db8::1", "2001:db8::ffff:2"].map(|text| share_of(text.parse().expect("an address")));
        assert_eq!(near, same);
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse::<IpAddr>().ok());
        for number in 0..MOST {
            quota.begin(&id(number), one).expect("there is room");
        }
        assert!(quota.begin(&id(MOST), one).is_err());
        quota.begin(&id(MOST), other).expect("another has a share of its own");
        quota.end(&id(0));
        quota.begin(&id(0), one).expect("one was finished");
        quota.take(&id(1), one, MOST_BYTES - 1).expect("there is room");
        quota.take(&id(2), one, 1).expect("there is room");
        assert!(quota.take(&id(3), one, 1).is_err());
        quota.take(&id(MOST), other, MOST_BYTES).expect("another has a share of its own");
        assert!(quota.take(&id(MOST + 1), one, 1).is_err(), "whoever goes on with one has it");
        quota.end(&id(1));
        quota.take(&id(3), one, 1).expect("one was finished");
    }
}
