//! Projections as tensors.

use std::borrow::Cow;

use anyhow::{Context, Result};
use architectures::Rows;
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{DType, Device, Module, Tensor};
use formats::encoding::Role;
use formats::{Dtype, Encoding, GgmlType};

use super::Candle;
use crate::backend::{LowRank, MatrixSource, WeightSource};
use crate::mapped::MappedTensor;

/// A projection.
#[derive(Debug)]
pub(crate) struct Matrix {
    weight: Weight,
    bias: Option<Tensor>,
    adapters: Vec<LowRank<Candle>>,
}

#[derive(Debug)]
enum Weight {
    /// `[output, input]`.
    Float(Tensor),
    /// GGML blocks on a GPU.
    Blocks(QMatMul),
}

impl Matrix {
    pub(super) fn new(source: MatrixSource<Candle>, device: &Device, reference: bool) -> Result<Self> {
        let MatrixSource { weight, bias, adapters } = source;
        let weight = match &weight {
            WeightSource::Mapped { tensor, rows: None } if !reference => uploaded(tensor, device)?,
            _ => {
                let (numbers, dtype) = numbers(&weight)?;
                let dtype = if reference { DType::F32 } else { dtype };
                Weight::Float(numbers.to_dtype(dtype)?.to_device(device)?)
            }
        };
        let bias = bias.map(|bias| Tensor::from_slice(&bias, bias.len(), device)).transpose()?;
        Ok(Self { weight, bias, adapters })
    }

    /// `x` of `[tokens, input]` to `[tokens, output]`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = match &self.weight {
            Weight::Float(weight) => x.to_dtype(weight.dtype())?.matmul(&weight.t()?)?.to_dtype(DType::F32)?,
            Weight::Blocks(weight) => weight.forward(&x.contiguous()?)?,
        };
        let mut y = match &self.bias {
            Some(bias) => y.broadcast_add(bias)?,
            None => y,
        };
        for LowRank { down, up, scale } in &self.adapters {
            y = (y + up.forward(&(down.forward(x)? * *scale)?)?)?;
        }
        Ok(y)
    }

    /// The weight as float32.
    pub(super) fn float(&self) -> Result<Tensor> {
        match &self.weight {
            Weight::Blocks(QMatMul::QTensor(weight)) => Ok(weight.dequantize(&weight.device())?),
            Weight::Float(weight) | Weight::Blocks(QMatMul::Tensor(weight) | QMatMul::TensorF16(weight)) => {
                Ok(weight.to_dtype(DType::F32)?)
            }
        }
    }
}

/// A weight as it is where the device computes with its type, else expanded: plain types to themselves, the rest to BF16,
/// whose eight bits are more than the codes of most of them have.
fn uploaded(weight: &MappedTensor, device: &Device) -> Result<Weight> {
    if let Encoding::Blocks(kind) = weight.encoding()
        && let Some(dtype) = ggml_dtype(kind)
    {
        let view = weight.weight();
        let bytes = view.array(Role::Weight);
        // candle insists on blocks that lie at multiples of their own alignment, 4 at most; a copy does.
        let bytes = if bytes.as_ptr().align_offset(4) == 0 { Cow::Borrowed(bytes) } else { Cow::Owned(bytes.to_vec()) };
        let storage = QStorage::from_data(bytes, device, dtype)?;
        return Ok(Weight::Blocks(QMatMul::from_qtensor(QTensor::new(storage, weight.shape.as_slice())?)?));
    }
    Ok(Weight::Float(expand(weight)?.to_dtype(plain(weight.encoding()))?.to_device(device)?))
}

/// What a weight is expanded to.
fn plain(encoding: Encoding) -> DType {
    match encoding {
        Encoding::Plain(Dtype::F16) => DType::F16,
        Encoding::Plain(Dtype::F32 | Dtype::F64) => DType::F32,
        _ => DType::BF16,
    }
}

/// The numbers of a weight, `[output, input]`, and the type that they may be rounded to.
fn numbers(source: &WeightSource) -> Result<(Tensor, DType)> {
    let some = |matrix: Tensor, rows: &Option<Rows>| -> Result<Tensor> {
        let Some(rows) = rows else { return Ok(matrix) };
        let stored = (0..rows.count).map(|row| u32::try_from(rows.stored(row))).collect::<Result<Vec<_>, _>>();
        let stored = stored.context("a row beyond 2^32")?;
        Ok(matrix.index_select(&Tensor::new(stored, &Device::Cpu)?, 0)?)
    };
    Ok(match source {
        WeightSource::Mapped { tensor, rows } => (some(expand(tensor)?, rows)?, plain(tensor.encoding())),
        WeightSource::Transposed { tensor, columns } => {
            (some(expand(tensor)?.t()?.contiguous()?, columns)?, plain(tensor.encoding()))
        }
        WeightSource::Numbers { numbers, shape } => {
            (Tensor::from_slice(numbers, (shape[0], shape[1]), &Device::Cpu)?, DType::F32)
        }
    })
}

fn expand(tensor: &MappedTensor) -> Result<Tensor> {
    Ok(Tensor::from_vec(tensor.numbers(), tensor.shape.as_slice(), &Device::Cpu)?)
}

/// candle's name of a type, where it has kernels for it on every GPU. It has none for `Q8_K` on CUDA.
fn ggml_dtype(kind: GgmlType) -> Option<GgmlDType> {
    Some(match kind {
        GgmlType::Q4_0 => GgmlDType::Q4_0,
        GgmlType::Q4_1 => GgmlDType::Q4_1,
        GgmlType::Q5_0 => GgmlDType::Q5_0,
        GgmlType::Q5_1 => GgmlDType::Q5_1,
        GgmlType::Q8_0 => GgmlDType::Q8_0,
        GgmlType::Q2_K => GgmlDType::Q2K,
        GgmlType::Q3_K => GgmlDType::Q3K,
        GgmlType::Q4_K => GgmlDType::Q4K,
        GgmlType::Q5_K => GgmlDType::Q5K,
        GgmlType::Q6_K => GgmlDType::Q6K,
        _ => return None,
    })
}
