//! Encodings of a weight's numbers: plain, GGML blocks, affine groups, microscaled groups, FP8 with
//! block scales.
//!
//! A weight consists of one to four arrays: the codes, and their multipliers. [`Encoding::parts`]
//! returns the arrays for a logical shape. Sources of the layouts: MLX's `quantize` for affine and
//! microscaled weights, `ggml-common.h` for blocks, `DeepSeek`'s `weight_scale_inv` for block FP8.

use std::fmt;

use crate::dtype::element_count;
use crate::{Dtype, GgmlType};

/// Encoding of a weight's numbers. Groups and blocks are runs of a row, the last dimension.
///
/// # Examples
///
/// ```
/// use lode_formats::{Dtype, Encoding};
///
/// let encoding = Encoding::parse("int4", 64).expect("a known type");
/// let parts = encoding.parts(&[2, 128], Dtype::F16)?;
/// // 4 bits per element; one F16 scale and one F16 bias for each group of 64.
/// let sizes: Vec<u64> = parts.iter().map(|part| part.size()).collect();
/// assert_eq!(sizes, [128, 8, 8]);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Plain elements.
    Plain(Dtype),
    /// GGML blocks, which contain their scales.
    Blocks(GgmlType),
    /// `scale · code + bias` with unsigned codes; a scale and a bias for each group.
    Affine {
        /// Bits per code: 2, 3, 4, 5, 6 or 8.
        bits: u8,
        /// Elements per group: 32, 64 or 128.
        group: u32,
    },
    /// Small floats with a scale for each group.
    Micro(Micro),
    /// FP8 (E4M3) elements with a scale for each block of a matrix; blocks at the edges are cut
    /// off.
    BlockFp8 {
        /// Rows per block.
        rows: u32,
        /// Columns per block.
        columns: u32,
    },
}

/// The microscaled encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Micro {
    /// E2M1 elements, an E4M3 scale for each 16, and an optional float32 multiplier for the whole
    /// tensor.
    Nvfp4,
    /// E2M1 elements, a power of two for each 32.
    Mxfp4,
    /// E4M3 elements, a power of two for each 32.
    Mxfp8,
}

impl Micro {
    /// Returns the bits per element.
    pub fn bits(self) -> u8 {
        match self {
            Self::Nvfp4 | Self::Mxfp4 => 4,
            Self::Mxfp8 => 8,
        }
    }

    /// Returns the number of elements that share a scale.
    pub fn group(self) -> u32 {
        match self {
            Self::Nvfp4 => 16,
            Self::Mxfp4 | Self::Mxfp8 => 32,
        }
    }

    /// Returns the name in a blob's `quant_type`, which is also MLX's name of the mode.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nvfp4 => "nvfp4",
            Self::Mxfp4 => "mxfp4",
            Self::Mxfp8 => "mxfp8",
        }
    }
}

/// The role of an array in a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The codes, or the elements themselves.
    Weight,
    /// One scale for each group or block.
    Scale,
    /// The value of code 0, for each group.
    Bias,
    /// One multiplier for the whole tensor.
    GlobalScale,
}

impl Role {
    /// All roles, in the order of the arrays in a blob.
    pub const ALL: [Self; 4] = [Self::Weight, Self::Scale, Self::Bias, Self::GlobalScale];

    /// Returns the suffix that follows the weight's name in a blob.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Weight => "",
            Self::Scale => ".scale",
            Self::Bias => ".bias",
            Self::GlobalScale => ".global_scale",
        }
    }
}

/// One array of an encoded weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartShape {
    /// Role of the array.
    pub role: Role,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
}

impl PartShape {
    /// Returns the length in bytes, which was checked when the part was created.
    pub fn size(&self) -> u64 {
        self.dtype.byte_count(&self.shape).unwrap_or(0)
    }
}

impl Encoding {
    /// Returns the `quant_type` of a blob; `None` for plain elements.
    pub fn quant_type(self) -> Option<String> {
        Some(match self {
            Self::Plain(_) => return None,
            Self::Blocks(kind) => kind.quant_name().to_owned(),
            Self::Affine { bits, .. } => format!("int{bits}"),
            Self::Micro(micro) => micro.name().to_owned(),
            Self::BlockFp8 { rows, columns } => format!("fp8_{rows}x{columns}"),
        })
    }

    /// Returns the `group_size` of a blob: elements of a row that share a scale; 0 for plain
    /// elements.
    pub fn group_size(self) -> u64 {
        match self {
            Self::Plain(_) => 0,
            Self::Blocks(kind) => kind.block_elements(),
            Self::Affine { group, .. } => u64::from(group),
            Self::Micro(micro) => u64::from(micro.group()),
            Self::BlockFp8 { columns, .. } => u64::from(columns),
        }
    }

    /// Returns the encoding with a `quant_type` and a `group_size`; the latter is only used for
    /// affine types.
    pub fn parse(quant_type: &str, group_size: u64) -> Option<Self> {
        let encoding = Self::parse_any(quant_type, group_size)?;
        // Rust parses numbers with signs and leading zeros, but each encoding has only one valid
        // name.
        (encoding.quant_type().as_deref() == Some(quant_type)).then_some(encoding)
    }

    fn parse_any(quant_type: &str, group_size: u64) -> Option<Self> {
        let micro = [Micro::Nvfp4, Micro::Mxfp4, Micro::Mxfp8];
        if let Some(micro) = micro.into_iter().find(|micro| micro.name() == quant_type) {
            return Some(Self::Micro(micro));
        }
        if let Some(bits) = quant_type.strip_prefix("int").and_then(|bits| bits.parse().ok()) {
            let known = matches!(bits, 2..=6 | 8) && matches!(group_size, 32 | 64 | 128);
            return known.then_some(Self::Affine { bits, group: group_size as u32 });
        }
        if let Some((rows, columns)) = quant_type.strip_prefix("fp8_").and_then(|size| size.split_once('x')) {
            let (rows, columns) = (rows.parse().ok()?, columns.parse().ok()?);
            return (rows > 0 && columns > 0).then_some(Self::BlockFp8 { rows, columns });
        }
        GgmlType::from_quant_name(quant_type).filter(|kind| kind.dtype().is_none()).map(Self::Blocks)
    }

    /// Returns the arrays of a weight with a logical shape, in the order of a blob. `float` is the
    /// element type of scales and biases if the encoding leaves it open. The optional global scale
    /// is not included.
    ///
    /// # Errors
    /// Why such a weight cannot exist: too few dimensions, rows that are not whole groups, sizes
    /// that overflow.
    pub fn parts(self, shape: &[u64], float: Dtype) -> Result<Vec<PartShape>, String> {
        let part = |role, dtype, shape| PartShape { role, dtype, shape };
        let Some((columns, leading)) = shape.split_last().filter(|_| !matches!(self, Self::Plain(_))) else {
            let Self::Plain(dtype) = self else { return Err(format!("{self} needs rows, the tensor is a scalar")) };
            return checked(vec![part(Role::Weight, dtype, shape.to_vec())]);
        };
        let group = self.group_size();
        let with = |last: u64| [leading, &[last]].concat();
        if !matches!(self, Self::BlockFp8 { .. }) && !columns.is_multiple_of(group) {
            return Err(format!("rows of {columns} elements are not whole groups of {group}"));
        }
        checked(match self {
            Self::Plain(_) => Vec::new(),
            Self::Blocks(kind) => {
                let bytes = kind.row_bytes(*columns).ok_or("the size in bytes overflows")?;
                vec![part(Role::Weight, Dtype::U8, with(bytes))]
            }
            Self::Affine { bits, .. } => vec![
                part(Role::Weight, Dtype::U32, with(columns / 32 * u64::from(bits))),
                part(Role::Scale, float, with(columns / group)),
                part(Role::Bias, float, with(columns / group)),
            ],
            Self::Micro(micro) => {
                // A group of nvfp4 has 16 elements, but rows must be whole 32-bit words.
                let per_word = 32 / u64::from(micro.bits());
                vec![
                    part(Role::Weight, Dtype::U32, with(columns / per_word)),
                    part(Role::Scale, Dtype::U8, with(columns / group)),
                ]
            }
            Self::BlockFp8 { rows, columns: block } => {
                let Some((height, stack)) = leading.split_last() else {
                    return Err(format!("{self} needs a matrix, the tensor has one dimension"));
                };
                let scales = [stack, &[height.div_ceil(u64::from(rows)), columns.div_ceil(u64::from(block))]].concat();
                vec![part(Role::Weight, Dtype::F8_E4M3, shape.to_vec()), part(Role::Scale, float, scales)]
            }
        })
    }

    /// Returns the logical shape of a weight whose codes have a given shape in a blob; `None` if
    /// such a weight cannot exist.
    pub fn logical_shape(self, codes: &[u64]) -> Option<Vec<u64>> {
        let Some((last, leading)) = codes.split_last() else {
            return matches!(self, Self::Plain(_)).then(Vec::new);
        };
        let divided = |by: u64| last.is_multiple_of(by).then(|| last / by);
        let columns = match self {
            Self::Plain(_) | Self::BlockFp8 { .. } => *last,
            Self::Blocks(kind) => divided(kind.block_bytes())?.checked_mul(kind.block_elements())?,
            Self::Affine { bits, .. } => divided(u64::from(bits))?.checked_mul(32)?,
            Self::Micro(micro) => last.checked_mul(32 / u64::from(micro.bits()))?,
        };
        Some([leading, &[columns]].concat())
    }

    /// Whether the element type of the scales is the model's choice.
    pub fn has_float_scale(self) -> bool {
        matches!(self, Self::Affine { .. } | Self::BlockFp8 { .. })
    }

    /// Returns the type of the scales that are made from a weight whose scales have this type: the
    /// same float, or F32 if they are not floats.
    pub fn float_of_scales(self, scales: Option<Dtype>) -> Dtype {
        let is_float = |dtype: &Dtype| matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16);
        scales.filter(|dtype| self.has_float_scale() && is_float(dtype)).unwrap_or(Dtype::F32)
    }

    /// Checks the element type of scales: a float, or powers of two for block FP8. The scales of
    /// some encodings have only one type, which [`parts`](Self::parts) tells.
    ///
    /// # Errors
    /// The scales cannot have this type. The text states it and the possible ones.
    pub fn check_scale(self, dtype: Dtype) -> Result<(), String> {
        let is_float = matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16);
        let powers = matches!(self, Self::BlockFp8 { .. });
        if !self.has_float_scale() || is_float || (powers && dtype == Dtype::F8_E8M0) {
            return Ok(());
        }
        let types = if powers { "F32, F16, BF16 or F8_E8M0" } else { "F32, F16 or BF16" };
        Err(format!("{dtype}, expected {types}"))
    }
}

fn checked(parts: Vec<PartShape>) -> Result<Vec<PartShape>, String> {
    for part in &parts {
        element_count(&part.shape).ok_or("the number of elements overflows")?;
        part.dtype.byte_count(&part.shape)?;
    }
    Ok(parts)
}

impl Encoding {
    /// The name that [`Display`](fmt::Display) prints, followed by the size of groups for encodings
    /// that have several: `Q4_K`, `int4:64`.
    pub fn name_with_group(&self) -> String {
        match self {
            Self::Affine { group, .. } => format!("{self}:{group}"),
            other => other.to_string(),
        }
    }
}

/// Displays the common name: `BF16`, `Q4_K`, `int4`, `nvfp4`.
impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(dtype) => dtype.fmt(f),
            Self::Blocks(kind) => kind.fmt(f),
            other => f.write_str(&other.quant_type().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        let mut all = vec![
            Encoding::Micro(Micro::Nvfp4),
            Encoding::Micro(Micro::Mxfp4),
            Encoding::Micro(Micro::Mxfp8),
            Encoding::BlockFp8 { rows: 128, columns: 64 },
        ];
        for bits in [2, 3, 4, 5, 6, 8] {
            all.extend([32, 64, 128].map(|group| Encoding::Affine { bits, group }));
        }
        all.extend(GgmlType::ALL.iter().filter(|kind| kind.dtype().is_none()).map(|kind| Encoding::Blocks(*kind)));
        for encoding in all {
            let name = encoding.quant_type().expect("not plain");
            assert_eq!(Encoding::parse(&name, encoding.group_size()), Some(encoding), "{name}");
        }
        for (name, group) in [
            ("int7", 64),
            ("int4", 16),
            ("int", 32),
            ("f32", 1),
            ("fp8_0x4", 4),
            ("", 0),
            ("int04", 64),
            ("int+4", 64),
            ("fp8_+4x4", 4),
            ("fp8_4x04", 4),
        ] {
            assert_eq!(Encoding::parse(name, group), None, "{name}");
        }
    }

    #[test]
    fn parts_of_a_stack() {
        let shapes = |encoding: Encoding, shape: &[u64]| -> Vec<Vec<u64>> {
            let parts = encoding.parts(shape, Dtype::Bf16).expect("such a weight");
            parts.into_iter().map(|part| part.shape).collect()
        };
        let stack = [4, 16, 64];
        assert_eq!(
            shapes(Encoding::Affine { bits: 3, group: 32 }, &stack),
            [vec![4, 16, 6], vec![4, 16, 2], vec![4, 16, 2]]
        );
        assert_eq!(shapes(Encoding::Micro(Micro::Nvfp4), &stack), [vec![4, 16, 8], vec![4, 16, 4]]);
        assert_eq!(shapes(Encoding::Micro(Micro::Mxfp8), &stack), [vec![4, 16, 16], vec![4, 16, 2]]);
        assert_eq!(shapes(Encoding::Blocks(GgmlType::Q4_0), &stack), [vec![4, 16, 36]]);
        assert_eq!(shapes(Encoding::BlockFp8 { rows: 48, columns: 48 }, &[100, 64]), [vec![100, 64], vec![3, 2]]);
        assert_eq!(shapes(Encoding::Plain(Dtype::F32), &[]), [Vec::<u64>::new()]);
        for bits in [2, 3, 4, 5, 6, 8] {
            let encoding = Encoding::Affine { bits, group: 32 };
            assert_eq!(encoding.logical_shape(&shapes(encoding, &stack)[0]), Some(stack.to_vec()), "{encoding}");
        }
        for (encoding, shape) in [
            (Encoding::Affine { bits: 4, group: 64 }, vec![4, 32]),
            (Encoding::Micro(Micro::Mxfp4), vec![]),
            (Encoding::Blocks(GgmlType::Q4_K), vec![2, 128]),
            (Encoding::BlockFp8 { rows: 4, columns: 4 }, vec![4]),
            (Encoding::Affine { bits: 4, group: 64 }, vec![u64::MAX, u64::MAX / 64 * 64]),
        ] {
            assert!(encoding.parts(&shape, Dtype::Bf16).is_err(), "{encoding} {shape:?}");
        }
    }
}
