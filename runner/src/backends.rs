//! Who computes.

pub(crate) mod candle;
mod checkpoints;
pub(crate) mod cpu;
