//! Reads numbers, strings and values from the bytes of a GGUF file.

use super::{Array, Endian, MAX_NESTING, Value, ValueType};
use crate::Error;

/// Maximum number of keys and of tensors in a file: ten times those of the largest models. It keeps
/// the parsed header in proportion to its size.
const MAX_ENTRIES: u64 = 1 << 20;

/// A position in the bytes.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
    pub(super) endian: Endian,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Self { bytes, at: 0, endian }
    }

    pub(super) fn remaining(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    pub(super) fn take(&mut self, length: u64, what: &str) -> Result<&'a [u8], Error> {
        if length > self.remaining() {
            let reason = format!("{what} of {length} bytes, the file has {} left; it was cut", self.remaining());
            return Err(Error::gguf_cut(self.at, reason));
        }
        let bytes = &self.bytes[self.at..self.at + length as usize];
        self.at += length as usize;
        Ok(bytes)
    }

    pub(super) fn fixed<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Error> {
        let mut bytes = *self.take(N as u64, what)?.first_chunk::<N>().expect("invariant: N bytes were taken");
        if self.endian == Endian::Big {
            bytes.reverse();
        }
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Error> {
        self.fixed(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Error> {
        self.fixed(what).map(u64::from_le_bytes)
    }

    pub(super) fn count(&mut self, what: &str, least: u64) -> Result<u64, Error> {
        let at = self.at;
        let count = self.u64("a count")?;
        if count > MAX_ENTRIES {
            return Err(Error::gguf(at, format!("{count} {what}, {MAX_ENTRIES} are allowed")));
        }
        if count > self.remaining() / least {
            let reason = format!("{count} {what} do not fit into the {} bytes that remain", self.remaining());
            return Err(Error::gguf_cut(at, reason));
        }
        Ok(count)
    }

    pub(super) fn name(&mut self, what: &str, longest: u64) -> Result<&'a str, Error> {
        let at = self.at;
        let length = self.u64(what)?;
        if length > longest {
            return Err(Error::gguf(at, format!("a {what} of {length} bytes, {longest} are allowed")));
        }
        std::str::from_utf8(self.take(length, what)?).map_err(|_| Error::gguf(at, format!("a {what} is not UTF-8")))
    }

    pub(super) fn value_type(&mut self) -> Result<ValueType, Error> {
        let at = self.at;
        let id = self.u32("a value type")?;
        ValueType::from_id(id).ok_or_else(|| Error::gguf(at, format!("value type {id} is not known")))
    }

    pub(super) fn value(&mut self, kind: ValueType, depth: usize) -> Result<Value<'a>, Error> {
        const WHAT: &str = "a value";
        Ok(match kind {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.fixed(WHAT)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.fixed(WHAT)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.fixed(WHAT)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.fixed(WHAT)?)),
            ValueType::U32 => Value::U32(self.u32(WHAT)?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.fixed(WHAT)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.fixed(WHAT)?)),
            ValueType::U64 => Value::U64(self.u64(WHAT)?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.fixed(WHAT)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.fixed(WHAT)?)),
            ValueType::Bool => Value::Bool(self.bool()?),
            ValueType::String => {
                let length = self.u64("a string")?;
                Value::String(self.take(length, "a string")?)
            }
            ValueType::Array => Value::Array(self.array(depth + 1)?),
        })
    }

    pub(super) fn bool(&mut self) -> Result<bool, Error> {
        let at = self.at;
        match u8::from_le_bytes(self.fixed("a bool")?) {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Error::gguf(at, format!("a bool is {other}, expected 0 or 1"))),
        }
    }

    pub(super) fn array(&mut self, depth: usize) -> Result<Array<'a>, Error> {
        if depth > MAX_NESTING {
            return Err(Error::gguf(self.at, format!("arrays are nested more than {MAX_NESTING} deep")));
        }
        let kind = self.value_type()?;
        let at = self.at;
        let count = self.u64("an array length")?;
        // Minimum size of an item: its width if it is fixed, else eight bytes. A string has at
        // least eight, an array twelve.
        let least = kind.width().map_or(8, |width| width as u64);
        if count > self.remaining() / least {
            let reason = format!(
                "an array of {count} items, the file has {} bytes left; it is truncated or malformed",
                self.remaining()
            );
            return Err(Error::gguf_cut(at, reason));
        }
        let start = self.at;
        match kind.width() {
            Some(width) if kind != ValueType::Bool => {
                self.take(count * width as u64, "an array")?;
            }
            _ => {
                for _ in 0..count {
                    self.value(kind, depth)?;
                }
            }
        }
        Ok(Array { kind, count, bytes: &self.bytes[start..self.at], endian: self.endian })
    }
}

impl<'a> Array<'a> {
    /// Decodes the items one by one.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let mut cursor = Cursor::new(self.bytes, self.endian);
        let kind = self.kind;
        // Every item was parsed once with the file, so none is missing here.
        (0..self.count).map_while(move |_| cursor.value(kind, 0).ok())
    }
}
