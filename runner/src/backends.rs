//! Backends: the implementations of [`Backend`](crate::backend::Backend).

mod blocks;
pub(crate) mod candle;
mod checkpoints;
pub(crate) mod cpu;
