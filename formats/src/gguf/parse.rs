//! Parsing of the header.

use std::collections::HashSet;

use super::cursor::Cursor;
use super::{Endian, Gguf, OLLAMA_MXFP4, OLLAMA_MXFP4_ARCHITECTURE, TensorInfo, Value};
use crate::dtype::element_count;
use crate::{Error, GgmlType};

/// Minimum bytes of a key with its value, and of a tensor info. Counts are checked against the
/// remaining bytes before any allocation.
const LEAST_PER_KEY: u64 = 8 + 1 + 4 + 1;
const LEAST_PER_TENSOR: u64 = 8 + 4 + 8 + 4 + 8;
const MAX_KEY: u64 = 65_535;
const MAX_NAME: u64 = 64;
const MAX_DIMENSIONS: u32 = 4;

impl<'a> Gguf<'a> {
    /// Parses a whole file: tensors must be within `bytes` and must not overlap.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let gguf = header(bytes)?;
        gguf.check_extents(bytes.len() as u64)?;
        Ok(gguf)
    }

    /// Parses the header only; `bytes` can end anywhere after it. The presence of the tensors' data
    /// is not checked, for headers that are stored without the data.
    pub fn parse_header(bytes: &'a [u8]) -> Result<Self, Error> {
        header(bytes)
    }

    /// Checks the tensors against the length of the file in bytes: they must be within it and not
    /// overlap.
    pub fn check_extents(&self, file_size: u64) -> Result<(), Error> {
        let room = file_size.saturating_sub(self.data_start);
        let mut order: Vec<&TensorInfo<'_>> = self.tensors.iter().collect();
        order.sort_by_key(|tensor| (tensor.offset, tensor.size));
        let mut end = 0;
        let mut before = "";
        for tensor in order {
            let at = self.data_start.saturating_add(tensor.offset) as usize;
            let refuse = |reason: String| Err(Error::gguf(at, format!("tensor `{}`: {reason}", tensor.name)));
            let tensor_end = tensor.offset.checked_add(tensor.size);
            if tensor_end.is_none_or(|tensor_end| tensor_end > room) || self.data_start > file_size {
                let (offset, size) = (tensor.offset, tensor.size);
                return refuse(format!("{size} bytes at {offset} of {room} bytes of data; the file was cut or lies"));
            }
            if tensor.offset < end {
                return refuse(format!("it overlaps `{before}`"));
            }
            end = tensor.offset + tensor.size;
            before = tensor.name;
        }
        Ok(())
    }
}

fn header(bytes: &[u8]) -> Result<Gguf<'_>, Error> {
    let (version, endian) = magic_and_version(bytes)?;
    let mut cursor = Cursor::new(bytes, endian);
    cursor.at = 8;
    let tensor_count = cursor.count("tensors", LEAST_PER_TENSOR)?;
    let key_count = cursor.count("keys", LEAST_PER_KEY)?;
    let metadata = keys(&mut cursor, key_count)?;
    let alignment = alignment(&metadata)?;
    let has_ollama_mxfp4 = metadata
        .iter()
        .any(|(key, value)| *key == "general.architecture" && value.as_str() == Some(OLLAMA_MXFP4_ARCHITECTURE));
    let tensors = tensors(&mut cursor, tensor_count, alignment, has_ollama_mxfp4)?;
    let data_start = (cursor.at as u64).next_multiple_of(alignment);
    Ok(Gguf { version, endian, alignment, data_start, metadata, tensors })
}

/// Checks the magic; returns the version and the byte order.
fn magic_and_version(bytes: &[u8]) -> Result<(u32, Endian), Error> {
    let Some(magic) = bytes.first_chunk::<4>() else {
        return Err(Error::gguf_cut(0, format!("the file has {} bytes", bytes.len())));
    };
    if magic != b"GGUF" {
        return Err(Error::gguf(0, format!("it begins with `{}`, expected `GGUF`", magic.escape_ascii())));
    }
    let Some(field) = bytes.get(4..8).and_then(<[u8]>::first_chunk::<4>) else {
        return Err(Error::gguf_cut(4, "the file ends within the version"));
    };
    let little = u32::from_le_bytes(*field);
    let big = u32::from_be_bytes(*field);
    match (little, big) {
        (2 | 3, _) => Ok((little, Endian::Little)),
        (_, 2 | 3) => Ok((big, Endian::Big)),
        _ => {
            Err(Error::gguf(4, format!("version {little} is not supported, expected 2 or 3; convert the model again")))
        }
    }
}

fn keys<'a>(cursor: &mut Cursor<'a>, count: u64) -> Result<Vec<(&'a str, Value<'a>)>, Error> {
    let mut metadata = Vec::with_capacity(count as usize);
    let mut seen = HashSet::with_capacity(count as usize);
    for _ in 0..count {
        let at = cursor.at;
        let key = cursor.name("key", MAX_KEY)?;
        if key.is_empty() {
            return Err(Error::gguf(at, "a key is empty"));
        }
        if !seen.insert(key) {
            return Err(Error::gguf(at, format!("duplicate key `{key}`")));
        }
        let kind = cursor.value_type()?;
        metadata.push((key, cursor.value(kind, 0)?));
    }
    Ok(metadata)
}

fn alignment(metadata: &[(&str, Value<'_>)]) -> Result<u64, Error> {
    match metadata.iter().find(|(key, _)| *key == "general.alignment") {
        None => Ok(32),
        Some((_, Value::U32(n))) if n.is_power_of_two() => Ok((*n).into()),
        Some((_, Value::U32(n))) => Err(Error::gguf(0, format!("general.alignment is {n}, expected a power of two"))),
        Some(_) => Err(Error::gguf(0, "general.alignment is not a uint32")),
    }
}

fn tensors<'a>(
    cursor: &mut Cursor<'a>,
    count: u64,
    alignment: u64,
    has_ollama_mxfp4: bool,
) -> Result<Vec<TensorInfo<'a>>, Error> {
    let mut tensors = Vec::with_capacity(count as usize);
    let mut seen = HashSet::with_capacity(count as usize);
    for _ in 0..count {
        let at = cursor.at;
        let tensor = tensor(cursor, has_ollama_mxfp4)?;
        if !seen.insert(tensor.name) {
            return Err(Error::gguf(at, format!("duplicate tensor `{}`", tensor.name)));
        }
        if tensor.offset % alignment != 0 {
            let (name, offset) = (tensor.name, tensor.offset);
            return Err(Error::gguf(at, format!("tensor `{name}`: offset {offset} is not a multiple of {alignment}")));
        }
        tensors.push(tensor);
    }
    Ok(tensors)
}

fn tensor<'a>(cursor: &mut Cursor<'a>, has_ollama_mxfp4: bool) -> Result<TensorInfo<'a>, Error> {
    let at = cursor.at;
    let name = cursor.name("tensor name", MAX_NAME)?;
    let refuse = |reason: String| Error::gguf(at, format!("tensor `{name}`: {reason}"));
    let dimensions = cursor.u32("a number of dimensions")?;
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        return Err(refuse(format!("{dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}")));
    }
    let dims: Vec<u64> = (0..dimensions).map(|_| cursor.u64("a dimension")).collect::<Result<_, _>>()?;
    let type_at = cursor.at;
    let id = cursor.u32("a tensor type")?;
    let is_ollama_mxfp4 = has_ollama_mxfp4 && id == OLLAMA_MXFP4;
    let kind = if is_ollama_mxfp4 { Ok(GgmlType::MXFP4) } else { GgmlType::from_id(id) };
    let kind = kind.map_err(|e| refuse(format!("type {id} {e}")))?;
    let offset = cursor.u64("a tensor offset")?;
    let Some(row) = kind.row_bytes(dims[0]) else {
        let block = kind.block_elements();
        return Err(refuse(format!("{kind} rows of {} elements, expected a multiple of {block}", dims[0])));
    };
    let size = element_count(&dims).and_then(|_| element_count(&dims[1..])?.checked_mul(row));
    let size = size.filter(|size| i64::try_from(*size).is_ok());
    let size = size.ok_or_else(|| refuse(format!("the size of {dims:?} overflows")))?;
    let ollama_mxfp4_at = is_ollama_mxfp4.then_some(type_at);
    Ok(TensorInfo { name, dims, kind, ollama_mxfp4_at, offset, size })
}
