//! Projections as tensors.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use architectures::Rows;
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{DType, Device, Module, Tensor};
use device::{DeviceWeight, GpuRuntime, RowBlocks};
use formats::encoding::Role;
use formats::{Dtype, Encoding, GgmlType};

use super::super::Candle;
use super::Act;
use crate::backend::{LowRank, MatrixSource, WeightSource};
use crate::failure;
use crate::mapped::MappedTensor;

/// A projection.
#[derive(Debug)]
pub(crate) struct CandleMatrix {
    weight: Weight,
    bias: Option<Tensor>,
    adapters: Vec<LowRank<Candle>>,
}

#[derive(Debug)]
enum Weight {
    /// `[output, input]`.
    Float(Tensor),
    /// GGML blocks on a GPU that has none of our kernels.
    Blocks(QMatMul),
    /// The weight as it is stored, for our kernels; includes the bias.
    Device(Arc<DeviceMatrix>),
}

/// A weight for our kernels, with its bias.
#[derive(Debug)]
pub(in crate::backends::candle) struct DeviceMatrix {
    pub(in crate::backends::candle) weight: DeviceWeight,
    pub(in crate::backends::candle) bias: Option<Tensor>,
    /// The weight as float32, once it was needed in this form.
    float: OnceLock<Tensor>,
}

impl CandleMatrix {
    pub(in crate::backends::candle) fn new(source: MatrixSource<Candle>, backend: &Candle) -> Result<Self> {
        let MatrixSource { weight, bias, adapters } = source;
        let Candle { device, reference, kernels, bytes, .. } = backend;
        let bias = bias.map(|bias| Tensor::from_slice(&bias, bias.len(), device)).transpose()?;
        if let Some(kernels) = kernels {
            let stored = match &weight {
                WeightSource::Mapped { tensor, rows } => {
                    kernels.resident.weight(&kernels.machine, tensor, *rows, bytes)?
                }
                _ => None,
            };
            let weight = match stored {
                Some(weight) => weight,
                None => expanded(&kernels.machine, &weight, bytes)?,
            };
            let own = Arc::new(DeviceMatrix { weight, bias, float: OnceLock::new() });
            return Ok(Self { weight: Weight::Device(own), bias: None, adapters });
        }
        let weight = match &weight {
            WeightSource::Mapped { tensor, rows: None } if !reference => {
                bytes.fetch_add(tensor.size() as u64, Ordering::Relaxed);
                uploaded(tensor, device)?
            }
            _ => {
                let (numbers, dtype) = numbers(&weight)?;
                let dtype = if *reference { DType::F32 } else { dtype };
                Weight::Float(numbers.to_dtype(dtype)?.to_device(device)?)
            }
        };
        Ok(Self { weight, bias, adapters })
    }

    /// Returns the weight for our kernels; `None` if there are adapters too.
    pub(in crate::backends::candle) fn of_device(&self) -> Option<&Arc<DeviceMatrix>> {
        match &self.weight {
            Weight::Device(own) if self.adapters.is_empty() => Some(own),
            _ => None,
        }
    }

    /// Multiplies: `x` of `[tokens, input]` to `[tokens, output]`.
    pub(in crate::backends::candle) fn forward(&self, backend: &Candle, x: &Tensor) -> Result<Tensor> {
        let y = match &self.weight {
            Weight::Float(weight) => x.to_dtype(weight.dtype())?.matmul(&weight.t()?)?.to_dtype(DType::F32)?,
            Weight::Blocks(weight) => weight.forward(&x.contiguous()?)?,
            Weight::Device(own) => return self.adapted(backend, own.forward(backend, x)?, x),
        };
        let y = match &self.bias {
            Some(bias) => y.broadcast_add(bias)?,
            None => y,
        };
        self.adapted(backend, y, x)
    }

    /// Adds the adapters' products of `x` to `y`.
    fn adapted(&self, backend: &Candle, mut y: Tensor, x: &Tensor) -> Result<Tensor> {
        for LowRank { down, up, scale } in &self.adapters {
            y = (y + up.forward(backend, &(down.forward(backend, x)? * *scale)?)?)?;
        }
        Ok(y)
    }

    /// Returns the weight as float32.
    pub(in crate::backends::candle) fn float(&self, backend: &Candle) -> Result<Tensor> {
        match &self.weight {
            Weight::Blocks(QMatMul::QTensor(weight)) => Ok(weight.dequantize(&weight.device())?),
            Weight::Float(weight) | Weight::Blocks(QMatMul::Tensor(weight) | QMatMul::TensorF16(weight)) => {
                Ok(weight.to_dtype(DType::F32)?)
            }
            // The product with the identity matrix gives the columns of the weight.
            Weight::Device(own) => {
                if own.float.get().is_none() {
                    let identity = Tensor::eye(own.weight.columns(), DType::F32, &backend.device)?;
                    let _ = own.float.set(own.forward(backend, &identity)?.t()?.contiguous()?);
                }
                own.float.get().cloned().context("invariant: it has just been put there")
            }
        }
    }
}

impl DeviceMatrix {
    pub(in crate::backends::candle) fn with_bias(&self) -> (&DeviceWeight, Option<&Tensor>) {
        (&self.weight, self.bias.as_ref())
    }

    fn forward(self: &Arc<Self>, backend: &Candle, x: &Tensor) -> Result<Tensor> {
        let kernels = backend.kernels.as_ref().context("invariant: the weight is where kernels are")?;
        let product = Act::products(kernels, vec![vec![self.clone()]], None, &Act::of(x.contiguous()?))?;
        Ok(product[0].rows()?.clone())
    }
}

/// Uploads a weight. Blocks stay as they are stored if candle computes with their type. Other
/// weights are expanded: plain types to themselves, the rest to BF16, whose 8 bits of precision
/// exceed the codes of most of them.
fn uploaded(weight: &MappedTensor, device: &Device) -> Result<Weight> {
    if let Encoding::Blocks(kind) = weight.encoding()
        && let Some(dtype) = ggml_dtype(kind)
    {
        let view = weight.weight();
        let bytes = view.array(Role::Weight);
        // candle requires blocks aligned to 4 bytes at most; a copy is.
        let bytes = if bytes.as_ptr().align_offset(4) == 0 { Cow::Borrowed(bytes) } else { Cow::Owned(bytes.to_vec()) };
        let storage = QStorage::from_data(bytes, device, dtype)?;
        return Ok(Weight::Blocks(QMatMul::from_qtensor(QTensor::new(storage, weight.shape.as_slice())?)?));
    }
    Ok(Weight::Float(expand(weight)?.to_dtype(plain(weight.encoding()))?.to_device(device)?))
}

/// Returns the type to which a weight is expanded.
fn plain(encoding: Encoding) -> DType {
    match encoding {
        Encoding::Plain(Dtype::F16) => DType::F16,
        Encoding::Plain(Dtype::F32 | Dtype::F64) => DType::F32,
        _ => DType::BF16,
    }
}

/// Uploads a weight that is transposed, or that no kernel reads, as numbers of a plain type.
fn expanded(machine: &GpuRuntime, source: &WeightSource, taken: &AtomicU64) -> Result<DeviceWeight> {
    let (numbers, dtype) = numbers(source)?;
    let [rows, columns] = source.shape();
    let (plain, bytes) = match dtype {
        DType::BF16 => (Dtype::Bf16, bytes_of(&numbers, |x| half::bf16::from_f32(x).to_le_bytes())?),
        DType::F16 => (Dtype::F16, bytes_of(&numbers, |x| half::f16::from_f32(x).to_le_bytes())?),
        _ => (Dtype::F32, bytes_of(&numbers, f32::to_le_bytes)?),
    };
    let memory = machine.upload(&bytes).context("not enough device memory for the model's weights");
    let memory = Arc::new(memory.map_err(|error| failure::out_of_memory(&error))?);
    taken.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    let codes = device::DeviceArray { memory, offset: 0, size: bytes.len() };
    let arrays = device::Arrays { codes, scales: None, biases: None, global_scale: None };
    DeviceWeight::new(Encoding::Plain(plain), [rows, columns], arrays, RowBlocks::all(rows))
}

fn bytes_of<const SIZE: usize>(numbers: &Tensor, bytes: impl Fn(f32) -> [u8; SIZE]) -> Result<Vec<u8>> {
    Ok(numbers.flatten_all()?.to_vec1::<f32>()?.into_iter().flat_map(bytes).collect())
}

/// Returns the numbers of a weight, `[output, input]`, and the type to which they may be rounded.
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

/// Returns candle's name of a type, if candle has kernels for it on every GPU. It has none for
/// `Q8_K` on CUDA.
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
