//! Projections: `y = x · Wᵀ + b`, and what adapters add.

use std::borrow::Cow;
use std::sync::Arc;

use anyhow::Result;
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{CpuStorage, CustomOp1, DType, Device, Layout, Module, Shape, Tensor};
use formats::encoding::Role;
use formats::{Dtype, Encoding, GgmlType};

use crate::kernels;
use crate::mapped::MappedTensor;
use crate::weights::expand;

/// A projection; weights `[output, input]`.
#[derive(Debug)]
pub(crate) struct Linear {
    weight: Weight,
    bias: Option<Tensor>,
    adapters: Vec<LowRank>,
}

/// What an adapter adds to a projection: `scale · up(down(x))`.
#[derive(Debug)]
pub(crate) struct LowRank {
    /// `[rank, input]`.
    pub(crate) down: Linear,
    /// `[output, rank]`.
    pub(crate) up: Linear,
    pub(crate) scale: f64,
}

#[derive(Debug)]
enum Weight {
    /// Mapped bytes, computed with by our kernels. CPU only.
    Mapped(Arc<MappedTensor>),
    /// Numbers on any device.
    Float(Tensor),
    /// GGML blocks on a GPU.
    Blocks(QMatMul),
}

impl Linear {
    fn new(weight: Weight, bias: Option<Tensor>) -> Self {
        Self { weight, bias, adapters: Vec::new() }
    }

    /// With what adapters add to it.
    pub(crate) fn adapted(self, adapters: Vec<LowRank>) -> Self {
        Self { adapters, ..self }
    }

    pub(crate) fn mapped(weight: Arc<MappedTensor>, bias: Option<Tensor>) -> Self {
        Self::new(Weight::Mapped(weight), bias)
    }

    pub(crate) fn float(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self::new(Weight::Float(weight), bias)
    }

    /// Uploads a weight as it is where the device computes with its type, else expanded: plain types to themselves,
    /// the rest to BF16, whose eight bits are more than the codes of most of them have.
    pub(crate) fn on_device(weight: &MappedTensor, device: &Device, bias: Option<Tensor>) -> Result<Self> {
        let dtype = match weight.encoding() {
            Encoding::Blocks(kind) => match ggml_dtype(kind) {
                Some(dtype) => return Self::blocks(weight, dtype, device, bias),
                None => DType::BF16,
            },
            Encoding::Plain(Dtype::F16) => DType::F16,
            Encoding::Plain(Dtype::F32 | Dtype::F64) => DType::F32,
            _ => DType::BF16,
        };
        Ok(Self::float(expand(weight)?.to_dtype(dtype)?.to_device(device)?, bias))
    }

    fn blocks(weight: &MappedTensor, dtype: GgmlDType, device: &Device, bias: Option<Tensor>) -> Result<Self> {
        let view = weight.weight();
        let bytes = view.array(Role::Weight);
        // candle insists on blocks that lie at multiples of their own alignment, 4 at most; a copy does.
        let bytes = if bytes.as_ptr().align_offset(4) == 0 { Cow::Borrowed(bytes) } else { Cow::Owned(bytes.to_vec()) };
        let storage = QStorage::from_data(bytes, device, dtype)?;
        let weight = QMatMul::from_qtensor(QTensor::new(storage, weight.shape.as_slice())?)?;
        Ok(Self::new(Weight::Blocks(weight), bias))
    }

    /// `x` of `[…, input]` to `[…, output]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = match &self.weight {
            Weight::Mapped(weight) => x.contiguous()?.apply_op1_no_bwd(&MappedMatMul(weight))?,
            Weight::Float(weight) => {
                let (lead, columns) = (x.elem_count() / x.dim(candle_core::D::Minus1)?, x.dim(candle_core::D::Minus1)?);
                let mut shape = x.dims().to_vec();
                if let Some(last) = shape.last_mut() {
                    *last = weight.dim(0)?;
                }
                let flat = x.reshape((lead, columns))?.to_dtype(weight.dtype())?;
                flat.matmul(&weight.t()?)?.to_dtype(DType::F32)?.reshape(shape)?
            }
            Weight::Blocks(weight) => weight.forward(x)?,
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

/// Our kernels as an operation of candle.
struct MappedMatMul<'a>(&'a MappedTensor);

impl CustomOp1 for MappedMatMul<'_> {
    fn name(&self) -> &'static str {
        "mapped-matmul"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let (rows, columns) = (self.0.shape[0], self.0.shape[1]);
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("the input of a projection is not contiguous");
        };
        let x = &storage.as_slice::<f32>()?[start..end];
        let mut shape = layout.dims().to_vec();
        match shape.last_mut() {
            Some(last) if *last == columns => *last = rows,
            _ => candle_core::bail!("a projection of {columns} columns was given {:?}", layout.dims()),
        }
        let m = x.len() / columns;
        let mut out = vec![0.0; m * rows];
        kernels::matmul(&self.0.weight(), x, m, &mut out).map_err(|e| candle_core::Error::Msg(e.to_string()))?;
        Ok((CpuStorage::F32(out), Shape::from(shape)))
    }
}
