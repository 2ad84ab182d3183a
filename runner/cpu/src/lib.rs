//! Kernels for CPUs: products with weights as they are stored, rows of KV caches, elementwise
//! operations; the thread pool that runs them, and their buffers.
//!
//! The runner's backend for CPUs calls them. They know no layers and no sequences.
//!
//! # Invariants
//! - The scalar code of each kernel is its definition. [`Instructions`](instructions::Instructions)
//!   selects the instruction set at run time.
//! - Kernels read weights where they are mapped; no copy in another form is kept.
//! - `unsafe` is in [`pool`], in modules that use vector instructions, in unchecked look-ups of
//!   [`int8`], and where threads write parts of one slice.

pub mod arena;
pub mod elementwise;
pub mod float;
pub mod gemm;
pub mod instructions;
pub mod int8;
pub mod kv_rows;
pub mod pool;
pub mod rotation;
pub mod rounded;
#[cfg(test)]
mod skipped;
