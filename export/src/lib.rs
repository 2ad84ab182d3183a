//! Export: a stored model becomes files again.
//!
//! ```text
//! origin_plan ────────┐
//! safetensors_plan ───┼▶ ExportPlan ──▶ write_file(file, open, sink)
//! mlx_plan, gguf_plan ┘ sizes known     streams, checks, decides nothing
//! ```
//!
//! # Invariants
//! - The size of every file is known before a byte of it is written.
//! - Names are checked: no file of a plan leads out of the folder it is written to, and no two have one name.
//! - Memory is bounded by a buffer, whatever the size of a file.
//!
//! Errors are those of `import`: what an export reads is what an import has written.

mod array;
mod documents;
mod folder_documents;
mod gguf_file;
mod gguf_metadata;
mod gguf_source;
mod head_order;
mod mlx_folder;
mod origin_files;
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

/// What a document says that cannot be, or cannot be said in another format.
fn refused(document: &str, reason: impl std::fmt::Display) -> Error {
    Error::Source(format!("{document}: {reason}"))
}

/// The files that an export will write.
#[derive(Clone, Debug, Default)]
pub struct ExportPlan {
    /// In the order in which they are written.
    pub files: Vec<ExportFile>,
    /// What the stored model has and these files have not; empty where nothing is lost.
    pub losses: Vec<String>,
}

/// A file to be written.
///
/// Invariant: the size is the sum of the pieces' sizes.
#[derive(Clone, Debug)]
pub struct ExportFile {
    name: String,
    size: u64,
    pieces: Vec<Piece>,
    /// What the whole file must hash to, where that is known.
    pub sha256: Option<Digest>,
}

/// Bytes of a file, one after the other.
#[derive(Clone, Debug)]
pub enum Piece {
    /// These.
    Bytes(Vec<u8>),
    /// A part of a blob.
    Blob {
        /// Which.
        blob: Digest,
        /// First byte in the blob.
        begin: u64,
        /// Length in bytes.
        size: u64,
    },
    /// So many zeros.
    Zeros(u64),
    /// An array that is computed.
    Array(Box<ConvertedArray>),
}

impl Piece {
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
    /// A file of that name, relative to the folder it is written to.
    ///
    /// # Errors
    /// [`Error::Source`] for a name that [`relative_name`] refuses, and where the sizes overflow.
    pub fn new(name: &str, pieces: Vec<Piece>) -> Result<Self, Error> {
        let name = relative_name(name)?;
        let size = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.size()));
        let size = size.ok_or_else(|| Error::Source(format!("the size of `{name}` overflows")))?;
        Ok(Self { name, size, pieces, sha256: None })
    }

    /// With the digest that it must have. One of another algorithm than SHA-256 is not looked at.
    #[must_use]
    pub fn known_as(self, digest: Option<Digest>) -> Self {
        Self { sha256: digest.filter(|digest| digest.algorithm() == Algorithm::Sha256), ..self }
    }

    /// Relative, with slashes, inside of the folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What it is made of, in the order of its bytes.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }
}

impl ExportPlan {
    /// A plan for these files.
    ///
    /// # Errors
    /// [`Error::Source`] where two files have one name, or one has the name of another's folder.
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
