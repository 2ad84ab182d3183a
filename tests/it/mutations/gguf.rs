//! Changes in the header of a GGUF file: a walk through the header finds the counts, lengths,
//! types, dimensions and offsets.

use rand::Rng;
use rand::rngs::StdRng;

use super::damage;

/// A field that determines the interpretation of other fields: its offset, and its size in bytes.
#[derive(Clone, Copy)]
struct Field {
    at: usize,
    size: usize,
}

pub(super) fn mutate(bytes: &mut Vec<u8>, random: &mut StdRng) {
    let fields = Walk::new(bytes).fields();
    if fields.is_empty() || random.random_ratio(1, 10) {
        return damage(bytes, random);
    }
    for _ in 0..random.random_range(1..3) {
        let field = fields[random.random_range(0..fields.len())];
        let Some(place) = bytes.get_mut(field.at..field.at + field.size) else { continue };
        let mut number = [0; 8];
        number[..field.size].copy_from_slice(place);
        let number = u64::from_le_bytes(number);
        let changed = match random.random_range(0..8) {
            0 => number.wrapping_add(1),
            1 => number.wrapping_sub(1),
            2 => number << 1,
            3 => 0,
            4 => u64::MAX,
            5 => 1 << random.random_range(0..64),
            6 => random.random_range(0..64),
            _ => number.wrapping_add(32),
        };
        place.copy_from_slice(&changed.to_le_bytes()[..field.size]);
    }
}

/// A walk through a little-endian header that collects the significant fields.
struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    fields: Vec<Field>,
}

impl<'a> Walk<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, fields: Vec::new() }
    }

    /// Returns the fields up to the place where parsing fails.
    fn fields(mut self) -> Vec<Field> {
        let _ = self.header();
        self.fields
    }

    fn header(&mut self) -> Option<()> {
        self.number(4)?;
        self.number(4)?;
        let tensors = self.number(8)?;
        let keys = self.number(8)?;
        for _ in 0..keys {
            self.text()?;
            let kind = self.number(4)?;
            self.value(kind)?;
        }
        for _ in 0..tensors {
            self.text()?;
            for _ in 0..self.number(4)?.min(8) {
                self.number(8)?;
            }
            self.number(4)?;
            self.number(8)?;
        }
        Some(())
    }

    fn value(&mut self, kind: u64) -> Option<()> {
        match kind {
            0 | 1 | 7 => drop(self.number(1)?),
            2 | 3 => drop(self.number(2)?),
            4..=6 => drop(self.number(4)?),
            8 => self.text()?,
            9 => {
                let item = self.number(4)?;
                for _ in 0..self.number(8)?.min(64) {
                    self.value(item)?;
                }
            }
            10..=12 => drop(self.number(8)?),
            _ => return None,
        }
        Some(())
    }

    fn text(&mut self) -> Option<()> {
        let length = usize::try_from(self.number(8)?).ok()?;
        self.at = self.at.checked_add(length).filter(|at| *at <= self.bytes.len())?;
        Some(())
    }

    fn number(&mut self, size: usize) -> Option<u64> {
        let bytes = self.bytes.get(self.at..self.at + size)?;
        self.fields.push(Field { at: self.at, size });
        self.at += size;
        let mut number = [0; 8];
        number[..size].copy_from_slice(bytes);
        Some(u64::from_le_bytes(number))
    }
}
