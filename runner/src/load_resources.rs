//! The resources of the machine that a load may use.

use std::sync::Arc;

use crate::text::renderer::Renderer;
use kernels::instructions::Instructions;

/// The resources of the machine that a load may use.
#[derive(Clone, Debug)]
pub(crate) struct LoadResources {
    /// Number of threads that compute on the CPU.
    pub(crate) threads: usize,
    /// Largest number of files that are mapped.
    pub(crate) maps: usize,
    /// CPU instructions that kernels use.
    pub(crate) instructions: Instructions,
    /// The processes that render templates.
    pub(crate) renderer: Arc<Renderer>,
}
