//! Writing a header: version 3, little-endian.
//!
//! For the layout, see [`super`]. Tensors are written in the given order. Each begins at a multiple
//! of the alignment, and the last one is padded to it too, as the reference writers do.

use std::collections::HashSet;

use super::owned::put_string;
use super::{OwnedValue, Value};
use crate::dtype::element_count;
use crate::{Error, GgmlType};

const VERSION: u32 = 3;
/// Default alignment.
const ALIGNMENT: u64 = 32;
/// Maximum alignment that is written, in bytes: readers map pages, and each tensor may need this
/// much padding.
const MAX_ALIGNMENT: u32 = 64 << 10;
/// ggml stores names in 64 bytes, including a terminating zero.
const LONGEST_NAME: usize = 63;
const MAX_DIMENSIONS: usize = 4;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTensor {
    /// Name in the file.
    pub name: String,
    /// Element or block type.
    pub kind: GgmlType,
    /// Dimensions as in the file: innermost first.
    pub dims: Vec<u64>,
}

/// Location of a tensor's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorBytes {
    /// Offset of the first byte, from the beginning of the data; a multiple of the alignment.
    pub offset: u64,
    /// Length in bytes. Zeros follow up to the next multiple of the alignment.
    pub size: u64,
}

/// A header, to be followed by the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewHeader {
    /// Bytes of the header, padded with zeros to the alignment: the data begins right after them.
    pub bytes: Vec<u8>,
    /// Location of each tensor, in the given order.
    pub places: Vec<TensorBytes>,
    /// Length of the data in bytes, including the padding after the last tensor.
    pub data_size: u64,
}

/// Writes a header. The alignment is 32 bytes unless the metadata contains the key
/// `general.alignment`.
///
/// # Errors
/// Two keys or two tensors have the same name, a name is empty or too long for other readers,
/// dimensions are not representable, or the alignment is not a power of two or exceeds 64 KiB.
pub fn write_header(metadata: &[(String, OwnedValue)], tensors: &[NewTensor]) -> Result<NewHeader, Error> {
    let alignment = alignment(metadata)?;
    let mut bytes = b"GGUF".to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
    let mut seen = HashSet::new();
    for (key, value) in metadata {
        if key.is_empty() || key.len() > 65_535 || !seen.insert(key.as_str()) {
            return Err(fail(format!("key `{key}` is empty, too long or a duplicate")));
        }
        put_string(key.as_bytes(), &mut bytes);
        bytes.extend_from_slice(&value.kind().id().to_le_bytes());
        bytes.extend_from_slice(value.bytes());
    }
    let mut places = Vec::with_capacity(tensors.len());
    let mut data_size = 0u64;
    let mut seen = HashSet::new();
    for tensor in tensors {
        let refuse = |reason: String| fail(format!("tensor `{}`: {reason}", tensor.name));
        if !seen.insert(tensor.name.as_str()) {
            return Err(refuse("duplicate name".to_owned()));
        }
        let size = size(tensor).map_err(refuse)?;
        let place = TensorBytes { offset: data_size, size };
        let end = data_size.checked_add(size).and_then(|end| end.checked_next_multiple_of(alignment));
        data_size = end.ok_or_else(|| refuse("the size of the file overflows".to_owned()))?;
        put_tensor(tensor, place, &mut bytes);
        places.push(place);
    }
    bytes.resize(bytes.len().next_multiple_of(alignment as usize), 0);
    Ok(NewHeader { bytes, places, data_size })
}

fn fail(reason: String) -> Error {
    Error::Unwritable { reason }
}

fn alignment(metadata: &[(String, OwnedValue)]) -> Result<u64, Error> {
    match metadata.iter().find(|(key, _)| key == "general.alignment").map(|(_, value)| value.value()) {
        None => Ok(ALIGNMENT),
        Some(Value::U32(n)) if n.is_power_of_two() && n <= MAX_ALIGNMENT => Ok(n.into()),
        Some(other) => Err(fail(format!(
            "general.alignment is {other:?}, expected a power of two as uint32, {MAX_ALIGNMENT} at most"
        ))),
    }
}

/// Returns the length of a tensor in bytes, or why a file cannot contain it.
fn size(tensor: &NewTensor) -> Result<u64, String> {
    if tensor.name.is_empty() || tensor.name.len() > LONGEST_NAME {
        return Err(format!("a name of {} bytes, expected 1 to {LONGEST_NAME}", tensor.name.len()));
    }
    let (kind, dims) = (tensor.kind, &tensor.dims);
    if !(1..=MAX_DIMENSIONS).contains(&dims.len()) {
        return Err(format!("{} dimensions, expected 1 to {MAX_DIMENSIONS}", dims.len()));
    }
    let row = kind.row_bytes(dims[0]).ok_or_else(|| {
        format!("{kind} rows of {} elements, expected a multiple of {}", dims[0], kind.block_elements())
    })?;
    let size = element_count(dims).and_then(|_| element_count(&dims[1..])?.checked_mul(row));
    size.filter(|size| i64::try_from(*size).is_ok()).ok_or_else(|| format!("the size of {dims:?} overflows"))
}

fn put_tensor(tensor: &NewTensor, place: TensorBytes, out: &mut Vec<u8>) {
    put_string(tensor.name.as_bytes(), out);
    out.extend_from_slice(&(tensor.dims.len() as u32).to_le_bytes());
    for dimension in &tensor.dims {
        out.extend_from_slice(&dimension.to_le_bytes());
    }
    out.extend_from_slice(&tensor.kind.id().to_le_bytes());
    out.extend_from_slice(&place.offset.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gguf;

    fn tensor(name: &str, kind: GgmlType, dims: &[u64]) -> NewTensor {
        NewTensor { name: name.to_owned(), kind, dims: dims.to_vec() }
    }

    #[test]
    fn is_read_back() {
        let metadata = [
            ("general.architecture".to_owned(), OwnedValue::from("llama")),
            ("tokens".to_owned(), OwnedValue::texts(["a", "é", ""])),
            ("general.alignment".to_owned(), OwnedValue::from(64u32)),
        ];
        let tensors = [tensor("a", GgmlType::F32, &[3]), tensor("b", GgmlType::Q4_0, &[64, 5, 2])];
        let header = write_header(&metadata, &tensors).expect("a header");
        assert_eq!(header.places, [TensorBytes { offset: 0, size: 12 }, TensorBytes { offset: 64, size: 360 }]);
        assert_eq!((header.bytes.len() % 64, header.data_size), (0, 448));
        let file = [&header.bytes[..], &vec![0; header.data_size as usize]].concat();
        let gguf = Gguf::parse(&file).expect("it is read");
        assert_eq!((gguf.version, gguf.alignment, gguf.data_start), (3, 64, header.bytes.len() as u64));
        let keys: Vec<(String, OwnedValue)> =
            gguf.metadata.iter().map(|(key, value)| ((*key).to_owned(), OwnedValue::from(value))).collect();
        assert_eq!(keys, metadata);
        for ((read, written), place) in gguf.tensors.iter().zip(&tensors).zip(&header.places) {
            assert_eq!((read.name, read.kind, &read.dims), (written.name.as_str(), written.kind, &written.dims));
            assert_eq!((read.offset, read.size), (place.offset, place.size));
        }
    }

    #[test]
    fn refuses_what_nobody_reads() {
        let long = "x".repeat(64);
        for (tensors, expect) in [
            (vec![tensor("a", GgmlType::F32, &[1]), tensor("a", GgmlType::F32, &[1])], "duplicate"),
            (vec![tensor(&long, GgmlType::F32, &[1])], "64 bytes"),
            (vec![tensor("a", GgmlType::F32, &[])], "0 dimensions"),
            (vec![tensor("a", GgmlType::Q4_K, &[128])], "multiple of 256"),
            (vec![tensor("a", GgmlType::F32, &[1 << 32, 1 << 32])], "overflows"),
        ] {
            let error = write_header(&[], &tensors).expect_err(expect).to_string();
            assert!(error.contains(expect), "{error} should say {expect}");
        }
        let twice = ["a", "a"].map(|key| (key.to_owned(), OwnedValue::from(true)));
        assert!(write_header(&twice, &[]).is_err());
        for alignment in [24u32, 1 << 17] {
            let crooked = [("general.alignment".to_owned(), OwnedValue::from(alignment))];
            assert!(write_header(&crooked, &[]).is_err(), "{alignment}");
        }
    }
}
