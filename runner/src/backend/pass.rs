//! A pass of a stage in two parts, inputs and layers, so that a backend can record the launches of
//! the layers and replay them with new inputs.

use std::fmt::Debug;

use anyhow::Result;

use super::{Backend, StageSequences};

/// The parts of a stage's pass.
pub(crate) struct PassParts<'a, B: Backend> {
    /// Computes the inputs: the rows of the tokens and their rotary angles.
    pub(crate) inputs: &'a mut Inputs<'a, B>,
    /// Computes all layers.
    pub(crate) layers: &'a mut Layers<'a, B>,
}

pub(crate) type Inputs<'a, B> = dyn FnMut(&mut Vec<<B as Backend>::Angles>) -> Result<<B as Backend>::Act> + 'a;

type Layers<'a, B> = dyn FnMut(&[<B as Backend>::Angles], <B as Backend>::Act, &mut StageSequences<'_, B>) -> Result<<B as Backend>::Act>
    + 'a;

impl<B: Backend> PassParts<'_, B> {
    /// Computes both parts, one after the other.
    pub(crate) fn compute(self, angles: &mut Vec<B::Angles>, sequences: &mut StageSequences<'_, B>) -> Result<B::Act> {
        let x = (self.inputs)(angles)?;
        (self.layers)(angles, x, sequences)
    }
}

/// The way in which the passes of a stage are computed.
pub(crate) trait PassExecution<B: Backend>: Debug + Default + Send + Sync {
    /// Computes a pass. Its result is valid until the next pass.
    ///
    /// # Errors
    /// Fails if the inputs fail, or there is no memory.
    fn compute(
        &self,
        backend: &B,
        angles: &mut Vec<B::Angles>,
        sequences: &mut StageSequences<'_, B>,
        parts: PassParts<'_, B>,
    ) -> Result<B::Act>;

    /// Returns the number of passes that were replayed from a recording.
    #[cfg(test)]
    fn replays(&self) -> u64 {
        0
    }
}

/// Computes every pass operation by operation.
#[derive(Debug, Default)]
pub(crate) struct DirectExecution;

impl<B: Backend> PassExecution<B> for DirectExecution {
    fn compute(
        &self,
        _backend: &B,
        angles: &mut Vec<B::Angles>,
        sequences: &mut StageSequences<'_, B>,
        parts: PassParts<'_, B>,
    ) -> Result<B::Act> {
        parts.compute(angles, sequences)
    }
}
