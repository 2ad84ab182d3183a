//! The weights of a model by name, on the device that computes.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use formats::{HyperParameters, codec};
use protocol::LoadRequest;

use crate::adapters::{Adapters, Factor, Factors};
use crate::kernels;
use crate::layers::{Embedding, Linear, LowRank};
use crate::mapped::{self, MappedTensor, Mapper};

/// All tensors of a load plan, mapped.
#[derive(Debug)]
pub(crate) struct Weights {
    tensors: HashMap<String, MappedTensor>,
    adapters: Adapters,
    /// Where the layers compute.
    pub(crate) device: Device,
    /// Expand everything to float32.
    reference: bool,
}

impl Weights {
    /// Maps what a plan names. The expected layout of heads is `hyper`'s.
    pub(crate) fn map(plan: &LoadRequest, hyper: &HyperParameters, device: Device) -> Result<Self> {
        let mut mapper = Mapper::default();
        let tensors = plan
            .tensors
            .iter()
            // Tensors that no layer asks for may be of any type: buffers, counters.
            .filter_map(|tensor| mapped::encoding(tensor).map(|encoding| (tensor, encoding)))
            .map(|(tensor, encoding)| Ok((tensor.name.clone(), mapper.tensor(tensor, encoding)?)))
            .collect::<Result<_>>()?;
        let adapters = Adapters::map(&plan.adapters, hyper, &mut mapper)?;
        Ok(Self { tensors, adapters, device, reference: plan.reference })
    }

    /// Bytes of all tensors.
    pub(crate) fn size(&self) -> u64 {
        self.tensors.values().chain(self.adapters.tensors()).map(|tensor| tensor.size() as u64).sum()
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn get(&self, name: &str, shape: &[usize]) -> Result<&MappedTensor> {
        let tensor = self
            .tensors
            .get(name)
            .with_context(|| format!("tensor `{name}` is missing, or of a type that is not known"))?;
        ensure!(tensor.shape == shape, "tensor `{name}` has the shape {:?}, expected {shape:?}", tensor.shape);
        let encoding = tensor.encoding();
        ensure!(codec::can_decode(encoding), "tensor `{name}` is of type {encoding}, which weights cannot be");
        Ok(tensor)
    }

    /// A small tensor as float32: norms, biases.
    pub(crate) fn float(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        Ok(expand(self.get(name, shape)?)?.to_device(&self.device)?)
    }

    /// A small tensor's numbers, where it is there.
    pub(crate) fn numbers(&self, name: &str, length: usize) -> Result<Option<Vec<f32>>> {
        if !self.contains(name) {
            return Ok(None);
        }
        Ok(Some(expand(self.get(name, &[length])?)?.to_vec1()?))
    }

    /// A projection `[output, input]`, with its bias where there is one.
    pub(crate) fn linear(&self, name: &str, input: usize, output: usize) -> Result<Linear> {
        let weight = self.get(&format!("{name}.weight"), &[output, input])?;
        let bias_name = format!("{name}.bias");
        let bias = if self.contains(&bias_name) { Some(self.float(&bias_name, &[output])?) } else { None };
        self.adapted(name, weight, bias)
    }

    /// A projection with what adapters add to it.
    fn adapted(&self, name: &str, weight: &MappedTensor, bias: Option<Tensor>) -> Result<Linear> {
        let (output, input) = (weight.shape[0], weight.shape[1]);
        let adapters = self.adapters.of(name).iter().map(|Factors { down, up, scale }| {
            let rank = down.shape().0;
            let (found, expected) = ((up.shape(), down.shape()), ((output, rank), (rank, input)));
            ensure!(found == expected, "an adapter of `{name}` has the shapes {found:?}, expected {expected:?}");
            Ok(LowRank { down: self.factor(down)?, up: self.factor(up)?, scale: *scale })
        });
        Ok(self.projection(weight, bias)?.adapted(adapters.collect::<Result<_>>()?))
    }

    /// Whether all that adapters add is added somewhere; for when all layers are made.
    ///
    /// # Errors
    /// What is not.
    pub(crate) fn check_adapters(&self) -> Result<()> {
        self.adapters.check_used()
    }

    fn factor(&self, factor: &Factor) -> Result<Linear> {
        match factor.mapped() {
            Some(mapped) => self.projection(mapped, None),
            None => Ok(Linear::float(factor.expanded()?.to_device(&self.device)?, None)),
        }
    }

    fn projection(&self, weight: &MappedTensor, bias: Option<Tensor>) -> Result<Linear> {
        if self.reference {
            return Ok(Linear::float(expand(weight)?.to_device(&self.device)?, bias));
        }
        match self.device {
            Device::Cpu => Ok(Linear::mapped(Arc::new(weight.clone()), bias)),
            _ => Linear::on_device(weight, &self.device, bias),
        }
    }

    /// The token embedding `[vocabulary, hidden]`.
    pub(crate) fn embedding(&self, name: &str, vocabulary: usize, hidden: usize) -> Result<Embedding> {
        // Rows are expanded one by one and exactly, so the reference needs no other way.
        Ok(Embedding::new(self.get(name, &[vocabulary, hidden])?.clone(), self.device.clone()))
    }

    /// The embedding as the output projection of that name.
    pub(crate) fn tied(&self, name: &str, embedding: &str, vocabulary: usize, hidden: usize) -> Result<Linear> {
        self.adapted(name, self.get(embedding, &[vocabulary, hidden])?, None)
    }
}

/// A tensor expanded to float32, on the CPU.
pub(crate) fn expand(tensor: &MappedTensor) -> Result<Tensor> {
    let weight = tensor.weight();
    let mut numbers = vec![0.0; weight.rows() * weight.columns()];
    if !numbers.is_empty() {
        kernels::for_rows(&mut numbers, weight.columns(), |row, out| weight.decode_row(row, out));
    }
    Ok(Tensor::from_vec(numbers, tensor.shape.as_slice(), &Device::Cpu)?)
}
