//! The origin document: how the source files are rebuilt from the layers.
//!
//! A file is its header layer, then the tensors' bytes at their offsets, then whatever lies in gaps. Bytes that nothing
//! is said about are zero.

use serde::{Deserialize, Serialize};

/// The document; a layer of type `application/vnd.lode.origin.v1+json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// `gguf`, `huggingface` or `mlx`.
    pub format: String,
    /// The files with tensors, in their order. Side files are layers under their own names.
    pub files: Vec<OriginFile>,
}

/// A file with tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginFile {
    /// The file's name, and the name of the layer with its header.
    pub name: String,
    /// Length of the file in bytes.
    pub size: u64,
    /// Length of the header in bytes.
    pub header: u64,
    /// The tensors in the order of their bytes.
    pub tensors: Vec<OriginTensor>,
    /// What lies outside of header and tensors and is not zero.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<OriginGap>,
}

/// A tensor's place in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginTensor {
    /// The name in the file, where it is not the blob's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The name in the blob.
    pub name: String,
    /// The name of the layer, where it is a group's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

/// Bytes outside of header and tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginGap {
    /// The name of the layer that has them.
    pub layer: String,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}
