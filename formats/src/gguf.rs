//! The GGUF format, versions 2 and 3, little- and big-endian.
//!
//! ```text
//! magic "GGUF", version u32, tensor count u64, key count u64
//! keys:    length u64, bytes, value type u32, value
//! tensors: length u64, name, dimension count u32, dimensions u64 (innermost first), type u32, offset u64
//! padding to the alignment, then the data; offsets count from here
//! ```
//!
//! Parsing is lazy about arrays: a vocabulary of 262,144 strings is walked once to find its end, and decoded when
//! somebody asks.
//!
//! What the specification leaves open is decided so: any power of two is an alignment; gaps before, between and after
//! tensors, padding that is not zero, and tensors out of order are accepted (what lies in gaps is the caller's to
//! keep); strings that are not UTF-8 are accepted as bytes, keys and names that are not are refused; arrays may be
//! nested [`MAX_NESTING`] deep; a dimension of 0 is an empty tensor; `Q8_1` has ggml's 36 bytes a block. A tensor's name
//! may be any text of up to 64 bytes and must never be used as a path.

mod file_type;
mod owned;
mod parse;
mod value;
mod write;

pub use file_type::file_type_name;
pub use owned::OwnedValue;
pub use value::{Array, Value, ValueType};
pub use write::{NewHeader, NewTensor, Place, write_header};

use crate::GgmlType;

/// How deep arrays may be nested.
pub const MAX_NESTING: usize = 32;

/// The number that Ollama's converter gave to MXFP4 before ggml had one for it. A block is a scale and 16 bytes as in ggml's, but
/// byte `i` has the numbers `2i` and `2i + 1`, where ggml's has `i` and `i + 16`.
pub const OLLAMA_MXFP4: u32 = 4;
/// The architecture whose files have it; elsewhere the number is that of a type that was removed from the format.
pub const OLLAMA_MXFP4_ARCHITECTURE: &str = "gptoss";

/// Byte order of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endian {
    /// As nearly all files are.
    Little,
    /// Version 3 files for big-endian machines; their tensor data is big-endian too.
    Big,
}

/// A file's metadata and tensor infos, borrowed from its bytes.
#[derive(Clone, Debug)]
pub struct Gguf<'a> {
    /// 2 or 3.
    pub version: u32,
    /// Byte order.
    pub endian: Endian,
    /// The alignment of tensors, in bytes.
    pub alignment: u64,
    /// Where the data begins, in bytes.
    pub data_start: u64,
    /// Metadata in file order.
    pub metadata: Vec<(&'a str, Value<'a>)>,
    /// Tensors in file order.
    pub tensors: Vec<TensorInfo<'a>>,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// The name; any text, never to be used as a path.
    pub name: &'a str,
    /// Dimensions as in the file: innermost first.
    pub dims: Vec<u64>,
    /// Element or block type.
    pub kind: GgmlType,
    /// Where the type's number stands, in bytes from the beginning of the file, if it is [`OLLAMA_MXFP4`].
    pub ollama_mxfp4_at: Option<usize>,
    /// First byte, counted from the beginning of the data.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

impl TensorInfo<'_> {
    /// Dimensions with the outermost first, as everybody else has them.
    pub fn shape(&self) -> Vec<u64> {
        self.dims.iter().rev().copied().collect()
    }
}

impl<'a> Gguf<'a> {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.metadata.iter().find(|(name, _)| *name == key).map(|(_, value)| value)
    }

    /// The value of a key that holds text, where it is there, is a string and is UTF-8.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.get(key)?.as_str()
    }

    /// The value of a key that holds a whole number, of whatever width.
    pub fn unsigned(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    /// The value of a key that holds a number.
    pub fn float(&self, key: &str) -> Option<f64> {
        self.get(key)?.as_f64()
    }

    /// The value of a key that holds a truth value.
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// The value of a key that holds an array.
    pub fn array(&self, key: &str) -> Option<Array<'a>> {
        match self.get(key)? {
            Value::Array(array) => Some(*array),
            _ => None,
        }
    }
}
