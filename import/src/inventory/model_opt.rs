//! Weights that NVIDIA's `ModelOpt` quantized to nvfp4: `<base>.weight` U8 with two codes in a
//! byte, `<base>.weight_scale` E4M3 for each 16 numbers, `<base>.weight_scale_2` with one
//! multiplier.
//!
//! The bytes equal nvfp4 in a blob; only the dtypes have other names. `<base>.input_scale` is for
//! activations and stays a separate tensor. Stacks with a multiplier for each matrix do not have
//! this form.

use std::collections::HashMap;

use formats::encoding::{Micro, Role};
use formats::{Dtype, Encoding};

use crate::split_weights::{ArrayInfo, FoundWeight};

/// Returns the weights of this form.
pub(super) fn find(arrays: &[ArrayInfo<'_>]) -> Vec<FoundWeight> {
    let positions: HashMap<&str, usize> = arrays.iter().enumerate().map(|(at, array)| (array.name, at)).collect();
    let weight = |(at, codes): (usize, &ArrayInfo<'_>)| {
        let scale = *positions.get(format!("{}_scale", codes.name).as_str())?;
        let global = *positions.get(format!("{}_scale_2", codes.name).as_str())?;
        let shape = shape(codes, &arrays[scale], &arrays[global])?;
        let parts = vec![(Role::Weight, at), (Role::Scale, scale), (Role::GlobalScale, global)];
        Some(FoundWeight { name: codes.name.to_owned(), encoding: Encoding::Micro(Micro::Nvfp4), shape, parts })
    };
    arrays.iter().enumerate().filter_map(weight).collect()
}

/// Returns the logical shape if the three arrays form such a weight.
fn shape(codes: &ArrayInfo<'_>, scale: &ArrayInfo<'_>, global: &ArrayInfo<'_>) -> Option<Vec<u64>> {
    if (codes.dtype, scale.dtype, global.dtype) != (Dtype::U8, Dtype::F8_E4M3, Dtype::F32) {
        return None;
    }
    let (bytes, leading) = codes.shape.split_last()?;
    let shape = [leading, &[bytes.checked_mul(2)?]].concat();
    let parts = Encoding::Micro(Micro::Nvfp4).parts(&shape, Dtype::F32).ok()?;
    let expected = parts.iter().find(|part| part.role == Role::Scale)?;
    let one = global.shape.iter().all(|dimension| *dimension == 1);
    (expected.shape == scale.shape && one && !leading.is_empty()).then_some(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_all_three() {
        let codes = ArrayInfo { name: "a.weight", dtype: Dtype::U8, shape: &[4, 16] };
        let scale = ArrayInfo { name: "a.weight_scale", dtype: Dtype::F8_E4M3, shape: &[4, 2] };
        let global = ArrayInfo { name: "a.weight_scale_2", dtype: Dtype::F32, shape: &[] };
        let found = find(&[scale, codes, global]);
        let [weight] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((weight.shape.as_slice(), weight.encoding), (&[4, 32][..], Encoding::Micro(Micro::Nvfp4)));
        assert_eq!(weight.parts, [(Role::Weight, 1), (Role::Scale, 0), (Role::GlobalScale, 2)]);
        for wrong in [
            vec![codes, scale],
            vec![codes, ArrayInfo { shape: &[4, 1], ..scale }, global],
            vec![codes, scale, ArrayInfo { shape: &[4], ..global }],
            vec![ArrayInfo { shape: &[4, 12], ..codes }, scale, global],
            vec![ArrayInfo { dtype: Dtype::F8_E4M3, ..codes }, scale, global],
        ] {
            assert_eq!(find(&wrong), [], "{wrong:?}");
        }
    }
}
