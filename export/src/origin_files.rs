//! The imported files, bit for bit: files with tensors are rebuilt from the origin document, other
//! files are layers.

use std::sync::Arc;

use manifests::{Layer, media_types};

use super::{ExportFile, ExportPlan, FilePiece, documents};
use import::{Composed, Error, OpenBlob, Origin, OriginFile, ReadAt};

/// Largest sum of bytes in one file that the origin document does not describe, and that are
/// written as zeros. Padding is far smaller. A hostile document could claim any size and keep a
/// disk or a processor busy.
const MAX_GAPS: u64 = 64 << 30;

/// Plans the files from which the model was imported. Reads the header of every tensor blob.
///
/// # Errors
/// [`Error::Source`] if the document and the layers do not match, or a name is hostile;
/// [`Error::Io`] if a blob cannot be read.
pub fn origin_plan(origin: &Origin, layers: &[Layer], open: &Arc<OpenBlob>) -> Result<ExportPlan, Error> {
    let mut files = Vec::new();
    for file in &origin.files {
        files.push(rebuilt(file, layers, open)?);
    }
    let types = [media_types::JSON, media_types::FILE, media_types::LICENSE, media_types::ADAPTER];
    for layer in layers.iter().filter(|layer| types.contains(layer.media_type())) {
        // A license that was given separately, and not as a file, has no name.
        if let Some(name) = layer.name().filter(|name| !name.is_empty()) {
            files.push(documents::whole(name, layer)?);
        }
    }
    ExportPlan::new(files, Vec::new())
}

/// Plans files that are layers, under the given names, without the rest of the model. Losses are
/// reported for the layers in `wanted`.
///
/// # Errors
/// [`Error::Source`] if a name is hostile or occurs twice.
pub fn layers_plan(files: &[(&str, &Layer)], wanted: &[Layer]) -> Result<ExportPlan, Error> {
    let files = files.iter().map(|(name, layer)| documents::whole(name, layer)).collect::<Result<_, _>>()?;
    ExportPlan::new(files, documents::losses(wanted))
}

fn rebuilt(file: &OriginFile, layers: &[Layer], open: &Arc<OpenBlob>) -> Result<ExportFile, Error> {
    let composed = Composed::new(file, layers, Arc::clone(open)).map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidData => Error::Source(format!("`{}` cannot be put together: {e}", file.name)),
        _ => Error::io("read the blobs of", &file.name, e),
    })?;
    let pieces = pieces(&composed);
    let zeros = pieces.iter().filter(|piece| matches!(piece, FilePiece::Zeros(_))).map(FilePiece::size);
    // The gaps are disjoint ranges of one file, so their sum is at most its size.
    let zeros: u64 = zeros.sum();
    if zeros > MAX_GAPS {
        let (name, size) = (&file.name, file.size);
        return Err(Error::Source(format!(
            "`{name}` would have {size} bytes, {zeros} of them in no layer; at most {MAX_GAPS} of those are expected"
        )));
    }
    ExportFile::new(&file.name, pieces)
}

/// Returns the pieces of the whole file. Bytes that the origin document does not describe are
/// zeros.
fn pieces(composed: &Composed) -> Vec<FilePiece> {
    let mut pieces = Vec::new();
    let mut at = 0;
    for piece in composed.pieces() {
        pieces.push(FilePiece::Zeros(piece.offset - at));
        pieces.push(FilePiece::Blob { blob: piece.blob, begin: piece.begin, size: piece.size });
        at = piece.offset + piece.size;
    }
    pieces.push(FilePiece::Zeros(composed.size() - at));
    pieces.retain(|piece| piece.size() > 0);
    pieces
}
