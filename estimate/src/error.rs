//! Reasons why a model does not fit.

/// The reason why there is no estimate. Variants differ by what a caller can do about them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// All layers were requested on devices, but not all fit. The caller can unload another model
    /// and try again.
    #[error(
        "{assigned} of {layers} layers fit on the devices and all of them are wanted there; unload another model first"
    )]
    RequiresFull {
        /// Number of layers that fit.
        assigned: usize,
        /// Number of layers of the model, including the output.
        layers: usize,
    },
    /// The part in system memory does not fit without swapping, and the caller refuses a partial
    /// load. The caller can unload another model and try again.
    #[error("the model needs {needed} bytes of system memory and {free} are free; unload another model first")]
    RequiresFullSystemMemory {
        /// Bytes that are not on devices.
        needed: u64,
        /// Bytes of free system memory.
        free: u64,
    },
    /// The part in system memory fits into neither memory nor swap.
    #[error(
        "the model needs {needed} bytes of system memory and {available} are available, swap included; \
         a smaller context or a smaller model needs less"
    )]
    SystemMemory {
        /// Bytes that are not on devices.
        needed: u64,
        /// Bytes of free memory and swap.
        available: u64,
    },
    /// The metadata states an implausible number of blocks.
    #[error("the model's metadata has {found} blocks, expected at most {most}")]
    TooManyBlocks {
        /// The number in the metadata.
        found: u64,
        /// The largest number that is accepted.
        most: u64,
    },
}
