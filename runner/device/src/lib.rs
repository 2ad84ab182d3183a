//! Our kernels for GPUs, and what launches them.
//!
//! ```text
//! operations (product, rows) ──▶ arguments ──▶ Machine ──▶ a driver's stream, or the emulator
//!   check shapes, choose         as kernels        │
//!   a kernel and its grid        have them         └──▶ Memory, tensors of candle
//! ```
//!
//! Kernels are in `cuda/`: CUDA C++ whose words for threads, barriers and fragments are those of `machine.cuh`. The build compiles them
//! with nvcc where it has the feature `cuda`. The emulator has the same words for a CPU, so that tests run the same kernels with
//! the same arguments, grids and indices on machines without a GPU; `LODE_DEVICE=emulated:N` computes by it, too.
//!
//! # Invariants
//! - An operation is safe to call: it checks that every address that a kernel gets is of memory as large as the kernel reads or writes.
//! - Everything on a device is in the order of one stream, frees too, so that memory may be dropped right after a launch.
//! - A kernel has one argument, a structure; `arguments.rs` and `cuda/` say the same of each. The emulator refuses another size.

mod arguments;
mod attention;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_shared;
mod emulator;
mod experts;
mod machine;
mod product;
mod recording;
mod rows;
mod select;
mod shared;
#[cfg(feature = "cuda")]
mod staging;
#[cfg(test)]
mod tests;
mod weight;

/// The compute capability, times ten, that candle's kernels are compiled for: they run on that generation and on later ones.
#[cfg(feature = "cuda")]
pub const LEAST_CAPABILITY: &str = env!("LODE_CUDA_COMPUTE_CAP");

pub use arguments::Change;
pub use attention::{Attention, CacheRows, CachedSpan, HeadRows, TILE_POSITIONS, Turn};
pub use emulator::compile_kernels;
pub use experts::{ExpertWeights, Routes, Routing};
pub use machine::{Machine, Memory, Spare};
pub use product::{ExpertInput, ExpertRows, Input, MOST_PRODUCTS, Made, Product, Purpose, WeightSet};
pub use recording::{Obstacle, Recording, RecordingGuard};
pub use rows::{Map, Norm, NormOutput, Rounded};
pub use select::{Best, MOST_BEST, Selection};
pub use shared::{MappedSlab, Slab, SlabUse, Vault};
pub use weight::{Array, Arrays, DeviceWeight, RowBlocks};
