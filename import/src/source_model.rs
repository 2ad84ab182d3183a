//! Source model of a quantization: a model in a store, or files that are not imported.
//!
//! Files are read as if they were imported: each planned blob can be read like a stored one,
//! without being written. A stand-in digest identifies a planned blob until its bytes are hashed.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use content::{Algorithm, Descriptor, Digest};
use manifests::{Layer, media_types};

use crate::plan::SideSource;
use crate::read_at::read_header_part;
use crate::{Error, Extent, Inventory, OpenBlob, Plan, ReadAt, StoredTensor, catalogue, digest_of};

/// Model whose tensors can be read.
pub struct SourceModel {
    layers: Vec<Layer>,
    open: Box<OpenBlob>,
    /// Digests of planned blobs by stand-in, once they are computed.
    digests: HashMap<Digest, OnceLock<Digest>>,
}

impl SourceModel {
    /// Creates a source from a model in a store.
    pub fn stored(layers: Vec<Layer>, open: Box<OpenBlob>) -> Self {
        Self { layers, open, digests: HashMap::new() }
    }

    /// Creates a source from files, as an import would make it. Layers have stand-ins for their
    /// digests, see [`SourceModel::digest`].
    pub fn files(inventory: &Inventory, plan: &Plan) -> Self {
        let mut layers = Vec::new();
        let mut blobs: HashMap<Digest, Arc<dyn ReadAt>> = HashMap::new();
        for planned in &plan.blobs {
            // Unique, because the header contains tensor names and no two tensors share a name.
            let stand_in = Digest::of(&planned.header);
            let size = planned.size();
            let extents = planned.extents.iter().map(|extent| source(inventory, extent)).collect();
            let (name, header) = (planned.name.clone(), planned.header.clone());
            blobs.insert(stand_in, Arc::new(PlannedBytes { name, header, extents, size }));
            let descriptor = Descriptor { media_type: media_types::TENSOR, digest: stand_in, size };
            layers.push(Layer::named(descriptor, &planned.name));
        }
        let digests = blobs.keys().map(|stand_in| (*stand_in, OnceLock::new())).collect();
        // These documents describe quantization and architecture, which are needed to interpret the
        // tensors.
        for side in &plan.side {
            let wanted = side.media_type == media_types::HEADER || side.name == "config.json";
            let (source, size): (Arc<dyn ReadAt>, u64) = match side.source {
                _ if !wanted => continue,
                SideSource::SideFile(position, size) => (Arc::clone(&inventory.side_files[position].source), size),
                SideSource::File(extent) => {
                    let extents = vec![self::source(inventory, &extent)];
                    let header =
                        PlannedBytes { name: side.name.clone(), header: Vec::new(), extents, size: extent.size };
                    (Arc::new(header), extent.size)
                }
            };
            let stand_in = Digest::of(format!("{} {}", side.media_type, side.name).as_bytes());
            blobs.insert(stand_in, source);
            layers.push(Layer::named(
                Descriptor { media_type: side.media_type.clone(), digest: stand_in, size },
                &side.name,
            ));
        }
        let open = move |digest: &Digest| blobs.get(digest).cloned().ok_or_else(|| io::ErrorKind::NotFound.into());
        Self { layers, open: Box::new(open), digests }
    }

    /// Returns the layers.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Returns the tensors in the order of the layers. Reads the headers of all blobs.
    pub fn tensors(&self) -> Result<Vec<StoredTensor>, Error> {
        catalogue(&self.layers, &*self.open)
    }

    /// Returns the function that opens blobs by the digests in the layers.
    pub fn open(&self) -> &OpenBlob {
        &*self.open
    }

    /// Returns the digest of a blob. The digest of a planned blob is computed on first use, which
    /// reads the whole blob.
    pub fn digest(&self, named: &Digest) -> Result<Digest, Error> {
        let Some(known) = self.digests.get(named) else { return Ok(*named) };
        if let Some(digest) = known.get() {
            return Ok(*digest);
        }
        let blob = (self.open)(named).map_err(|e| Error::io("open", named, e))?;
        let digest = digest_of(&*blob, Algorithm::Sha256).map_err(|e| Error::io("read", blob.name(), e))?;
        Ok(*known.get_or_init(|| digest))
    }
}

impl fmt::Debug for SourceModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceModel").field("layers", &self.layers.len()).finish_non_exhaustive()
    }
}

fn source(inventory: &Inventory, extent: &Extent) -> FileRange {
    FileRange { file: Arc::clone(&inventory.files[extent.file].source), offset: extent.offset, size: extent.size }
}

/// Range of a file.
#[derive(Debug)]
struct FileRange {
    file: Arc<dyn ReadAt>,
    offset: u64,
    size: u64,
}

/// Blob that is planned but not written.
#[derive(Debug)]
struct PlannedBytes {
    name: String,
    header: Vec<u8>,
    extents: Vec<FileRange>,
    size: u64,
}

impl ReadAt for PlannedBytes {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut rest = read_header_part(&self.header, self.size, buffer, offset)?;
        // Offset of the rest after the header.
        let mut skip = offset.saturating_sub(self.header.len() as u64);
        for part in &self.extents {
            if rest.is_empty() {
                break;
            }
            if skip >= part.size {
                skip -= part.size;
                continue;
            }
            let count = (part.size - skip).min(rest.len() as u64) as usize;
            let (piece, after) = rest.split_at_mut(count);
            part.file.read_exact_at(piece, part.offset + skip)?;
            (rest, skip) = (after, 0);
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_at::InMemory;

    #[test]
    fn a_planned_blob_reads_like_a_written_one() {
        let file: Arc<dyn ReadAt> = Arc::new(InMemory(b"0123456789".to_vec()));
        let part = |offset, size| FileRange { file: Arc::clone(&file), offset, size };
        let extents = vec![part(7, 2), part(0, 0), part(1, 3)];
        let blob = PlannedBytes { name: "b".to_owned(), header: b"head".to_vec(), extents, size: 9 };
        let expect = b"head78123";
        for from in 0..=9 {
            for to in from..=9 {
                let mut read = vec![0; to - from];
                blob.read_exact_at(&mut read, from as u64).expect("inside");
                assert_eq!(read, expect[from..to], "{from}..{to}");
            }
        }
        assert!(blob.read_exact_at(&mut [0; 2], 8).is_err(), "after the end");
    }
}
