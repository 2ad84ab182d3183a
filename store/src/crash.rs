//! Points at which a test can kill the process.
//!
//! They are always compiled in, so that tests run the shipped code. A point that is not requested
//! costs one comparison.

/// A step of committing a blob, setting a tag or moving a blob, named after the action that has
/// just finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// Some bytes were written to an ingest.
    Written,
    /// The data of an ingest is on disk.
    Synced,
    /// Size and digest were checked.
    Verified,
    /// The data was renamed to its digest.
    Renamed,
    /// The folder that contains the blob was synced.
    DirectorySynced,
    /// The entry of a blob that lies in other files was renamed, but its folder is not yet synced.
    EntryRenamed,
    /// A tag was written to its temporary file, but not renamed.
    TagWritten,
    /// A tag was renamed, but its folder is not yet synced.
    TagRenamed,
    /// The tier has stored a blob, and there is no entry for it yet.
    TierPut,
    /// The tier has a blob, and the entry for it was written.
    TierRecorded,
    /// A blob that the tier has was removed from the disk.
    TierLeft,
    /// A collection has released a blob from the tier.
    TierReleased,
}

impl CrashPoint {
    /// The points that a create passes, in their order.
    pub const CREATE: [Self; 7] = [
        Self::Written,
        Self::Synced,
        Self::Verified,
        Self::Renamed,
        Self::DirectorySynced,
        Self::TagWritten,
        Self::TagRenamed,
    ];

    /// The points that an adoption passes in place of those of a commit.
    pub const ADOPT: [Self; 1] = [Self::EntryRenamed];

    /// The points that moves to a tier, and collections of blobs there, pass.
    pub const TIER: [Self; 4] = [Self::TierPut, Self::TierRecorded, Self::TierLeft, Self::TierReleased];

    /// The name that a test uses to request the point.
    pub fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Synced => "synced",
            Self::Verified => "verified",
            Self::Renamed => "renamed",
            Self::DirectorySynced => "directory-synced",
            Self::EntryRenamed => "entry-renamed",
            Self::TagWritten => "tag-written",
            Self::TagRenamed => "tag-renamed",
            Self::TierPut => "tier-put",
            Self::TierRecorded => "tier-recorded",
            Self::TierLeft => "tier-left",
            Self::TierReleased => "tier-released",
        }
    }

    /// The point with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::CREATE.into_iter().chain(Self::ADOPT).chain(Self::TIER).find(|point| point.name() == name)
    }
}

/// Ends the process like `kill -9`: no destructor runs and no buffer is flushed.
pub(crate) fn kill() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // Not reached if the signal works; aborting is the closest alternative.
    std::process::abort()
}
