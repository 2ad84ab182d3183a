//! Weights whose arrays are separate tensors, as publishers distribute them. They are recognized by
//! names and shapes.
//!
//! | arrays | encoding |
//! |---|---|
//! | `X` `F8_E4M3`, `X_scale_inv` | block FP8; the config states the block size |
//! | `X` `F8_E4M3`, `X_scale` | FP8 with one scale per tensor, per row, or per block |
//! | `X.weight` `F8_E4M3`, `X.scale` | the same |
//! | `X.weight` I8 `[…, 16 n]`, `X.scale` `F8_E8M0` `[…, n]` | mxfp4, `[…, 32 n]` |
//! | `X_blocks` U8 `[…, n, 16]`, `X_scales` U8 `[…, n]` | mxfp4, `[…, 32 n]` |
//!
//! `X` mostly ends in `.weight`. Sources: `DeepSeek`'s and Qwen's FP8 models, compressed-tensors'
//! `float-quantized`, `ModelOpt`'s FP8; then `DeepSeek` V4. The last row is gpt-oss. The codes and
//! scales of both mxfp4 forms equal MLX's byte for byte.
//!
//! Arrays whose dtypes or shapes do not match stay plain tensors: a name alone does not define an
//! encoding.

use std::collections::HashMap;

use formats::dtype::element_count;
use formats::encoding::{Micro, Role};
use formats::{Dtype, Encoding};

use crate::QuantizationConfig;

/// Array as a file header describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrayInfo<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [u64],
}

/// Weight with the positions of its arrays in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundWeight {
    pub(crate) name: String,
    pub(crate) encoding: Encoding,
    /// Logical dimensions, outermost first.
    pub(crate) shape: Vec<u64>,
    /// Positions of the arrays; the codes are the first.
    pub(crate) parts: Vec<(Role, usize)>,
}

/// Finds the weights that consist of several of these arrays.
pub(crate) fn find(arrays: &[ArrayInfo<'_>], config: &QuantizationConfig) -> Vec<FoundWeight> {
    let positions: HashMap<&str, usize> = arrays.iter().enumerate().map(|(at, array)| (array.name, at)).collect();
    let beside = |array: &ArrayInfo<'_>| -> Option<usize> {
        positions.get(format!("{}.scale", array.name.strip_suffix(".weight")?).as_str()).copied()
    };
    let fp8 = |at: usize, array: &ArrayInfo<'_>| {
        let inverse = positions.get(format!("{}_scale_inv", array.name).as_str());
        let scale = || positions.get(format!("{}_scale", array.name).as_str());
        let scale = inverse.or_else(scale).copied().or_else(|| beside(array))?;
        let encoding = block_fp8(array, &arrays[scale], inverse.is_some(), config)?;
        let parts = vec![(Role::Weight, at), (Role::Scale, scale)];
        Some(FoundWeight { name: array.name.to_owned(), encoding, shape: array.shape.to_vec(), parts })
    };
    let mxfp4 = |at: usize, array: &ArrayInfo<'_>| {
        let name = array.name.strip_suffix("_blocks")?;
        let scales = *positions.get(format!("{name}_scales").as_str())?;
        let shape = mxfp4_blocks(array, &arrays[scales])?;
        let parts = vec![(Role::Weight, at), (Role::Scale, scales)];
        Some(FoundWeight { name: name.to_owned(), encoding: Encoding::Micro(Micro::Mxfp4), shape, parts })
    };
    let packed = |at: usize, array: &ArrayInfo<'_>| {
        let scale = beside(array)?;
        let shape = packed_mxfp4(array, &arrays[scale])?;
        let parts = vec![(Role::Weight, at), (Role::Scale, scale)];
        let encoding = Encoding::Micro(Micro::Mxfp4);
        Some(FoundWeight { name: array.name.to_owned(), encoding, shape, parts })
    };
    let of = |(at, array): (usize, &ArrayInfo<'_>)| match array.dtype {
        Dtype::F8_E4M3 => fp8(at, array),
        Dtype::I8 => packed(at, array),
        Dtype::U8 => mxfp4(at, array).filter(|found| !positions.contains_key(found.name.as_str())),
        _ => None,
    };
    arrays.iter().enumerate().filter_map(of).collect()
}

/// Returns the encoding of an FP8 weight with this scale. By convention, scales with the suffix
/// `_inv` are per block.
fn block_fp8(
    weight: &ArrayInfo<'_>,
    scale: &ArrayInfo<'_>,
    inverse: bool,
    config: &QuantizationConfig,
) -> Option<Encoding> {
    let [.., rows, columns] = *weight.shape else { return None };
    if !matches!(scale.dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F8_E8M0) {
        return None;
    }
    let (rows, columns) = (u32::try_from(rows).ok()?, u32::try_from(columns).ok()?);
    let whole = [(rows, columns), (1, columns)];
    // A single number applies to the whole tensor under either name.
    let guesses = if inverse { &whole[..1] } else { &whole[..] };
    let scales = element_count(scale.shape)?;
    guesses.iter().copied().chain(config.block_size()).find_map(|(rows, columns)| {
        let encoding = (rows > 0 && columns > 0).then_some(Encoding::BlockFp8 { rows, columns })?;
        let parts = encoding.parts(weight.shape, scale.dtype).ok()?;
        let expected = parts.iter().find(|part| part.role == Role::Scale)?;
        let same_shape = scale.shape == expected.shape.as_slice();
        // A single scale may be stored as a scalar, scales of rows as a vector.
        let same_count = element_count(&expected.shape) == Some(scales) && scale.shape.len() < 2;
        (same_shape || same_count).then_some(encoding)
    })
}

/// Returns the logical shape of a weight with two elements in a byte.
fn packed_mxfp4(codes: &ArrayInfo<'_>, scales: &ArrayInfo<'_>) -> Option<Vec<u64>> {
    let [leading @ .., bytes] = codes.shape else { return None };
    let [above @ .., groups] = scales.shape else { return None };
    let fits = scales.dtype == Dtype::F8_E8M0 && above == leading && groups.checked_mul(16) == Some(*bytes);
    let columns = groups.checked_mul(32)?;
    (fits && !leading.is_empty()).then(|| [leading, &[columns]].concat())
}

/// Returns the logical shape of a stack of gpt-oss.
fn mxfp4_blocks(blocks: &ArrayInfo<'_>, scales: &ArrayInfo<'_>) -> Option<Vec<u64>> {
    let [leading @ .., groups, 16] = blocks.shape else { return None };
    let same = scales.dtype == Dtype::U8 && scales.shape.split_last() == Some((groups, leading));
    let shape = [leading, &[groups.checked_mul(32)?]].concat();
    (same && !leading.is_empty()).then_some(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: &[u8] = br#"{"quantization_config":{"quant_method":"fp8","weight_block_size":[48,48]}}"#;

    fn check(arrays: &[(&str, Dtype, &[u64])], config: &[u8], expect: &[(&str, Encoding, &[u64])]) {
        let arrays: Vec<ArrayInfo<'_>> =
            arrays.iter().map(|(name, dtype, shape)| ArrayInfo { name, dtype: *dtype, shape }).collect();
        let found = find(&arrays, &QuantizationConfig::from_config(config));
        let found: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.encoding, f.shape.as_slice())).collect();
        assert_eq!(found, expect, "{arrays:?}");
    }

    #[test]
    fn fp8_by_blocks_rows_and_tensors() {
        let weight = ("x.weight", Dtype::F8_E4M3, &[100, 64][..]);
        let of = |rows, columns| ("x.weight", Encoding::BlockFp8 { rows, columns }, &[100, 64][..]);
        let with = |name, dtype, shape| [weight, (name, dtype, shape)];
        check(&with("x.weight_scale_inv", Dtype::F32, &[3, 2]), BLOCKS, &[of(48, 48)]);
        check(&with("x.weight_scale_inv", Dtype::F32, &[2, 3]), BLOCKS, &[]);
        check(&with("x.weight_scale_inv", Dtype::F32, &[3, 2]), b"{}", &[]);
        check(&with("x.weight_scale_inv", Dtype::U8, &[3, 2]), BLOCKS, &[]);
        check(&with("x.weight_scale_inv", Dtype::Bf16, &[]), b"{}", &[of(100, 64)]);
        check(&with("x.weight_scale_inv", Dtype::F32, &[100]), b"{}", &[]);
        check(&with("x.weight_scale", Dtype::Bf16, &[3, 2]), BLOCKS, &[of(48, 48)]);
        check(&with("x.weight_scale", Dtype::Bf16, &[100, 1]), b"{}", &[of(1, 64)]);
        check(&with("x.weight_scale", Dtype::F32, &[100]), b"{}", &[of(1, 64)]);
        check(&with("x.weight_scale", Dtype::F32, &[]), b"{}", &[of(100, 64)]);
        check(&with("x.weight_scale", Dtype::F32, &[1]), b"{}", &[of(100, 64)]);
        check(&with("x.weight_scale", Dtype::F32, &[64]), b"{}", &[]);
        check(&with("y.weight_scale", Dtype::F32, &[1]), b"{}", &[]);
    }

    #[test]
    fn scales_beside_weights() {
        let config = br#"{"quantization_config":{"weight_block_size":[128,128]}}"#;
        let weight = ("x.weight", Dtype::F8_E4M3, &[256, 200][..]);
        let of = |rows, columns| ("x.weight", Encoding::BlockFp8 { rows, columns }, &[256, 200][..]);
        check(&[weight, ("x.scale", Dtype::F8_E8M0, &[2, 2])], config, &[of(128, 128)]);
        check(&[weight, ("x.scale", Dtype::F8_E8M0, &[3, 2])], config, &[]);
        let packed = ("e.w1.weight", Dtype::I8, &[8, 32][..]);
        let expect = ("e.w1.weight", Encoding::Micro(Micro::Mxfp4), &[8, 64][..]);
        check(&[packed, ("e.w1.scale", Dtype::F8_E8M0, &[8, 2])], b"{}", &[expect]);
        check(&[packed, ("e.w1.scale", Dtype::F8_E8M0, &[8, 1])], b"{}", &[]);
        check(&[packed, ("e.w1.scale", Dtype::F32, &[8, 2])], b"{}", &[]);
        check(&[packed], b"{}", &[]);
    }

    #[test]
    fn stacks_of_gpt_oss() {
        let blocks = ("e.up_blocks", Dtype::U8, &[4, 8, 2, 16][..]);
        let scales = ("e.up_scales", Dtype::U8, &[4, 8, 2][..]);
        let expect = ("e.up", Encoding::Micro(Micro::Mxfp4), &[4, 8, 64][..]);
        check(&[blocks, scales], b"{}", &[expect]);
        check(&[blocks, ("e.up_scales", Dtype::U8, &[4, 8, 4])], b"{}", &[]);
        check(&[blocks, scales, ("e.up", Dtype::F32, &[1])], b"{}", &[]);
        check(&[("e.up_blocks", Dtype::U8, &[4, 8, 2, 8]), scales], b"{}", &[]);
        check(&[("e_blocks", Dtype::U8, &[2, 16]), ("e_scales", Dtype::U8, &[2])], b"{}", &[]);
    }
}
