//! Metadata values to be written to a file: owned, and already in the file's encoding.

use super::cursor::Cursor;
use super::{Array, Endian, Value, ValueType};

/// A value in the encoding of a little-endian file.
///
/// Invariant: `bytes` is exactly one value of the type `kind`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedValue {
    kind: ValueType,
    bytes: Vec<u8>,
}

impl OwnedValue {
    /// Creates an array of strings.
    pub fn texts<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> Self {
        let mut out = Vec::new();
        let mut count = 0u64;
        for item in items {
            put_string(item.as_ref().as_bytes(), &mut out);
            count += 1;
        }
        Self::array(ValueType::String, count, &out)
    }

    /// Creates an array of float32.
    pub fn floats(items: impl IntoIterator<Item = f32>) -> Self {
        let bytes: Vec<u8> = items.into_iter().flat_map(f32::to_le_bytes).collect();
        Self::array(ValueType::F32, bytes.len() as u64 / 4, &bytes)
    }

    /// Creates an array of int32.
    pub fn integers(items: impl IntoIterator<Item = i32>) -> Self {
        let bytes: Vec<u8> = items.into_iter().flat_map(i32::to_le_bytes).collect();
        Self::array(ValueType::I32, bytes.len() as u64 / 4, &bytes)
    }

    /// Creates an array of truth values.
    pub fn flags(items: impl IntoIterator<Item = bool>) -> Self {
        let bytes: Vec<u8> = items.into_iter().map(u8::from).collect();
        Self::array(ValueType::Bool, bytes.len() as u64, &bytes)
    }

    fn array(kind: ValueType, count: u64, items: &[u8]) -> Self {
        let bytes = [&kind.id().to_le_bytes()[..], &count.to_le_bytes(), items].concat();
        Self { kind: ValueType::Array, bytes }
    }

    /// Returns the type.
    pub fn kind(&self) -> ValueType {
        self.kind
    }

    /// Returns the bytes in a file, without those of the type.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the value in the form of a value read from a file.
    pub fn value(&self) -> Value<'_> {
        Cursor::new(&self.bytes, Endian::Little).value(self.kind, 0).expect("invariant: the bytes are a whole value")
    }
}

impl From<u32> for OwnedValue {
    fn from(value: u32) -> Self {
        Self::from(&Value::U32(value))
    }
}

impl From<f32> for OwnedValue {
    fn from(value: f32) -> Self {
        Self::from(&Value::F32(value))
    }
}

impl From<bool> for OwnedValue {
    fn from(value: bool) -> Self {
        Self::from(&Value::Bool(value))
    }
}

impl From<&str> for OwnedValue {
    fn from(text: &str) -> Self {
        Self::from(&Value::String(text.as_bytes()))
    }
}

/// Copies a value of another file, of any byte order.
impl From<&Value<'_>> for OwnedValue {
    fn from(value: &Value<'_>) -> Self {
        let mut bytes = Vec::new();
        put(value, &mut bytes);
        Self { kind: value.kind(), bytes }
    }
}

fn put(value: &Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::U8(n) => out.push(*n),
        Value::Bool(n) => out.push(u8::from(*n)),
        Value::I8(n) => out.extend_from_slice(&n.to_le_bytes()),
        Value::U16(n) => out.extend_from_slice(&n.to_le_bytes()),
        Value::I16(n) => out.extend_from_slice(&n.to_le_bytes()),
        Value::U32(n) => out.extend_from_slice(&n.to_le_bytes()),
        Value::I32(n) => out.extend_from_slice(&n.to_le_bytes()),
        Value::F32(n) => out.extend_from_slice(&n.to_le_bytes()),
        Value::U64(n) => out.extend_from_slice(&n.to_le_bytes()),
        Value::I64(n) => out.extend_from_slice(&n.to_le_bytes()),
        Value::F64(n) => out.extend_from_slice(&n.to_le_bytes()),
        Value::String(bytes) => put_string(bytes, out),
        Value::Array(array) => put_array(array, out),
    }
}

fn put_array(array: &Array<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&array.kind.id().to_le_bytes());
    out.extend_from_slice(&array.count.to_le_bytes());
    match array.endian {
        Endian::Little => out.extend_from_slice(array.bytes),
        Endian::Big => array.iter().for_each(|item| put(&item, out)),
    }
}

/// Appends a string: its length, then its bytes.
pub(super) fn put_string(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back() {
        assert_eq!(OwnedValue::from(7u32).value().as_u64(), Some(7));
        assert_eq!(OwnedValue::from("a").value().as_str(), Some("a"));
        let texts = OwnedValue::texts(["a", "", "bc"]);
        let Value::Array(array) = texts.value() else { panic!("{texts:?}") };
        let items: Vec<Value<'_>> = array.iter().collect();
        assert_eq!(items.iter().map(Value::as_str).collect::<Vec<_>>(), [Some("a"), Some(""), Some("bc")]);
        assert_eq!(OwnedValue::from(&texts.value()), texts);
        assert_eq!(OwnedValue::floats([1.5, -2.0]).bytes().len(), 4 + 8 + 8);
    }
}
