//! Points at which a test may have the process killed.
//!
//! They are compiled in always: what is tested is what runs. Where none is asked for a point costs a comparison.

/// A step of the commit path, named by what has just been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// Some bytes were written to an ingest.
    Written,
    /// The data of an ingest is on disk.
    Synced,
    /// Size and digest were checked.
    Verified,
    /// The data has its name.
    Renamed,
    /// The folder with the name is on disk.
    DirectorySynced,
    /// A tag was written, but not yet under its name.
    TagWritten,
    /// A tag has its name, but its folder is not yet on disk.
    TagRenamed,
}

impl CrashPoint {
    /// Every point, in the order in which a create passes them.
    pub const ALL: [Self; 7] = [
        Self::Written,
        Self::Synced,
        Self::Verified,
        Self::Renamed,
        Self::DirectorySynced,
        Self::TagWritten,
        Self::TagRenamed,
    ];

    /// The name by which a test asks for the point.
    pub fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Synced => "synced",
            Self::Verified => "verified",
            Self::Renamed => "renamed",
            Self::DirectorySynced => "directory-synced",
            Self::TagWritten => "tag-written",
            Self::TagRenamed => "tag-renamed",
        }
    }

    /// The point of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|point| point.name() == name)
    }
}

/// Ends the process as `kill -9` does: no destructor runs, nothing is flushed.
pub(crate) fn kill() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // Not reached where signals work; elsewhere the next best.
    std::process::abort()
}
