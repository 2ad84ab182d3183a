//! Executes an import plan: streams several blobs at a time to the target.

use content::{Algorithm, Amount, Descriptor, Digest, Hasher, MediaType};
use manifests::{Layer, media_types};

use crate::origin::OriginGap;
use crate::plan::SideSource;
use crate::workers::in_parallel;
use crate::{
    BlobSink, Error, Extent, ImportProgress, InPlaceBlob, Inventory, LocalPart, Plan, PlannedBlob, ReadAt, SideLayer,
    Target,
};

/// Size of a worker's buffer, in bytes.
const BUFFER: usize = 1 << 20;

/// Number of blobs that are written at a time per core: one is hashed while another waits for the
/// disk.
const WORKERS_PER_CORE: usize = 2;

/// Result of an import.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// Layers: tensors in the plan's order, then headers and side files, gaps, and the origin.
    pub layers: Vec<Layer>,
    /// New tensor blobs.
    pub new: Amount,
    /// Tensor blobs that existed already.
    pub shared: Amount,
}

/// Executes a plan.
pub fn write(
    inventory: &Inventory,
    plan: &Plan,
    target: &dyn Target,
    progress: &ImportProgress<'_>,
) -> Result<Imported, Error> {
    let files = inventory.files.iter().map(|file| &*file.source).collect();
    let writer = Writer { files, target, progress };
    let mut imported = Imported::default();
    for (blob, (layer, new)) in plan.blobs.iter().zip(writer.tensors(&plan.blobs)?) {
        let amount = if new { &mut imported.new } else { &mut imported.shared };
        *amount += Amount::of_blob(blob.size());
        imported.layers.push(layer);
    }
    for side in &plan.side {
        imported.layers.push(writer.side(inventory, side)?);
    }
    let mut origin = plan.origin.clone();
    for gap in &plan.gaps {
        if let Some(layer) = writer.gap(inventory, gap)? {
            let name = layer.name().unwrap_or_default().to_owned();
            origin.files[gap.file].gaps.push(OriginGap { layer: name, offset: gap.offset, size: gap.size });
            imported.layers.push(layer);
        }
    }
    let origin = serde_json::to_vec(&origin).map_err(|e| Error::Source(e.to_string()))?;
    imported.layers.push(writer.bytes("origin.json", media_types::ORIGIN, &origin)?);
    Ok(imported)
}

struct Writer<'a> {
    files: Vec<&'a dyn ReadAt>,
    target: &'a dyn Target,
    progress: &'a ImportProgress<'a>,
}

impl Writer<'_> {
    /// Returns the layers of the blobs in order, and whether each was new.
    fn tensors(&self, blobs: &[PlannedBlob]) -> Result<Vec<(Layer, bool)>, Error> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let buffer = || vec![0; BUFFER];
        in_parallel(blobs.len(), cores * WORKERS_PER_CORE, buffer, |buffer, position| {
            self.tensor(&blobs[position], buffer)
        })
    }

    fn tensor(&self, blob: &PlannedBlob, buffer: &mut [u8]) -> Result<(Layer, bool), Error> {
        let size = blob.size();
        let source = self.source_key(blob);
        if let Some(digest) = source.and_then(|source| self.target.remembered(&source))
            && self.has(&blob.name, &digest, size)?
        {
            self.progress.advance(blob.source_bytes())?;
            return Ok((self.finish(&blob.name, media_types::TENSOR, digest, size)?, false));
        }
        if let Some(in_place) = self.begin_in_place(blob)? {
            let (digest, new) = self.commit_in_place(blob, in_place)?;
            return Ok((self.finish(&blob.name, media_types::TENSOR, digest, size)?, new));
        }
        let mut known = None;
        if self.target.may_have(&blob.name, size) {
            let digest = self.hash(blob, buffer)?;
            known = self.has(&blob.name, &digest, size)?.then_some(digest);
        }
        let (digest, new) = match known {
            Some(digest) => {
                self.progress.advance(blob.source_bytes())?;
                (digest, false)
            }
            None => self.put(blob, buffer)?,
        };
        if let Some(source) = source {
            self.target.remember(&source, &digest);
        }
        Ok((self.finish(&blob.name, media_types::TENSOR, digest, size)?, new))
    }

    /// Begins a blob whose bytes stay in their files. `None` if the target or the source needs a
    /// copy.
    fn begin_in_place(&self, blob: &PlannedBlob) -> Result<Option<Box<dyn InPlaceBlob + '_>>, Error> {
        let part = |extent: &Extent| {
            let whole = self.files[extent.file].local()?;
            Some((LocalPart { offset: whole.offset.checked_add(extent.offset)?, ..whole }, extent.size))
        };
        let Some(parts) = blob.extents.iter().map(part).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let begun = self.target.begin_in_place(&blob.header, &parts);
        begun.map_err(|source| Error::target(&blob.name, source))
    }

    fn commit_in_place(
        &self,
        blob: &PlannedBlob,
        in_place: Box<dyn InPlaceBlob + '_>,
    ) -> Result<(Digest, bool), Error> {
        let (header, mut seen) = (blob.header.len() as u64, 0);
        let committed = in_place.commit(&mut |count| {
            // Progress counts the bytes of the source only.
            let before = u64::saturating_sub(seen, header);
            seen += count;
            self.progress.advance(seen.saturating_sub(header) - before).is_ok()
        });
        self.progress.check()?;
        committed.map_err(|source| Error::target(&blob.name, source))
    }

    /// Returns the digest that identifies a blob's source: its header and the ranges in files with
    /// an identity. `None` if a file has no identity.
    fn source_key(&self, blob: &PlannedBlob) -> Option<Digest> {
        let mut hasher = Hasher::new(Algorithm::Sha256);
        for extent in &blob.extents {
            let identity = self.files[extent.file].identity()?;
            hasher.update(format!("{identity}\0{}\0{}\0", extent.offset, extent.size).as_bytes());
        }
        hasher.update(&blob.header);
        Some(hasher.finish())
    }

    /// Returns the digest of a blob without writing it.
    fn hash(&self, blob: &PlannedBlob, buffer: &mut [u8]) -> Result<Digest, Error> {
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(&blob.header);
        for extent in &blob.extents {
            self.pieces(extent, buffer, |piece| {
                hasher.update(piece);
                // The caller counts the blob as progress when it is complete.
                self.progress.check()
            })?;
        }
        Ok(hasher.finish())
    }

    /// Writes a blob. Returns its digest and whether it was new.
    fn put(&self, blob: &PlannedBlob, buffer: &mut [u8]) -> Result<(Digest, bool), Error> {
        let mut output = LayerOutput::begin(self.target, &blob.name, blob.size())?;
        output.append(&blob.header)?;
        for extent in &blob.extents {
            self.pieces(extent, buffer, |piece| {
                output.append(piece)?;
                self.progress.advance(piece.len() as u64)
            })?;
        }
        output.commit()
    }

    fn pieces(
        &self,
        extent: &Extent,
        buffer: &mut [u8],
        mut each: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let file = self.files[extent.file];
        let end = extent.offset + extent.size;
        let mut at = extent.offset;
        while at < end {
            let piece = &mut buffer[..BUFFER.min((end - at) as usize)];
            file.read_exact_at(piece, at).map_err(|e| Error::io("read", file.name(), e))?;
            each(piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn side(&self, inventory: &Inventory, side: &SideLayer) -> Result<Layer, Error> {
        match side.source {
            SideSource::File(extent) => self.extent(&side.name, &side.media_type, &extent),
            SideSource::SideFile(position, size) => {
                let whole = Extent { file: 0, offset: 0, size };
                let alone = Writer { files: vec![&*inventory.side_files[position].source], ..*self };
                alone.extent(&side.name, &side.media_type, &whole)
            }
        }
    }

    fn extent(&self, name: &str, media_type: &MediaType, extent: &Extent) -> Result<Layer, Error> {
        let mut buffer = vec![0; BUFFER];
        let mut output = LayerOutput::begin(self.target, name, extent.size)?;
        self.pieces(extent, &mut buffer, |piece| output.append(piece))?;
        let (digest, _) = output.commit()?;
        self.finish(name, media_type.clone(), digest, extent.size)
    }

    /// Writes the bytes of a gap as a layer, unless they are all zero.
    fn gap(&self, inventory: &Inventory, gap: &Extent) -> Result<Option<Layer>, Error> {
        let mut buffer = vec![0; BUFFER];
        let mut zero = true;
        self.pieces(gap, &mut buffer, |piece| {
            zero &= piece.iter().all(|byte| *byte == 0);
            Ok(())
        })?;
        if zero {
            return Ok(None);
        }
        let name = format!("{}@{}", inventory.files[gap.file].name, gap.offset);
        self.extent(&name, &media_types::HEADER, gap).map(Some)
    }

    fn bytes(&self, name: &str, media_type: MediaType, bytes: &[u8]) -> Result<Layer, Error> {
        let mut output = LayerOutput::begin(self.target, name, bytes.len() as u64)?;
        output.append(bytes)?;
        let (digest, _) = output.commit()?;
        self.finish(name, media_type, digest, bytes.len() as u64)
    }

    fn finish(&self, name: &str, media_type: MediaType, digest: Digest, size: u64) -> Result<Layer, Error> {
        let descriptor = Descriptor { media_type, digest, size };
        self.progress.complete(name, &descriptor)?;
        Ok(Layer::named(descriptor, name))
    }

    fn has(&self, name: &str, digest: &Digest, size: u64) -> Result<bool, Error> {
        self.target.has(digest, size).map_err(|source| Error::target(name, source))
    }
}

/// A blob that is being written, with the layer's name for errors.
pub(crate) struct LayerOutput<'a> {
    name: &'a str,
    sink: Box<dyn BlobSink + 'a>,
}

impl<'a> LayerOutput<'a> {
    pub(crate) fn begin(target: &'a dyn Target, name: &'a str, size: u64) -> Result<Self, Error> {
        let sink = target.begin(size).map_err(|source| Error::target(name, source))?;
        Ok(Self { name, sink })
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.sink.append(bytes).map_err(|source| Error::target(self.name, source))
    }

    pub(crate) fn commit(self) -> Result<(Digest, bool), Error> {
        self.sink.commit().map_err(|source| Error::target(self.name, source))
    }
}
