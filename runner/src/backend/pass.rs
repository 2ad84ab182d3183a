//! A pass in two parts, inputs and layers, so that a backend may compute the layers in its own way.

use anyhow::Result;

use super::{Backend, Sequence};

/// The parts of a decoder's pass.
pub(crate) struct PassParts<'a, B: Backend> {
    /// Computes the inputs: the rows of the tokens and their rotary angles.
    pub(crate) inputs: &'a mut Inputs<'a, B>,
    /// Computes all layers.
    pub(crate) layers: &'a mut Layers<'a, B>,
}

pub(crate) type Inputs<'a, B> = dyn FnMut(&mut Vec<<B as Backend>::Angles>) -> Result<<B as Backend>::Act> + 'a;

type Layers<'a, B> = dyn FnMut(&[<B as Backend>::Angles], <B as Backend>::Act, &mut [Sequence<'_, B>]) -> Result<<B as Backend>::Act>
    + 'a;

impl<B: Backend> PassParts<'_, B> {
    /// Computes both parts, one after the other.
    pub(crate) fn compute(self, angles: &mut Vec<B::Angles>, sequences: &mut [Sequence<'_, B>]) -> Result<B::Act> {
        let x = (self.inputs)(angles)?;
        (self.layers)(angles, x, sequences)
    }
}
