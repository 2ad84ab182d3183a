//! A pass in two parts, so that a backend may compute the second in its own way.

use anyhow::Result;

use super::{Backend, Sequence};

/// What a decoder does in a pass.
pub(crate) struct PassParts<'a, B: Backend> {
    /// What goes in: rows of the tokens, and the angles that turn them.
    pub(crate) inputs: &'a mut Inputs<'a, B>,
    /// All layers.
    pub(crate) layers: &'a mut Layers<'a, B>,
}

pub(crate) type Inputs<'a, B> = dyn FnMut(&mut Vec<<B as Backend>::Angles>) -> Result<<B as Backend>::Act> + 'a;

type Layers<'a, B> = dyn FnMut(&[<B as Backend>::Angles], <B as Backend>::Act, &mut [Sequence<'_, B>]) -> Result<<B as Backend>::Act>
    + 'a;

impl<B: Backend> PassParts<'_, B> {
    /// Computes one after the other.
    pub(crate) fn compute(self, angles: &mut Vec<B::Angles>, sequences: &mut [Sequence<'_, B>]) -> Result<B::Act> {
        let x = (self.inputs)(angles)?;
        (self.layers)(angles, x, sequences)
    }
}
