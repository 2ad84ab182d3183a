//! Which tensors of safetensors files are arrays of one weight.

use formats::encoding::Role;

use super::{Home, SourceTensor, mlx, model_opt};
use crate::apart::{self, Array, Found};
use crate::{Error, QuantizationConfig};

/// Tells each tensor what it is of which weight. Says whether there is a weight that MLX quantized.
///
/// # Errors
/// A weight that is quantized by MLX, but not as the config says.
pub(super) fn find(tensors: &mut [SourceTensor], config: &QuantizationConfig) -> Result<bool, Error> {
    let arrays: Vec<Array<'_>> =
        tensors.iter().map(|tensor| Array { name: &tensor.name, dtype: tensor.dtype, shape: &tensor.dims }).collect();
    let by_mlx = mlx::find(&arrays, config).map_err(Error::Source)?;
    let combined: Vec<Found> = by_mlx.iter().cloned().chain(model_opt::find(&arrays)).collect();
    let apart = apart::find(&arrays, config);
    for weight in apart {
        mark(tensors, &weight, Home::Own);
    }
    for weight in &combined {
        mark(tensors, weight, Home::Weight);
        relabel(tensors, weight);
    }
    Ok(!by_mlx.is_empty())
}

fn mark(tensors: &mut [SourceTensor], weight: &Found, home: Home) {
    for (role, at) in &weight.parts {
        let tensor = &mut tensors[*at];
        tensor.weight.clone_from(&weight.name);
        tensor.role = *role;
        tensor.home = home;
        tensor.encoding = weight.encoding;
        tensor.shape.clone_from(&weight.shape);
    }
}

/// Gives the arrays of a combined blob the element types and dimensions that every such blob has; the bytes stay.
fn relabel(tensors: &mut [SourceTensor], weight: &Found) {
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
