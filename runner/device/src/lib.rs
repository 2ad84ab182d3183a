//! Our GPU kernels, and the code that launches them.
//!
//! ```text
//! operations (product, rows) ──▶ arguments ──▶ Machine ──▶ a driver's stream, or the emulator
//!   check shapes, choose         as kernels        │
//!   a kernel and its grid        expect them       └──▶ Memory, tensors of candle
//! ```
//!
//! Kernels are in `cuda/`. They are CUDA C++ that uses the functions of `machine.cuh` for threads,
//! barriers and fragments. With the feature `cuda`, the build compiles them with nvcc. The emulator
//! implements the same functions on a CPU. So tests run the same kernels with the same arguments,
//! grids and indices on machines without a GPU. `LODE_DEVICE=emulated:N` computes with it, too.
//!
//! # Invariants
//! - Operations are safe to call: they check that every address that a kernel gets points to as
//!   much memory as the kernel reads or writes.
//! - All work on a device, including frees, is ordered by one stream, so memory may be dropped
//!   right after a launch.
//! - A kernel takes one argument, a structure that `arguments.rs` and `cuda/` declare alike. The
//!   emulator rejects other sizes.

mod arguments;
mod attention;
mod emulator;
mod experts;
mod machine;
mod product;
mod rows;
mod select;
#[cfg(test)]
mod tests;
mod weight;

/// Least compute capability of this build, times ten. candle's kernels are compiled for it, and run
/// on it and on later ones.
#[cfg(feature = "cuda")]
pub const LEAST_CAPABILITY: &str = env!("LODE_CUDA_COMPUTE_CAP");

pub use arguments::Change;
pub use attention::{Attention, AttentionInput, CacheRows, CachedSpan, HeadRows, Rotary, TILE_POSITIONS};
pub use emulator::compile_kernels;
pub use experts::{ExpertWeights, Routes, Routing};
pub use machine::recording::{Obstacle, Recording, RecordingGuard};
pub use machine::shared::{MappedSlab, Slab, SlabUse, Vault};
pub use machine::{GpuRuntime, Memory, Spare};
pub use product::{ExpertInput, ExpertRows, Made, Product, ProductInput, Purpose};
pub use rows::{Map, Norm, NormOutput, Rounded};
pub use select::{Best, MOST_BEST, Selection};
pub use weight::{Arrays, DeviceArray, DeviceWeight, MOST_PRODUCTS, RowBlocks, WeightSet};
