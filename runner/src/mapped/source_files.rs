//! Files outside of the store in which tensors lie. Unlike blobs, they may be changed while they
//! are mapped, so they are looked at after each pass.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, bail};
use protocol::UnchangedFile;

/// The files, with the identities that they must keep.
#[derive(Debug, Default)]
pub(crate) struct SourceFiles(Vec<SourceFile>);

#[derive(Debug)]
struct SourceFile {
    name: String,
    file: File,
    size: u64,
    unchanged: UnchangedFile,
}

impl SourceFiles {
    pub(super) fn add(&mut self, blob: &protocol::Blob, file: &File, unchanged: UnchangedFile) -> Result<()> {
        let file = file.try_clone().context("it cannot be kept open")?;
        self.0.push(SourceFile { name: blob.name.clone(), file, size: blob.size, unchanged });
        Ok(())
    }

    /// Checks that no file has changed: then all that was read from the mappings so far was right.
    /// Writes through a shared mapping of another process are noticed only when the system writes
    /// them back.
    ///
    /// # Errors
    /// Names the file that has changed.
    pub(crate) fn check(&self) -> Result<()> {
        for SourceFile { name, file, size, unchanged } in &self.0 {
            let facts = file.metadata().with_context(|| format!("cannot look at `{name}`"))?;
            let now = identity(&facts);
            if now != *unchanged || facts.len() != *size {
                bail!("`{name}`, in which tensors of the model lie, was changed while the model was loaded; try again");
            }
        }
        Ok(())
    }
}

fn identity(facts: &Metadata) -> UnchangedFile {
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    UnchangedFile {
        device: facts.dev(),
        inode: facts.ino(),
        modified: nanoseconds(facts.mtime(), facts.mtime_nsec()),
        changed: nanoseconds(facts.ctime(), facts.ctime_nsec()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn another_time_and_another_length_are_noticed() {
        for change in [|file: &File| file.set_modified(SystemTime::UNIX_EPOCH), |file: &File| file.set_len(2)] {
            let mut file = tempfile::NamedTempFile::new().expect("a file");
            file.write_all(b"weights").expect("a write");
            let facts = file.as_file().metadata().expect("facts");
            let unchanged = identity(&facts);
            let blob =
                protocol::Blob { name: "/m/model.gguf".to_owned(), size: facts.len(), unchanged: Some(unchanged) };
            let mut files = SourceFiles::default();
            files.add(&blob, file.as_file(), unchanged).expect("a file");
            files.check().expect("nothing has changed");
            change(file.as_file()).expect("a change");
            let error = files.check().expect_err("it was changed").to_string();
            assert!(error.contains("`/m/model.gguf`") && error.contains("was changed"), "{error}");
        }
    }
}
