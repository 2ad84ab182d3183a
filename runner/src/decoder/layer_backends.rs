//! The backends that compute the layers of a model.

use std::ops::Range;

use crate::backends::candle::Candle;
use crate::backends::cpu::Cpu;

/// The backend of a device.
#[derive(Clone, Debug)]
pub(crate) enum DeviceBackend {
    Cpu(Cpu),
    Candle(Box<Candle>),
}

impl DeviceBackend {
    /// Returns the name of the device that computes, as in load plans.
    fn name(&self) -> &str {
        match self {
            Self::Cpu(_) => "cpu",
            Self::Candle(candle) => candle.name(),
        }
    }
}

/// The backends of a model's layers.
#[derive(Debug)]
pub(crate) struct LayerBackends {
    /// At least one backend, each with the index of the first layer that it computes, in ascending
    /// order; the first index is 0. The index after the last layer stands for the final norm and
    /// the output projection.
    stages: Vec<(usize, DeviceBackend)>,
}

impl LayerBackends {
    /// Takes the backend of each layer and, last, of the final norm and the output projection, as
    /// an index into `backends`. Consecutive layers with the same backend form a stage.
    pub(crate) fn assigned(backends: &[DeviceBackend], layers: &[usize]) -> Self {
        let is_first = |at: usize| at == 0 || layers[at - 1] != layers[at];
        let stages = layers.iter().enumerate().filter(|(at, _)| is_first(*at));
        Self { stages: stages.map(|(at, backend)| (at, backends[*backend].clone())).collect() }
    }

    /// Returns the backends of a model of so many layers, with the layers that each computes. The
    /// last one also computes the final norm and the output projection; it may have no layers.
    pub(super) fn ranges(&self, layers: usize) -> impl Iterator<Item = (Range<usize>, &DeviceBackend)> {
        let ends = self.stages[1..].iter().map(|(first, _)| *first).chain([layers]);
        self.stages.iter().zip(ends).map(|((first, backend), end)| (*first..end, backend))
    }

    /// Returns the names of the devices that compute, joined by `+`.
    pub(crate) fn name(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for name in self.stages.iter().map(|(_, backend)| backend.name()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join("+")
    }
}

/// One backend for all layers.
impl From<&Cpu> for LayerBackends {
    fn from(cpu: &Cpu) -> Self {
        Self { stages: vec![(0, DeviceBackend::Cpu(cpu.clone()))] }
    }
}

/// One backend for all layers.
impl From<&Candle> for LayerBackends {
    fn from(candle: &Candle) -> Self {
        Self { stages: vec![(0, DeviceBackend::Candle(Box::new(candle.clone())))] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_layers_form_stages() {
        let candle = Candle::new(candle_core::Device::Cpu, true).expect("the CPU");
        let backends = [DeviceBackend::Cpu(crate::fixtures::cpu()), DeviceBackend::Candle(Box::new(candle))];
        let stages = |layers: &[usize]| -> Vec<(Range<usize>, bool)> {
            let backends = LayerBackends::assigned(&backends, layers);
            let is_cpu = |backend: &DeviceBackend| matches!(backend, DeviceBackend::Cpu(_));
            backends.ranges(layers.len() - 1).map(|(range, backend)| (range, is_cpu(backend))).collect()
        };
        assert_eq!(stages(&[0, 0, 0]), [(0..2, true)]);
        assert_eq!(stages(&[0, 1, 1, 0, 0]), [(0..1, true), (1..3, false), (3..4, true)]);
        assert_eq!(stages(&[1, 1, 0]), [(0..2, false), (2..2, true)], "only the output projection");
    }
}
