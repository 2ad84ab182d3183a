//! The GGUF format, versions 2 and 3, little- and big-endian.
//!
//! ```text
//! magic "GGUF", version u32, tensor count u64, key count u64
//! keys:    length u64, bytes, value type u32, value
//! tensors: length u64, name, dimension count u32, dimensions u64 (innermost first), type u32,
//!          offset u64
//! padding to the alignment, then the data; offsets count from here
//! ```
//!
//! Arrays are parsed lazily: a vocabulary of 262,144 strings is scanned once to find its end, and
//! decoded on demand.
//!
//! Decisions where the specification is silent:
//! - Any power of two is a valid alignment.
//! - Gaps before, between and after tensors, non-zero padding, and tensors out of order are
//!   accepted. The caller has to preserve the contents of gaps.
//! - Strings that are not UTF-8 are accepted as bytes; keys and names that are not UTF-8 are
//!   refused.
//! - Arrays can be nested [`MAX_NESTING`] deep.
//! - A dimension of 0 is an empty tensor.
//! - `Q8_1` has ggml's 36 bytes per block.
//!
//! A tensor's name can be any text of up to 64 bytes and must never be used as a path.

mod cursor;
mod file_type;
mod owned;
mod parse;
mod value;
mod write;

pub use file_type::file_type_name;
pub use owned::OwnedValue;
pub use value::{Array, Value, ValueType};
pub use write::{NewHeader, NewTensor, TensorBytes, write_header};

use crate::GgmlType;

/// Maximum nesting depth of arrays.
pub const MAX_NESTING: usize = 32;

/// Type number that Ollama's converter used for MXFP4 before ggml had one. A block is a scale and
/// 16 bytes as in ggml. But byte `i` contains the elements `2i` and `2i + 1`, where ggml's contains
/// `i` and `i + 16`.
pub const OLLAMA_MXFP4: u32 = 4;
/// The architecture whose files use this number; elsewhere it belongs to a type that was removed
/// from the format.
pub const OLLAMA_MXFP4_ARCHITECTURE: &str = "gptoss";

/// Byte order of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endian {
    /// Little-endian, as nearly all files.
    Little,
    /// Big-endian: version 3 files for such machines; their tensor data is big-endian too.
    Big,
}

/// A file's metadata and tensor infos, borrowed from its bytes.
#[derive(Clone, Debug)]
pub struct Gguf<'a> {
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// Byte order.
    pub endian: Endian,
    /// Alignment of tensors in bytes.
    pub alignment: u64,
    /// Offset of the data in the file, in bytes.
    pub data_start: u64,
    /// Metadata in file order.
    pub metadata: Vec<(&'a str, Value<'a>)>,
    /// Tensors in file order.
    pub tensors: Vec<TensorInfo<'a>>,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// Name; any text, never to be used as a path.
    pub name: &'a str,
    /// Dimensions as in the file: innermost first.
    pub dims: Vec<u64>,
    /// Element or block type.
    pub kind: GgmlType,
    /// Offset in the file of the type number, in bytes, if it is [`OLLAMA_MXFP4`].
    pub ollama_mxfp4_at: Option<usize>,
    /// Offset of the first byte, from the beginning of the data.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

impl TensorInfo<'_> {
    /// Returns the dimensions, outermost first, as in all other formats.
    pub fn shape(&self) -> Vec<u64> {
        self.dims.iter().rev().copied().collect()
    }
}

impl<'a> Gguf<'a> {
    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.metadata.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// Returns the text of a key; `None` if the key is missing, not a string, or not UTF-8.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.get(key)?.as_str()
    }

    /// Returns the non-negative integer of a key, of any width.
    pub fn unsigned(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    /// Returns the number of a key.
    pub fn float(&self, key: &str) -> Option<f64> {
        self.get(key)?.as_f64()
    }

    /// Returns the boolean of a key.
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// Returns the array of a key.
    pub fn array(&self, key: &str) -> Option<Array<'a>> {
        match self.get(key)? {
            Value::Array(array) => Some(*array),
            _ => None,
        }
    }
}
