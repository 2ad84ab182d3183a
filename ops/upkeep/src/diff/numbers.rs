//! Decoding of plain element types, and the difference between two lists of numbers.

use formats::Dtype;

/// Decoder of the numbers of one element type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoder {
    /// Bytes per number.
    pub(crate) bytes: u64,
    read: fn(&[u8]) -> f64,
}

/// Returns the decoder of an element type; `None` for packed types.
pub(crate) fn decoder(dtype: Dtype) -> Option<Decoder> {
    let read: fn(&[u8]) -> f64 = match dtype {
        Dtype::F64 => |b| f64::from_le_bytes(array(b)),
        Dtype::F32 => |b| f64::from(f32::from_le_bytes(array(b))),
        Dtype::F16 => |b| half::f16::from_le_bytes(array(b)).to_f64(),
        Dtype::Bf16 => |b| half::bf16::from_le_bytes(array(b)).to_f64(),
        Dtype::U8 | Dtype::Bool => |b| f64::from(u8::from_le_bytes(array(b))),
        Dtype::I8 => |b| f64::from(i8::from_le_bytes(array(b))),
        Dtype::U16 => |b| f64::from(u16::from_le_bytes(array(b))),
        Dtype::I16 => |b| f64::from(i16::from_le_bytes(array(b))),
        Dtype::U32 => |b| f64::from(u32::from_le_bytes(array(b))),
        Dtype::I32 => |b| f64::from(i32::from_le_bytes(array(b))),
        Dtype::U64 => |b| u64::from_le_bytes(array(b)) as f64,
        Dtype::I64 => |b| i64::from_le_bytes(array(b)) as f64,
        _ => return None,
    };
    Some(Decoder { bytes: dtype.bits() / 8, read })
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    // Pieces always have this length; a shorter piece would be read as zero.
    bytes.first_chunk().copied().unwrap_or([0; N])
}

impl Decoder {
    /// Decodes a piece that contains a whole number of elements.
    pub(crate) fn numbers<'a>(&self, piece: &'a [u8]) -> impl Iterator<Item = f64> + use<'a> {
        let read = self.read;
        piece.chunks_exact(self.bytes as usize).map(read)
    }
}

/// Accumulated difference between two lists of numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Difference {
    pub(crate) max: f64,
    pub(crate) not_finite: u64,
    squares: f64,
    count: u64,
}

impl Difference {
    /// Adds a pair. A pair whose values differ and are not both finite is only counted.
    pub(crate) fn add(&mut self, x: f64, y: f64) {
        let same = x.to_bits() == y.to_bits();
        let apart = if same { 0.0 } else { (x - y).abs() };
        if apart.is_finite() {
            self.max = self.max.max(apart);
            self.squares += apart * apart;
            self.count += 1;
        } else {
            self.not_finite += 1;
        }
    }

    /// Number of pairs that were added.
    pub(crate) fn compared(&self) -> u64 {
        self.count + self.not_finite
    }

    /// Root mean square of the differences.
    pub(crate) fn rms(&self) -> f64 {
        if self.count == 0 { 0.0 } else { (self.squares / self.count as f64).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_numbers() {
        for (dtype, bytes, expect) in [
            (Dtype::F64, &1.5f64.to_le_bytes()[..], 1.5),
            (Dtype::F32, &(-2.5f32).to_le_bytes(), -2.5),
            (Dtype::F16, &[0x00, 0x3e], 1.5),
            (Dtype::Bf16, &[0xc0, 0x3f], 1.5),
            (Dtype::I8, &[0xff], -1.0),
            (Dtype::U8, &[0xff], 255.0),
            (Dtype::I16, &[0xfe, 0xff], -2.0),
            (Dtype::I64, &(-3i64).to_le_bytes(), -3.0),
        ] {
            let found: Vec<f64> = decoder(dtype).expect("a number").numbers(bytes).collect();
            assert_eq!(found, [expect], "{dtype}");
        }
        assert!(decoder(Dtype::F4).is_none());
    }

    #[test]
    fn measures_distance() {
        let mut sum = Difference::default();
        for (x, y) in [(1.0, 4.0), (0.0, -4.0), (f64::NAN, f64::NAN), (f64::INFINITY, 0.0)] {
            sum.add(x, y);
        }
        assert_eq!((sum.compared(), sum.max, sum.not_finite), (4, 4.0, 1));
        assert!((sum.rms() - (25.0f64 / 3.0).sqrt()).abs() < 1e-12);
    }
}
