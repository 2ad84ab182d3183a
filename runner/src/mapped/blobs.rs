//! Blobs mapped into memory.
//!
//! Blobs of a store never change while a runner has them mapped: the store makes them read-only,
//! never replaces them, and deletes them only by unlinking. An unlinked file stays mapped. This
//! makes mapping them sound.
//!
//! Files outside of the store, in which the tensors of adopted models lie, may change.
//! [`SourceFiles`] notices it, and the results of the pass are discarded. A file that was truncated
//! ends this process with a signal at the next read.
#![expect(unsafe_code, reason = "mapping files")]

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use memmap2::Mmap;

use super::source_files::SourceFiles;

/// The bytes of a file of the model.
#[derive(Debug)]
pub(crate) enum Blob {
    /// The mapped file.
    Mapped(Mmap),
    /// A copy in memory: for the smallest files, if the system cannot map more.
    Read(Vec<u8>),
}

impl std::ops::Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(bytes) => bytes,
            Self::Read(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Blob {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// All files of the model, in the order of the load plan, and those among them that may change.
#[derive(Debug, Default)]
pub(crate) struct Blobs(pub(super) Vec<Arc<Blob>>, Arc<SourceFiles>);

impl Blobs {
    /// Takes the files of a plan, one from each call of `next`. The largest `maps` files are
    /// mapped; smaller ones are copied into memory.
    ///
    /// # Errors
    /// Fails if a file does not arrive, has another size, or cannot be mapped.
    pub(crate) fn take(
        plan: &[protocol::Blob],
        maps: usize,
        mut next: impl FnMut() -> Result<OwnedFd>,
    ) -> Result<Self> {
        let read = smallest(plan, plan.len().saturating_sub(maps));
        let (mut all, mut sources) = (Vec::with_capacity(plan.len()), SourceFiles::default());
        for (blob, read) in plan.iter().zip(read) {
            let mut one = || -> Result<Blob> {
                let mut file = File::from(next()?);
                let found = file.metadata()?.len();
                ensure!(
                    found == blob.size,
                    "it has {found} bytes, expected {}; pull or create the model again",
                    blob.size
                );
                if read && blob.unchanged.is_none() {
                    let mut bytes = Vec::with_capacity(blob.size as usize);
                    file.read_to_end(&mut bytes)?;
                    return Ok(Blob::Read(bytes));
                }
                if let Some(unchanged) = blob.unchanged {
                    sources.add(blob, &file, unchanged)?;
                }
                // SAFETY: blobs of a store are not written to after their commit, and changes of
                // other files are noticed before their bytes matter, see the module documentation.
                Ok(Blob::Mapped(unsafe { Mmap::map(&file) }.context("it cannot be mapped")?))
            };
            all.push(Arc::new(one().with_context(|| format!("blob `{}`", blob.name))?));
        }
        sources.check()?;
        Ok(Self(all, Arc::new(sources)))
    }

    /// Returns a blob by its index in the plan.
    ///
    /// # Errors
    /// Fails if the plan has no such blob.
    pub(crate) fn get(&self, place: usize) -> Result<&Arc<Blob>> {
        self.0.get(place).with_context(|| format!("the load plan names blob {place} of {}", self.0.len()))
    }

    /// Returns the files that may change.
    pub(crate) fn sources(&self) -> &Arc<SourceFiles> {
        &self.1
    }

    /// Returns the index of each blob in the plan, by [`ArrayKey::blob`](super::ArrayKey::blob).
    pub(crate) fn places(&self) -> HashMap<usize, usize> {
        self.0.iter().enumerate().map(|(place, blob)| (address(blob), place)).collect()
    }

    #[cfg(test)]
    pub(crate) fn of_files(paths: &[std::path::PathBuf]) -> Result<Self> {
        let mut plan = Vec::new();
        for path in paths {
            plan.push(protocol::Blob {
                name: path.display().to_string(),
                size: std::fs::metadata(path)?.len(),
                unchanged: None,
            });
        }
        let mut paths = paths.iter();
        Self::take(&plan, usize::MAX, || Ok(File::open(paths.next().context("no file is left")?)?.into()))
    }
}

pub(super) fn address(blob: &Arc<Blob>) -> usize {
    Arc::as_ptr(blob) as usize
}

/// Marks the `count` smallest blobs.
fn smallest(plan: &[protocol::Blob], count: usize) -> Vec<bool> {
    let mut order: Vec<usize> = (0..plan.len()).collect();
    order.sort_unstable_by_key(|place| plan[*place].size);
    let mut marked = vec![false; plan.len()];
    order[..count.min(plan.len())].iter().for_each(|place| marked[*place] = true);
    marked
}

/// Mappings that weights leave for the rest of the process: libraries, threads, states of
/// sequences.
const OTHER_MAPS: usize = 8192;

/// Returns the largest number of files that this process maps.
pub(crate) fn most_maps() -> usize {
    // The kernel's default, used if the limit cannot be read.
    const DEFAULT: usize = 65_530;
    let said = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|text| text.trim().parse().ok());
    said.unwrap_or(DEFAULT).saturating_sub(OTHER_MAPS).max(1024)
}
