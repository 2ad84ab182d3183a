//! Source file that is reassembled from the layers into which it was split.
//!
//! The origin document and the headers of the blobs determine the source of each byte: the header
//! layer, then each tensor at its offset in its blob, then the contents of gaps. All other bytes
//! are zero. Nothing is written; the file is read through its blobs.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use content::{Algorithm, Digest, Hasher, MediaType};
use formats::safetensors::Header;
use manifests::{Layer, media_types};

use crate::{OriginFile, ReadAt};

/// Size of the buffer for hashing a whole file, in bytes.
const BUFFER: usize = 1 << 20;

/// Function that opens a blob by its digest.
pub type OpenBlob = dyn Fn(&Digest) -> io::Result<Arc<dyn ReadAt>> + Send + Sync;

/// Source file, backed by its layers.
///
/// Invariant: the pieces are sorted by offset, do not overlap and do not extend beyond the end of
/// the file.
pub struct Composed {
    name: String,
    size: u64,
    pieces: Vec<ComposedPiece>,
    open: Arc<OpenBlob>,
}

/// Range of the file that is stored in a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComposedPiece {
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Length in bytes; not 0.
    pub size: u64,
    /// Digest of the blob.
    pub blob: Digest,
    /// Offset of the first byte in the blob.
    pub begin: u64,
}

impl Composed {
    /// Composes the file that the origin document describes from the layers of its model. Reads the
    /// header of each tensor blob that is needed.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] if a layer is missing or does not match the document.
    pub fn new(file: &OriginFile, layers: &[Layer], open: Arc<OpenBlob>) -> io::Result<Self> {
        let layers = Layers::of(layers, &*open);
        let mut headers = HashMap::new();
        let header = layers.find(&media_types::HEADER, &file.name)?;
        let mut pieces = vec![whole(header, 0, file.header)?];
        for tensor in &file.tensors {
            let layer = layers.find(&media_types::TENSOR, tensor.layer.as_ref().unwrap_or(&tensor.name))?;
            let places = match headers.entry(*layer.digest()) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => entry.insert(layers.places(layer)?),
            };
            let (begin, size) = *places.get(&tensor.name).ok_or_else(|| {
                malformed(format!("blob `{}` does not have the tensor `{}`", layer.digest(), tensor.name))
            })?;
            if size != tensor.size {
                let (name, expected) = (&tensor.name, tensor.size);
                return Err(malformed(format!("tensor `{name}` has {size} bytes, its origin says {expected}")));
            }
            pieces.push(ComposedPiece { offset: tensor.offset, size, blob: *layer.digest(), begin });
        }
        for gap in &file.gaps {
            pieces.push(whole(layers.find(&media_types::HEADER, &gap.layer)?, gap.offset, gap.size)?);
        }
        Ok(Self { name: file.name.clone(), size: file.size, pieces: ordered(pieces, file)?, open })
    }

    /// Returns the ranges that come from blobs, sorted and without overlaps. Bytes between them are
    /// zero.
    pub fn pieces(&self) -> &[ComposedPiece] {
        &self.pieces
    }

    /// Returns the pieces that intersect a non-empty range.
    fn pieces_within(&self, from: u64, to: u64) -> &[ComposedPiece] {
        let first = self.pieces.partition_point(|piece| piece.offset + piece.size <= from);
        let last = self.pieces.partition_point(|piece| piece.offset < to);
        self.pieces.get(first..last).unwrap_or_default()
    }
}

impl ReadAt for Composed {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.size);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.fill(0);
        if buffer.is_empty() {
            return Ok(());
        }
        for piece in self.pieces_within(offset, end) {
            let from = piece.offset.max(offset);
            let to = (piece.offset + piece.size).min(end);
            let part = &mut buffer[(from - offset) as usize..(to - offset) as usize];
            (self.open)(&piece.blob)?.read_exact_at(part, piece.begin + (from - piece.offset))?;
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

impl fmt::Debug for Composed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Composed").field("name", &self.name).field("size", &self.size).finish_non_exhaustive()
    }
}

/// Returns the digest of a whole file, which it reads once from beginning to end. Callers check the
/// size of untrusted files first.
pub fn digest_of(file: &dyn ReadAt, algorithm: Algorithm) -> io::Result<Digest> {
    let mut hasher = Hasher::new(algorithm);
    let mut buffer = vec![0; BUFFER];
    file.read_exact_at(&mut [], 0)?;
    let size = file.size();
    let mut at = 0;
    while at < size {
        let piece = &mut buffer[..(BUFFER as u64).min(size - at) as usize];
        file.read_exact_at(piece, at)?;
        hasher.update(piece);
        at += piece.len() as u64;
    }
    Ok(hasher.finish())
}

/// Layers by media type and name.
struct Layers<'a> {
    by_name: HashMap<(&'a MediaType, &'a str), &'a Layer>,
    open: &'a OpenBlob,
}

impl<'a> Layers<'a> {
    fn of(layers: &'a [Layer], open: &'a OpenBlob) -> Self {
        let named = layers.iter().filter_map(|layer| Some(((layer.media_type(), layer.name()?), layer)));
        Self { by_name: named.collect(), open }
    }

    fn find(&self, media_type: &MediaType, name: &str) -> io::Result<&'a Layer> {
        let found = self.by_name.get(&(media_type, name)).copied();
        found.ok_or_else(|| malformed(format!("the model has no layer `{name}` of type `{media_type}`")))
    }

    /// Returns offset and length of each tensor of a blob.
    fn places(&self, layer: &Layer) -> io::Result<HashMap<String, (u64, u64)>> {
        let blob = (self.open)(layer.digest())?;
        let header = read_header(&*blob).map_err(|e| io::Error::new(e.kind(), format!("`{}`: {e}", layer.digest())))?;
        let start = header.data_start;
        let place = |tensor: formats::safetensors::TensorInfo| {
            let place = (start + tensor.begin, tensor.size());
            (tensor.name, place)
        };
        Ok(header.tensors.into_iter().map(place).collect())
    }
}

pub(crate) fn read_header(blob: &dyn ReadAt) -> io::Result<Header> {
    let mut beginning = vec![0; 8];
    blob.read_exact_at(&mut beginning, 0)?;
    if let Some(first) = beginning.first_chunk::<8>() {
        let length = Header::length(*first, blob.size()).map_err(|e| malformed(e.to_string()))?;
        beginning.resize(8 + length as usize, 0);
        blob.read_exact_at(&mut beginning[8..], 8)?;
    }
    Header::parse(&beginning, blob.size()).map_err(|e| malformed(e.to_string()))
}

/// Returns the piece of a layer that is part of the file as a whole.
fn whole(layer: &Layer, offset: u64, size: u64) -> io::Result<ComposedPiece> {
    if layer.size() != size {
        let (digest, own) = (layer.digest(), layer.size());
        return Err(malformed(format!("layer `{digest}` has {own} bytes, the origin says {size}")));
    }
    Ok(ComposedPiece { offset, size, blob: *layer.digest(), begin: 0 })
}

/// Sorts the pieces and checks the invariant of [`Composed`].
fn ordered(mut pieces: Vec<ComposedPiece>, file: &OriginFile) -> io::Result<Vec<ComposedPiece>> {
    pieces.retain(|piece| piece.size > 0);
    pieces.sort_by_key(|piece| piece.offset);
    let mut at = 0;
    for piece in &pieces {
        let end = piece.offset.checked_add(piece.size).filter(|end| *end <= file.size);
        let fits = piece.offset >= at;
        at = end.filter(|_| fits).ok_or_else(|| {
            let (name, size, offset) = (&file.name, piece.size, piece.offset);
            malformed(format!("the origin of `{name}` puts {size} bytes at {offset}, where they do not fit"))
        })?;
    }
    Ok(pieces)
}

fn malformed(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use content::Descriptor;

    use super::*;
    use crate::origin::OriginGap;
    use crate::read_at::InMemory;

    fn file(size: u64, gap: u64) -> OriginFile {
        let gaps = vec![OriginGap { layer: "f@6".to_owned(), offset: gap, size: 2 }];
        OriginFile { name: "f".to_owned(), size, header: 3, tensors: Vec::new(), gaps }
    }

    fn compose(file: &OriginFile) -> io::Result<Composed> {
        let blobs = [b"abc".to_vec(), b"xy".to_vec()];
        let named = ["f", "f@6"].into_iter().zip(&blobs);
        let layers: Vec<Layer> =
            named.map(|(name, bytes)| Layer::named(Descriptor::of(media_types::HEADER, bytes), name)).collect();
        let open = move |digest: &Digest| {
            let blob = blobs.iter().find(|blob| Digest::of(blob) == *digest).ok_or(io::ErrorKind::NotFound)?;
            Ok(Arc::new(InMemory(blob.clone())) as Arc<dyn ReadAt>)
        };
        Composed::new(file, &layers, Arc::new(open))
    }

    #[test]
    fn reads_any_part_alike() {
        let composed = compose(&file(10, 6)).expect("composes");
        let expect = b"abc\0\0\0xy\0\0";
        for from in 0..10 {
            for to in from..=10 {
                let mut part = vec![0xff; to - from];
                composed.read_exact_at(&mut part, from as u64).expect("inside");
                assert_eq!(part, expect[from..to], "{from}..{to}");
            }
        }
        assert!(composed.read_exact_at(&mut [0; 2], 9).is_err(), "after the end");
        assert_eq!(digest_of(&composed, Algorithm::Sha256).expect("reads"), Digest::of(expect));
    }

    #[test]
    fn refuses_what_does_not_fit() {
        for (size, gap) in [(7, 6), (10, 2), (10, u64::MAX)] {
            assert!(compose(&file(size, gap)).is_err(), "{size} {gap}");
        }
        let mut longer = file(10, 6);
        longer.header = 4;
        assert!(compose(&longer).is_err());
        longer.name = "g".to_owned();
        assert!(compose(&longer).is_err());
    }
}
