//! Who computes.

pub(crate) mod candle;
pub(crate) mod cpu;
