//! The backends that compute the layers of a model.

use std::ops::Range;

use crate::backends::candle::Candle;
use crate::backends::cpu::Cpu;

/// A backend that computes consecutive layers.
#[derive(Clone, Debug)]
pub(crate) enum StageBackend {
    Cpu(Cpu),
    Candle(Box<Candle>),
}

impl StageBackend {
    /// Returns the name of the device that computes, as in load plans.
    fn name(&self) -> &str {
        match self {
            Self::Cpu(_) => "cpu",
            Self::Candle(candle) => candle.name(),
        }
    }
}

/// The backends of a model's layers.
#[derive(Clone, Debug)]
pub(crate) struct LayerBackends {
    /// Each with the index of the first layer that it computes, in ascending order; the first index
    /// is 0. The index after the last layer stands for the final norm and the output projection.
    stages: Vec<(usize, StageBackend)>,
}

impl LayerBackends {
    /// Takes the backend of each layer and, last, of the final norm and the output projection, as
    /// an index into `backends`.
    pub(crate) fn assigned(backends: &[StageBackend], layers: &[usize]) -> Self {
        let is_first = |at: usize| at == 0 || layers[at - 1] != layers[at];
        let stages = layers.iter().enumerate().filter(|(at, _)| is_first(*at));
        Self { stages: stages.map(|(at, backend)| (at, backends[*backend].clone())).collect() }
    }

    /// Returns the backends of a model of so many layers, with the layers that each computes. The
    /// last one also computes the final norm and the output projection; it may have no layers.
    pub(super) fn ranges(&self, layers: usize) -> impl Iterator<Item = (Range<usize>, &StageBackend)> {
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
impl From<StageBackend> for LayerBackends {
    fn from(backend: StageBackend) -> Self {
        Self { stages: vec![(0, backend)] }
    }
}

impl From<&Cpu> for LayerBackends {
    fn from(cpu: &Cpu) -> Self {
        StageBackend::Cpu(cpu.clone()).into()
    }
}

impl From<&Candle> for LayerBackends {
    fn from(candle: &Candle) -> Self {
        StageBackend::Candle(Box::new(candle.clone())).into()
    }
}
