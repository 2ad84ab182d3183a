//! Who computes.

mod blocks;
pub(crate) mod candle;
mod checkpoints;
pub(crate) mod cpu;
pub(crate) mod pipeline;
