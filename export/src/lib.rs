//! Export: converts a stored model back to files.
//!
//! ```text
//! origin_plan ────────┐
//! safetensors_plan ───┼▶ ExportPlan ──▶ write_file(file, open, sink)
//! mlx_plan, gguf_plan ┘ sizes known     streams, checks, decides nothing
//! ```
//!
//! # Invariants
//! - The size of every file is known before the first byte of it is written.
//! - Names are checked: no file of a plan leads out of the target folder, and no two files have the
//!   same name.
//! - Memory is bounded by a buffer, regardless of the size of a file.
//!
//! Errors are those of `import`, because an export reads the layers that an import has written.

mod array;
mod documents;
mod folder_documents;
mod gguf_file;
mod gguf_metadata;
mod gguf_source;
mod head_order;
mod mlx_folder;
mod new_file;
mod origin_files;
mod projector_file;
mod rounding;
mod safetensors_folder;
mod shards;
mod write_file;

use std::collections::HashSet;

use content::{Algorithm, Digest};

pub use array::ConvertedArray;
pub use folder_documents::{GgufModel, HuggingFaceFiles, folder_documents};
pub use gguf_file::gguf_plan;
pub use gguf_metadata::{ExtraTensor, GgufMetadata, HuggingFaceModel, gguf_metadata};
pub use mlx_folder::mlx_plan;
pub use origin_files::{layers_plan, origin_plan};
pub use safetensors_folder::{FolderOptions, StoredModel, safetensors_plan};
pub use write_file::write_file;

use import::{Error, relative_name};

/// Returns the error for a document with an invalid value, or a value that another format cannot
/// express.
fn refused(document: &str, reason: impl std::fmt::Display) -> Error {
    Error::Source(format!("{document}: {reason}"))
}

/// Loss of an export that cannot express the towers of a model.
const NO_TOWER: &str = "the tower for pictures or sounds is not in these files; `--format origin` has it";

/// Files that an export will write.
#[derive(Clone, Debug, Default)]
pub struct ExportPlan {
    /// Files in the order in which they are written.
    pub files: Vec<ExportFile>,
    /// Facts of the stored model that the files do not hold, one sentence each; empty if nothing is
    /// lost.
    pub losses: Vec<String>,
}

/// File of an export.
///
/// Invariant: the size is the sum of the pieces' sizes.
#[derive(Clone, Debug)]
pub struct ExportFile {
    name: String,
    size: u64,
    pieces: Vec<FilePiece>,
    /// Expected SHA-256 of the whole file, if known.
    pub sha256: Option<Digest>,
}

/// Consecutive bytes of a file.
#[derive(Clone, Debug)]
pub enum FilePiece {
    /// Literal bytes.
    Bytes(Vec<u8>),
    /// A part of a blob.
    Blob {
        /// Digest of the blob.
        blob: Digest,
        /// Offset of the first byte in the blob.
        begin: u64,
        /// Length in bytes.
        size: u64,
    },
    /// This many zero bytes.
    Zeros(u64),
    /// Array that is computed while it is written.
    Array(Box<ConvertedArray>),
}

impl FilePiece {
    /// Length in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Blob { size, .. } | Self::Zeros(size) => *size,
            Self::Array(array) => array.size,
        }
    }
}

impl ExportFile {
    /// Creates a file; `name` is relative to the target folder.
    ///
    /// # Errors
    /// [`Error::Source`] if [`relative_name`] refuses the name, or the sizes overflow.
    pub fn new(name: &str, pieces: Vec<FilePiece>) -> Result<Self, Error> {
        let name = relative_name(name)?;
        let size = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.size()));
        let size = size.ok_or_else(|| Error::Source(format!("the size of `{name}` overflows")))?;
        Ok(Self { name, size, pieces, sha256: None })
    }

    /// Sets the expected digest of the file. A digest of an algorithm other than SHA-256 is
    /// ignored.
    #[must_use]
    pub fn known_as(self, digest: Option<Digest>) -> Self {
        Self { sha256: digest.filter(|digest| digest.algorithm() == Algorithm::Sha256), ..self }
    }

    /// Returns the name: a path relative to the target folder, with slashes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the pieces in the order of their bytes.
    pub fn pieces(&self) -> &[FilePiece] {
        &self.pieces
    }
}

impl ExportPlan {
    /// Creates a plan of these files.
    ///
    /// # Errors
    /// [`Error::Source`] if two files have the same name, or a file has the name of another file's
    /// folder.
    pub fn new(files: Vec<ExportFile>, losses: Vec<String>) -> Result<Self, Error> {
        let mut names = HashSet::new();
        for file in &files {
            if !names.insert(file.name()) {
                return Err(Error::Source(format!("two files of the model are called `{}`", file.name())));
            }
        }
        for file in &files {
            let folders = file.name().match_indices('/').map(|(end, _)| &file.name()[..end]);
            if let Some(folder) = folders.into_iter().find(|folder| names.contains(folder)) {
                return Err(Error::Source(format!("`{folder}` is a file of the model and the folder of another")));
            }
        }
        Ok(Self { files, losses })
    }
}

#[cfg(test)]
mod tests;
