//! Weight of packed codes: computes its arrays in the form of an affine weight, some rows at a
//! time.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use formats::codec::{self, Encoded, EncodingTarget};
use formats::encoding::Role;
use formats::weight::Arrays;
use formats::{Dtype, Encoding, Weight};

use super::matrix::SourceMatrix;
use crate::ReadAt;

/// Output that AWQ stores at each position of a word.
pub(super) const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
/// Order in which the position in a word is the output.
pub(super) const IN_ORDER: [usize; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Weight of `rows` outputs and `columns` inputs.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    /// Name of the array with the codes in the source.
    pub(super) name: String,
    /// Bits per code: 2, 4 or 8.
    pub(super) bits: u8,
    /// Number of inputs that share a scale: 32, 64 or 128.
    pub(super) group: u32,
    pub(super) rows: u64,
    pub(super) columns: u64,
    pub(super) codes: Codes,
    pub(super) scales: Scales,
    pub(super) zeros: Zeros,
    /// Dtype of the resulting scales and biases.
    pub(super) float: Dtype,
    /// Assumptions about the arrays that are verified when they are read.
    pub(super) checks: Vec<Check>,
}

/// Location and packing of the codes.
#[derive(Clone, Debug)]
pub(super) enum Codes {
    /// For each output, words of neighbouring inputs, the first in the lowest bits.
    Words(SourceMatrix),
    /// For each input, words of eight outputs in AWQ's order.
    Outputs(SourceMatrix),
    /// Signed bytes; the code is the byte plus 128.
    Signed(SourceMatrix),
}

/// Location of the scales: for each output, one scale for each group of the source.
#[derive(Clone, Debug)]
pub(super) struct Scales {
    pub(super) matrix: SourceMatrix,
    pub(super) dtype: Dtype,
    /// True if a scale is the absolute maximum: codes of −127 to 127 mean −1 to 1 times the scale.
    pub(super) of_127: bool,
}

/// Code that means zero.
#[derive(Clone, Debug)]
pub(super) enum Zeros {
    /// The middle code.
    Middle,
    /// For each group of the source, words of neighbouring outputs.
    Words {
        matrix: SourceMatrix,
        /// Output of each position in a word.
        order: &'static [usize],
        /// Constant that is added to the stored value.
        add: u8,
    },
    /// Signed bytes for each output and group: the difference from the middle code.
    Signed(SourceMatrix),
}

/// Small array that is verified before the codes are returned.
#[derive(Clone, Debug)]
pub(super) enum Check {
    /// I32: the group of each input. Groups must be in ascending order with `group` inputs each.
    InOrder { file: Arc<dyn ReadAt>, offset: u64, inputs: u64, group: u64 },
    /// U8: the number of a layout; 0 is row-major.
    RowMajor { file: Arc<dyn ReadAt>, offset: u64 },
}

impl Packed {
    /// Returns the size of a row of an array in bytes.
    pub(super) fn row_bytes(&self, role: Role) -> u64 {
        match role {
            Role::Weight => self.columns * u64::from(self.bits) / 8,
            _ => self.columns / u64::from(self.group) * self.float.bits() / 8,
        }
    }

    /// Returns the bytes of some rows of an array. The first row is a multiple of 32.
    pub(super) fn array(&self, role: Role, rows: Range<u64>) -> io::Result<Vec<u8>> {
        match role {
            Role::Weight => self.codes(rows),
            Role::Scale => {
                let scales = self.scales(rows)?;
                self.encoded(&self.repeated(&scales))
            }
            _ => {
                let (scales, zeros) = (self.scales(rows.clone())?, self.zeros(rows)?);
                let biases: Vec<f32> = scales.iter().zip(zeros).map(|(scale, zero)| -scale * f32::from(zero)).collect();
                self.encoded(&self.repeated(&biases))
            }
        }
    }

    fn codes(&self, rows: Range<u64>) -> io::Result<Vec<u8>> {
        if rows.start == 0 {
            self.checks.iter().try_for_each(Check::hold)?;
        }
        match &self.codes {
            Codes::Words(matrix) => matrix.rows(rows),
            Codes::Signed(matrix) => Ok(matrix.rows(rows)?.into_iter().map(|code| code ^ 0x80).collect()),
            Codes::Outputs(matrix) => {
                let words = matrix.rows(rows.start / 8..rows.end.div_ceil(8))?;
                let line = (self.columns * 4) as usize;
                let lines = words.chunks_exact(line);
                Ok(lines.flat_map(|line| nibbles(&unpacked(line, self.columns, 4, &AWQ_ORDER))).collect())
            }
        }
    }

    /// Returns the scales, one for each group of the source.
    fn scales(&self, rows: Range<u64>) -> io::Result<Vec<f32>> {
        let Scales { matrix, dtype, of_127 } = &self.scales;
        let bytes = matrix.rows(rows)?;
        let mut scales = decoded(*dtype, &bytes)?;
        if *of_127 {
            for scale in &mut scales {
                *scale /= 127.0;
            }
        }
        Ok(scales)
    }

    /// Returns the codes that mean zero, one for each group of the source.
    fn zeros(&self, rows: Range<u64>) -> io::Result<Vec<i16>> {
        let groups = self.scales.matrix.columns;
        let middle = 1i16 << (self.bits - 1);
        Ok(match &self.zeros {
            Zeros::Middle => vec![middle; ((rows.end - rows.start) * groups) as usize],
            Zeros::Signed(matrix) => {
                matrix.rows(rows)?.into_iter().map(|zero| middle + i16::from(zero.cast_signed())).collect()
            }
            Zeros::Words { matrix, order, add } => {
                let of_word = u64::from(32 / self.bits);
                let words = matrix.rows(rows.start / of_word..rows.end.div_ceil(of_word))?;
                let mask = ((1u16 << self.bits) - 1) as u8;
                let zeros = words
                    .chunks_exact((groups * 4) as usize)
                    .flat_map(|line| unpacked(line, groups, self.bits, order))
                    .map(|zero| i16::from(zero.wrapping_add(*add) & mask));
                zeros.take(((rows.end - rows.start) * groups) as usize).collect()
            }
        })
    }

    /// Repeats the numbers of the source's groups for the resulting groups, which are parts of
    /// them.
    fn repeated(&self, numbers: &[f32]) -> Vec<f32> {
        let times = (self.columns / u64::from(self.group) / self.scales.matrix.columns) as usize;
        numbers.iter().flat_map(|number| std::iter::repeat_n(*number, times)).collect()
    }

    fn encoded(&self, numbers: &[f32]) -> io::Result<Vec<u8>> {
        let target = EncodingTarget { encoding: Encoding::Plain(self.float), float: self.float, global_scale: None };
        let mut encoded = Encoded::default();
        codec::encode(numbers, numbers.len(), target, &mut encoded);
        if let Some(number) = numbers.iter().find(|number| !number.is_finite()) {
            return Err(malformed(format!("one of its scales, or a scale times a zero, is {number}")));
        }
        if decoded(self.float, &encoded.data)? != numbers {
            return Err(malformed(format!(
                "the product of a scale and a zero point is not representable as {}: the zero points are not the middle codes, although the config states `sym`",
                self.float
            )));
        }
        Ok(encoded.data)
    }
}

impl Check {
    fn hold(&self) -> io::Result<()> {
        match self {
            Self::InOrder { file, offset, inputs, group } => {
                let mut bytes = vec![0; (*inputs * 4) as usize];
                file.read_exact_at(&mut bytes, *offset)?;
                let groups = bytes.as_chunks::<4>().0.iter().map(|bytes| u64::from(u32::from_le_bytes(*bytes)));
                let in_order = groups.zip(0..).all(|(found, input): (u64, u64)| found == input / group);
                if in_order { Ok(()) } else { Err(malformed(ACT_ORDER.to_owned())) }
            }
            Self::RowMajor { file, offset } => {
                let mut layout = [0];
                file.read_exact_at(&mut layout, *offset)?;
                if layout == [0] { Ok(()) } else { Err(malformed(format!("its codes have the layout {layout:?}"))) }
            }
        }
    }
}

/// Reason for refusing a weight whose inputs were sorted before they were grouped.
pub(super) const ACT_ORDER: &str =
    "its inputs were reordered before grouping (act-order, `desc_act`), which is not supported";

/// Unpacks the codes of consecutive words row by row. Each word has one code for each of several
/// rows.
fn unpacked(words: &[u8], columns: u64, bits: u8, order: &[usize]) -> Vec<u8> {
    let (columns, of_word) = (columns as usize, 32 / usize::from(bits));
    let mask = (1u32 << bits) - 1;
    let mut codes = vec![0; columns * of_word];
    for (column, word) in words.as_chunks::<4>().0.iter().enumerate() {
        let word = u32::from_le_bytes(*word);
        for (place, row) in order[..of_word].iter().enumerate() {
            codes[row * columns + column] = (word >> (place * usize::from(bits)) & mask) as u8;
        }
    }
    codes
}

/// Packs codes of 4 bits, two per byte.
fn nibbles(codes: &[u8]) -> Vec<u8> {
    codes.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4).collect()
}

fn decoded(dtype: Dtype, bytes: &[u8]) -> io::Result<Vec<f32>> {
    let count = bytes.len() as u64 * 8 / dtype.bits();
    let arrays = Arrays { data: bytes, ..Arrays::default() };
    let weight = Weight::new(Encoding::Plain(dtype), &[count], arrays).map_err(malformed)?;
    let mut numbers = vec![0.0; count as usize];
    weight.decode(&mut numbers);
    Ok(numbers)
}

pub(super) fn malformed(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
