//! Executes an import plan: streams several blobs at a time to the target.

use std::io::{self, Write};

use content::{Algorithm, Descriptor, Digest, Hasher, MediaType};
use manifests::{Layer, media_types};

use crate::origin::OriginGap;
use crate::plan::SideSource;
use crate::workers::in_parallel;
use crate::{Error, Extent, Inventory, Plan, PlannedBlob, ReadAt, SideLayer};

/// Size of a worker's buffer, in bytes.
const BUFFER: usize = 1 << 20;

/// Number of blobs that are written at a time per core: one is hashed while another waits for the
/// disk.
const WORKERS_PER_CORE: usize = 2;

/// Function that writes the bytes of a blob to a sink.
pub type Fill<'a> = dyn FnMut(&mut dyn Write) -> io::Result<()> + 'a;

/// Destination of blobs.
pub trait Target: Sync {
    /// Returns whether a layer with this name and size in bytes is known. If so, hashing it first
    /// may make it unnecessary to write it.
    fn may_have(&self, name: &str, size: u64) -> bool;

    /// Returns whether the blob with this size in bytes exists already.
    fn has(&self, digest: &Digest, size: u64) -> Result<bool, Box<dyn std::error::Error + Send + Sync>>;

    /// Stores the bytes that `fill` writes, `size` in total; they are durable when this returns.
    /// Returns the digest, and whether the bytes were new.
    fn put(&self, size: u64, fill: &mut Fill<'_>) -> Result<(Digest, bool), Box<dyn std::error::Error + Send + Sync>>;

    /// Returns the digest of the blob that was made from this source before; the blob may be gone.
    /// `source` covers the bytes of the source and the header before them. Called only for sources
    /// that have an identity.
    fn remembered(&self, source: &Digest) -> Option<Digest> {
        let _ = source;
        None
    }

    /// Remembers the blob that was made from this source, for later imports.
    fn remember(&self, source: &Digest, blob: &Digest) {
        let _ = (source, blob);
    }
}

/// Observer of an import's progress.
pub trait ImportObserver: Sync {
    /// Handles an event. Returning `false` cancels the import.
    fn event(&self, event: Event<'_>) -> bool;
}

/// Event during an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// This many bytes of tensors were read, or do not have to be.
    Bytes(u64),
    /// A layer is complete.
    Layer {
        /// Name of the layer.
        name: &'a str,
        /// Descriptor of the layer.
        descriptor: &'a Descriptor,
        /// Whether the bytes were new to the store.
        new: bool,
    },
}

/// Result of an import.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// Layers: tensors in the plan's order, then headers and side files, gaps, and the origin.
    pub layers: Vec<Layer>,
    /// Size of new tensor blobs in bytes.
    pub new_bytes: u64,
    /// Size of tensor blobs that existed already, in bytes.
    pub shared_bytes: u64,
    /// Number of new tensor blobs.
    pub new_blobs: u64,
    /// Number of tensor blobs that existed already.
    pub shared_blobs: u64,
}

/// Executes a plan.
pub fn write(
    inventory: &Inventory,
    plan: &Plan,
    target: &dyn Target,
    progress: &dyn ImportObserver,
) -> Result<Imported, Error> {
    let files = inventory.files.iter().map(|file| &*file.source).collect();
    let writer = Writer { files, target, progress };
    let mut imported = Imported::default();
    for (blob, (layer, new)) in plan.blobs.iter().zip(writer.tensors(&plan.blobs)?) {
        let (bytes, blobs) = if new {
            (&mut imported.new_bytes, &mut imported.new_blobs)
        } else {
            (&mut imported.shared_bytes, &mut imported.shared_blobs)
        };
        *bytes += blob.size();
        *blobs += 1;
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
    progress: &'a dyn ImportObserver,
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
            let skipped = blob.extents.iter().map(|extent| extent.size).sum();
            let goes_on = self.progress.event(Event::Bytes(skipped));
            let layer = self.finish(&blob.name, media_types::TENSOR, digest, size, false)?;
            return if goes_on { Ok((layer, false)) } else { Err(Error::Cancelled) };
        }
        let mut known = None;
        if self.target.may_have(&blob.name, size) {
            let mut hasher = HashOnly(Hasher::new(Algorithm::Sha256));
            self.fill(blob, &mut hasher, buffer, false)?;
            let digest = hasher.0.finish();
            known = self.has(&blob.name, &digest, size)?.then_some(digest);
        }
        let (digest, new) = match known {
            Some(digest) => (digest, false),
            None => {
                self.put(&blob.name, size, &mut |sink| self.fill(blob, sink, buffer, true).map_err(io::Error::other))?
            }
        };
        if let Some(source) = source {
            self.target.remember(&source, &digest);
        }
        let layer = self.finish(&blob.name, media_types::TENSOR, digest, size, new)?;
        Ok((layer, new))
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

    /// Writes a blob's bytes into `sink`.
    fn fill(&self, blob: &PlannedBlob, sink: &mut dyn Write, buffer: &mut [u8], stored: bool) -> Result<(), Error> {
        let failed = |e: io::Error| Error::Target { name: blob.name.clone(), source: Box::new(e) };
        sink.write_all(&blob.header).map_err(failed)?;
        for extent in &blob.extents {
            self.pieces(extent, buffer, |piece| {
                sink.write_all(piece).map_err(failed)?;
                // Only one of the passes over a blob counts as progress.
                let counted = if stored { piece.len() as u64 } else { 0 };
                if self.progress.event(Event::Bytes(counted)) { Ok(()) } else { Err(Error::Cancelled) }
            })?;
        }
        Ok(())
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
        let (digest, new) = self.put(name, extent.size, &mut |sink| {
            let written = self.pieces(extent, &mut buffer, |piece| {
                sink.write_all(piece).map_err(|e| Error::Target { name: name.to_owned(), source: Box::new(e) })
            });
            written.map_err(io::Error::other)
        })?;
        self.finish(name, media_type.clone(), digest, extent.size, new)
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
        let (digest, new) = self.put(name, bytes.len() as u64, &mut |sink| sink.write_all(bytes))?;
        self.finish(name, media_type, digest, bytes.len() as u64, new)
    }

    fn finish(&self, name: &str, media_type: MediaType, digest: Digest, size: u64, new: bool) -> Result<Layer, Error> {
        let descriptor = Descriptor { media_type, digest, size };
        if !self.progress.event(Event::Layer { name, descriptor: &descriptor, new }) {
            return Err(Error::Cancelled);
        }
        Ok(Layer::named(descriptor, name))
    }

    fn has(&self, name: &str, digest: &Digest, size: u64) -> Result<bool, Error> {
        self.target.has(digest, size).map_err(|source| Error::Target { name: name.to_owned(), source })
    }

    fn put(&self, name: &str, size: u64, fill: &mut Fill<'_>) -> Result<(Digest, bool), Error> {
        self.target.put(size, fill).map_err(|source| unwrap_own(name, source))
    }
}

/// Returns the original error if reading the source failed: it passes through the target as an I/O
/// error.
pub(crate) fn unwrap_own(name: &str, source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    match source.downcast::<io::Error>() {
        Ok(error) => match error.downcast::<Error>() {
            Ok(own) => own,
            Err(error) => Error::Target { name: name.to_owned(), source: Box::new(error) },
        },
        Err(source) => Error::Target { name: name.to_owned(), source },
    }
}

struct HashOnly(Hasher);

impl Write for HashOnly {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
