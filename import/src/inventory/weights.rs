//! Assigns the tensors of safetensors files to the weights that they are arrays of.

use formats::encoding::Role;

use super::{Home, SourceTensor, mlx, model_opt};
use crate::split_weights::{self, ArrayInfo, FoundWeight};
use crate::{Error, QuantizationConfig};

/// Sets weight, role and home of each tensor. Returns true if MLX quantized a weight.
///
/// # Errors
/// A weight that MLX quantized does not match the config.
pub(super) fn find(tensors: &mut [SourceTensor], config: &QuantizationConfig) -> Result<bool, Error> {
    let arrays: Vec<ArrayInfo<'_>> = tensors
        .iter()
        .map(|tensor| ArrayInfo { name: &tensor.name, dtype: tensor.dtype, shape: &tensor.dims })
        .collect();
    let by_mlx = mlx::find(&arrays, config).map_err(Error::Source)?;
    let combined: Vec<FoundWeight> = by_mlx.iter().cloned().chain(model_opt::find(&arrays)).collect();
    let apart = split_weights::find(&arrays, config);
    for weight in apart {
        mark(tensors, &weight, Home::Own);
    }
    for weight in &combined {
        mark(tensors, weight, Home::Weight);
        relabel(tensors, weight);
    }
    Ok(!by_mlx.is_empty())
}

fn mark(tensors: &mut [SourceTensor], weight: &FoundWeight, home: Home) {
    for (role, at) in &weight.parts {
        let tensor = &mut tensors[*at];
        tensor.weight.clone_from(&weight.name);
        tensor.role = *role;
        tensor.home = home;
        tensor.encoding = weight.encoding;
        tensor.shape.clone_from(&weight.shape);
    }
}

/// Sets the dtypes and dimensions of a weight's arrays to the ones that its blob has in every
/// model. The bytes do not change.
fn relabel(tensors: &mut [SourceTensor], weight: &FoundWeight) {
    let float = weight.parts.iter().find(|(role, _)| *role == Role::Scale).map(|(_, at)| tensors[*at].dtype);
    let expected = weight.encoding.parts(&weight.shape, float.unwrap_or(formats::Dtype::F32)).unwrap_or_default();
    for (role, at) in &weight.parts {
        if let Some(part) = expected.iter().find(|part| part.role == *role) {
            let tensor = &mut tensors[*at];
            tensor.dtype = part.dtype;
            tensor.dims.clone_from(&part.shape);
        }
    }
}
