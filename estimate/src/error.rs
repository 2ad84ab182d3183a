//! Why a model does not fit.

/// Why there is no estimate. Variants by what a caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// All layers were wanted on devices, and not all of them fit: unload another model and try again.
    #[error(
        "{assigned} of {layers} layers fit on the devices and all of them are wanted there; unload another model first"
    )]
    RequiresFull {
        /// Layers that fit.
        assigned: usize,
        /// Layers of the model, the output among them.
        layers: usize,
    },
    /// What stays in system memory does not fit there without swapping, and the load must not be a makeshift: unload
    /// another model and try again.
    #[error("the model needs {needed} bytes of system memory and {free} are free; unload another model first")]
    RequiresFullSystemMemory {
        /// Bytes that stay off the devices.
        needed: u64,
        /// Bytes of free memory.
        free: u64,
    },
    /// What stays in system memory fits nowhere.
    #[error(
        "the model needs {needed} bytes of system memory and {available} are available, swap included; \
         a smaller context or a smaller model needs less"
    )]
    SystemMemory {
        /// Bytes that stay off the devices.
        needed: u64,
        /// Bytes of free memory and swap.
        available: u64,
    },
    /// The metadata says something that no model has.
    #[error("the model's metadata says that it has {found} blocks, expected at most {most}")]
    TooManyBlocks {
        /// What it says.
        found: u64,
        /// What is believed.
        most: u64,
    },
}
