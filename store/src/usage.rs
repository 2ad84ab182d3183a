//! Disk usage of ingests and damaged blobs.

use std::fs;
use std::time::{Duration, SystemTime};

use content::IngestId;

use crate::{Blobs, Error, files};

/// An ingest on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngestEntry {
    /// The id of the ingest.
    pub id: IngestId,
    /// Bytes written so far.
    pub bytes: u64,
    /// Time since the last write to it.
    pub idle: Duration,
}

impl Blobs<'_> {
    /// All ingests that were started and neither committed nor cancelled, including those with a
    /// writer.
    pub fn ingests(&self, now: SystemTime) -> Result<Vec<IngestEntry>, Error> {
        let entry = |id: IngestId| {
            let folder = self.0.0.layout.ingest(&id);
            let data = fs::metadata(folder.join("data")).ok();
            let bytes = data.as_ref().map_or(0, std::fs::Metadata::len);
            // An ingest that has no data file yet is as old as its folder.
            let modified = data.or_else(|| fs::metadata(&folder).ok()).and_then(|metadata| metadata.modified().ok());
            let idle = modified.and_then(|time| now.duration_since(time).ok()).unwrap_or(Duration::ZERO);
            IngestEntry { id, bytes, idle }
        };
        Ok(self.0.blobs().ingest_ids()?.into_iter().map(entry).collect())
    }

    /// Bytes of damaged blobs that were set aside.
    pub fn damaged_bytes(&self) -> Result<u64, Error> {
        let folder = self.0.0.layout.damaged();
        if !folder.is_dir() {
            return Ok(0);
        }
        let sizes = files::entries(&folder)?.into_iter().filter_map(|entry| entry.metadata().ok());
        Ok(sizes.map(|metadata| metadata.len()).sum())
    }
}
