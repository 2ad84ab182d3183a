//! Origin document: describes how to rebuild the source files from the layers.
//!
//! A file consists of its header layer, the tensors' bytes at their offsets, and the contents of
//! gaps. All other bytes are zero.

use serde::{Deserialize, Serialize};

/// Origin document; a layer of type `application/vnd.lode.origin.v1+json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// `gguf`, `huggingface` or `mlx`.
    pub format: String,
    /// Files with tensors, in order. Side files are layers under their file names.
    pub files: Vec<OriginFile>,
}

/// File with tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginFile {
    /// Name of the file, and of the layer with its header.
    pub name: String,
    /// Length of the file in bytes.
    pub size: u64,
    /// Length of the header in bytes.
    pub header: u64,
    /// Tensors in the order of their bytes.
    pub tensors: Vec<OriginTensor>,
    /// Contents of the gaps outside of header and tensors that are not zero.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<OriginGap>,
}

/// Range of a file that is a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginTensor {
    /// Name in the file, if it differs from the name in the blob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Name in the blob.
    pub name: String,
    /// Name of the layer, if it is a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

/// Range of a file outside of header and tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginGap {
    /// Name of the layer that holds the bytes.
    pub layer: String,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}
