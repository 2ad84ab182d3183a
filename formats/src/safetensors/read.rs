//! Parsing of the header.
//!
//! Decisions where the format leaves a choice: unknown fields of a tensor are ignored,
//! `"__metadata__": null` means no metadata, any JSON white space can pad the header, and names can
//! be any text. Duplicate keys are refused, also within the metadata.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};

use super::{Header, MAX_DIMENSIONS, MAX_ENTRIES, MAX_HEADER, TensorInfo};
use crate::{Dtype, Error};

impl Header {
    /// Returns how many bytes of header follow the first eight, given these and the file's length
    /// in bytes.
    ///
    /// For callers that read instead of map: with this many more bytes, [`Header::parse`] succeeds.
    pub fn length(first: [u8; 8], file_size: u64) -> Result<u64, Error> {
        let length = u64::from_le_bytes(first);
        if length > MAX_HEADER {
            let reason = format!("the header claims {length} bytes, {MAX_HEADER} are allowed");
            return Err(Error::safetensors(0, reason));
        }
        let room = file_size.saturating_sub(8);
        if length > room {
            let reason = format!("the header claims {length} bytes, the file has {room} after the length; it was cut");
            return Err(Error::safetensors(0, reason));
        }
        Ok(length)
    }

    /// Parses the header of a file from the file's first bytes. `file_size` is the length of the
    /// whole file.
    pub fn parse(beginning: &[u8], file_size: u64) -> Result<Self, Error> {
        let Some((first, rest)) = beginning.split_first_chunk::<8>() else {
            let reason = format!("the file has {} bytes, a header length alone has 8", beginning.len());
            return Err(Error::safetensors(0, reason));
        };
        let length = Self::length(*first, file_size)?;
        let Some(text) = rest.get(..length as usize) else {
            return Err(Error::safetensors(8, "the header was cut"));
        };
        if text.first() != Some(&b'{') {
            return Err(Error::safetensors(8, "the header does not begin with `{`"));
        }
        let wire: WireHeader = serde_json::from_slice(text).map_err(|e| json_error(text, &e))?;
        let data_start = 8 + length;
        let mut tensors = wire.tensors;
        tensors.sort_by_key(|tensor| (tensor.begin, tensor.end));
        check_layout(&tensors, data_start, file_size - data_start)?;
        Ok(Self { tensors, metadata: wire.metadata, data_start })
    }
}

/// Converts a JSON error. `serde_json` reports lines and columns, from which the offset is
/// computed.
fn json_error(text: &[u8], error: &serde_json::Error) -> Error {
    let before: usize =
        text.split_inclusive(|b| *b == b'\n').take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
    Error::safetensors((8 + before + error.column().saturating_sub(1)) as u64, error.to_string())
}

fn check_layout(tensors: &[TensorInfo], data_start: u64, data_size: u64) -> Result<(), Error> {
    let mut at = 0;
    for tensor in tensors {
        let refuse = |reason: String| {
            let name = shorten(&tensor.name);
            Err(Error::safetensors(data_start.saturating_add(tensor.begin), format!("tensor `{name}`: {reason}")))
        };
        if tensor.end > data_size {
            return refuse(format!("it ends at byte {} of {data_size} bytes of data; the file was cut", tensor.end));
        }
        if tensor.begin != at {
            return refuse(format!(
                "it begins at byte {} of the data, expected {at}: no gaps, no overlaps",
                tensor.begin
            ));
        }
        at = tensor.end;
    }
    if at != data_size {
        return Err(Error::safetensors(data_start + at, format!("{} bytes belong to no tensor", data_size - at)));
    }
    Ok(())
}

fn shorten(name: &str) -> String {
    name.chars().take(120).collect()
}

struct WireHeader {
    tensors: Vec<TensorInfo>,
    metadata: BTreeMap<String, String>,
}

struct WireTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for WireTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(TensorVisitor)
    }
}

/// Implemented by hand, because a derived implementation would also accept a list of the fields.
struct TensorVisitor;

impl<'de> Visitor<'de> for TensorVisitor {
    type Value = WireTensor;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `dtype`, `shape` and `data_offsets`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WireTensor, A::Error> {
        let (mut dtype, mut shape, mut data_offsets) = (None, None, None);
        while let Some(key) = map.next_key::<String>()? {
            let twice = match key.as_str() {
                "dtype" => dtype.replace(map.next_value()?).is_some(),
                "shape" => shape.replace(map.next_value()?).is_some(),
                "data_offsets" => data_offsets.replace(map.next_value()?).is_some(),
                _ => {
                    map.next_value::<de::IgnoredAny>()?;
                    false
                }
            };
            if twice {
                return Err(de::Error::custom(format!("duplicate field `{key}`")));
            }
        }
        Ok(WireTensor {
            dtype: dtype.ok_or_else(|| de::Error::missing_field("dtype"))?,
            shape: shape.ok_or_else(|| de::Error::missing_field("shape"))?,
            data_offsets: data_offsets.ok_or_else(|| de::Error::missing_field("data_offsets"))?,
        })
    }
}

impl WireTensor {
    fn check(self, name: String) -> Result<TensorInfo, String> {
        let shown = shorten(&name);
        if self.shape.len() > MAX_DIMENSIONS {
            let found = self.shape.len();
            return Err(format!("tensor `{shown}`: {found} dimensions, {MAX_DIMENSIONS} are allowed"));
        }
        let dtype =
            Dtype::parse(&self.dtype).ok_or_else(|| format!("tensor `{shown}`: unknown dtype `{}`", self.dtype))?;
        let (begin, end) = self.data_offsets;
        let expected = dtype.byte_count(&self.shape).map_err(|e| format!("tensor `{shown}`: {e}"))?;
        if end.checked_sub(begin) != Some(expected) {
            let shape = &self.shape;
            return Err(format!(
                "tensor `{shown}`: {dtype} {shape:?} has {expected} bytes, its offsets are {begin} and {end}"
            ));
        }
        Ok(TensorInfo { name, dtype, shape: self.shape, begin, end })
    }
}

impl<'de> Deserialize<'de> for WireHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = WireHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WireHeader, A::Error> {
        let mut seen = HashSet::new();
        let mut header = WireHeader { tensors: Vec::new(), metadata: BTreeMap::new() };
        while let Some(name) = map.next_key::<String>()? {
            if seen.len() == MAX_ENTRIES {
                return Err(too_many());
            }
            if !seen.insert(name.clone()) {
                return Err(de::Error::custom(format!("duplicate tensor `{}`", shorten(&name))));
            }
            if name == "__metadata__" {
                header.metadata = map.next_value::<Option<UniqueMap>>()?.map(|m| m.0).unwrap_or_default();
            } else {
                header.tensors.push(map.next_value::<WireTensor>()?.check(name).map_err(de::Error::custom)?);
            }
        }
        Ok(header)
    }
}

fn too_many<E: de::Error>() -> E {
    E::custom(format!("more than {MAX_ENTRIES} entries"))
}

struct UniqueMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for UniqueMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueMapVisitor)
    }
}

struct UniqueMapVisitor;

impl<'de> Visitor<'de> for UniqueMapVisitor {
    type Value = UniqueMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UniqueMap, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            if entries.len() == MAX_ENTRIES {
                return Err(too_many());
            }
            if entries.insert(key.clone(), value).is_some() {
                return Err(de::Error::custom(format!("duplicate metadata key `{}`", shorten(&key))));
            }
        }
        Ok(UniqueMap(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_an_object() {
        let file = |header: &str| {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend_from_slice(header.as_bytes());
            bytes.extend_from_slice(&[0; 8]);
            bytes
        };
        for (header, accepted) in
            [(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, true), (r#"{"a":["F32",[2],[0,8]]}"#, false)]
        {
            let bytes = file(header);
            assert_eq!(Header::parse(&bytes, bytes.len() as u64).is_ok(), accepted, "{header}");
        }
    }

    #[test]
    fn what_grows_without_end_is_refused() {
        let refused = |header: &str| {
            let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
            Header::parse(&bytes, bytes.len() as u64).expect_err("too much").to_string()
        };
        let shape = "1,".repeat(MAX_DIMENSIONS);
        let error = refused(&format!(r#"{{"a":{{"dtype":"F32","shape":[{shape}1],"data_offsets":[0,4]}}}}"#));
        assert!(error.contains("65 dimensions"), "{error}");
        let entries: Vec<String> = (0..=MAX_ENTRIES).map(|entry| format!("\"{entry}\":\"\"")).collect();
        let error = refused(&format!(r#"{{"__metadata__":{{{}}}}}"#, entries.join(",")));
        assert!(error.contains("more than 1048576 entries"), "{error}");
    }
}
