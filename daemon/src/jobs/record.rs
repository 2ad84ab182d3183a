//! The files of unfinished and failed jobs, from which they go on after a restart of the daemon.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use api::lode::JobPriority;
use serde::{Deserialize, Serialize};

use super::job_work::JobWork;

/// The file with the highest number of a job.
const COUNTER: &str = "last";
/// Version of the format.
const VERSION: u32 = 1;

/// An unfinished or failed job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct JobRecord {
    pub(super) version: u32,
    pub(super) id: u64,
    #[serde(flatten)]
    pub(super) work: JobWork,
    pub(super) is_paused: bool,
    /// Why it has failed; absent if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<String>,
    pub(super) limit: Option<u64>,
    pub(super) priority: JobPriority,
    /// When it was requested, in seconds since 1970.
    pub(super) created: u64,
}

impl JobRecord {
    pub(super) fn new(id: u64, work: JobWork, created: u64) -> Self {
        Self {
            version: VERSION,
            id,
            work,
            is_paused: false,
            failure: None,
            limit: None,
            priority: JobPriority::Normal,
            created,
        }
    }
}

/// The folder of the records, one file for each job.
#[derive(Clone, Debug)]
pub(super) struct Records(PathBuf);

impl Records {
    /// Records in the folder `jobs` of a store.
    pub(super) fn of_store(home: &Path) -> Self {
        Self(home.join("jobs"))
    }

    /// Reads all records. A file that cannot be read is named in the log and stays.
    pub(super) fn read(&self) -> Vec<JobRecord> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                tracing::warn!("unfinished jobs are not resumed: cannot read `{}`: {error}", self.0.display());
                return Vec::new();
            }
        };
        let mut records = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            let kind = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            if kind == "tmp" {
                // Half a record, of a daemon that was killed while it wrote.
                let _ = fs::remove_file(&path);
            }
            if kind != "json" {
                continue;
            }
            match read(&path) {
                Ok(record) => records.push(record),
                Err(reason) => {
                    tracing::warn!("a job is not resumed: `{}`: {reason}; remove the file", path.display());
                }
            }
        }
        records.sort_by_key(|record| record.id);
        records
    }

    /// Writes the record of a job. Failures are only logged: the job runs, but does not outlive the
    /// daemon.
    pub(super) fn write(&self, record: &JobRecord) {
        if let Err(error) = self.replace(record) {
            tracing::warn!("job {} will not go on after a restart of the daemon: {error}", record.id);
        }
    }

    fn replace(&self, record: &JobRecord) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        let temporary = self.0.join(format!("{}.tmp", record.id));
        let mut file = File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        fs::rename(&temporary, self.path(record.id))?;
        File::open(&self.0)?.sync_all()
    }

    /// Returns the highest number that a job had, also of jobs that have ended and of files that
    /// cannot be read.
    pub(super) fn highest(&self) -> u64 {
        let counted = fs::read_to_string(self.0.join(COUNTER)).ok().and_then(|text| text.trim().parse().ok());
        let number = |entry: fs::DirEntry| entry.path().file_stem()?.to_str()?.parse::<u64>().ok();
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten().filter_map(number);
        files.chain(counted).max().unwrap_or(0)
    }

    /// Keeps the highest number.
    pub(super) fn count(&self, highest: u64) {
        let path = self.0.join(COUNTER);
        if let Err(error) = fs::create_dir_all(&self.0).and_then(|()| fs::write(path, highest.to_string())) {
            tracing::warn!("job number {highest} may be used again after a restart of the daemon: {error}");
        }
    }

    /// Removes the record of a job that has ended.
    pub(super) fn remove(&self, id: u64) {
        let removed = fs::remove_file(self.path(id)).and_then(|()| File::open(&self.0)?.sync_all());
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("job {id} has ended and will run again after a restart of the daemon: {error}");
            }
            _ => {}
        }
    }

    fn path(&self, id: u64) -> PathBuf {
        self.0.join(format!("{id}.json"))
    }
}

fn read(path: &Path) -> Result<JobRecord, String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let record: JobRecord = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    match record.version {
        VERSION => Ok(record),
        other => Err(format!("its version is {other}, expected {VERSION}")),
    }
}

#[cfg(test)]
mod tests {
    use api::ollama::PullRequest;

    use super::*;

    #[test]
    fn records_are_read_as_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let records = Records::of_store(folder.path());
        assert!(records.read().is_empty());
        let pull = |model: &str| JobWork::Pull(PullRequest { model: model.to_owned(), ..PullRequest::default() });
        records.write(&JobRecord::new(10, pull("b"), 7));
        records.write(&JobRecord { is_paused: true, limit: Some(5), ..JobRecord::new(9, pull("a"), 7) });
        fs::write(folder.path().join("jobs/11.json"), b"{}").expect("a damaged record");
        fs::write(folder.path().join("jobs/12.tmp"), b"{").expect("half a record");
        let read = records.read();
        assert_eq!(read.iter().map(|record| record.id).collect::<Vec<_>>(), [9, 10]);
        assert!(read[0].is_paused && read[0].limit == Some(5) && read[0].work == pull("a"), "{read:?}");
        assert!(!folder.path().join("jobs/12.tmp").exists() && folder.path().join("jobs/11.json").exists());
        records.remove(9);
        records.remove(9);
        assert_eq!(records.read().len(), 1);
        assert_eq!(records.highest(), 11, "the number of a file that cannot be read is used");
        records.count(20);
        assert_eq!(records.highest(), 20, "a job has ended");
    }
}
