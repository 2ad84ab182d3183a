//! The layers that decoders are made of. None of them knows an architecture.

mod attention;
mod embedding;
mod linear;
mod mlp;
mod norm;
mod rope;

pub(crate) use attention::{Attention, Part, Pass};
pub(crate) use embedding::Embedding;
pub(crate) use linear::{Linear, LowRank};
pub(crate) use mlp::Mlp;
pub(crate) use norm::RmsNorm;
pub(crate) use rope::{Angles, Rotary};
