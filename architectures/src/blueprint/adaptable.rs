//! Projections of a blueprint that an adapter can change.

use super::{Matrices, Projection};

/// Target that an adapter can change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Adaptable<'a> {
    /// A single projection.
    One(&'a Projection),
    /// This many projections of the same shape: of experts or of heads.
    Many(&'a Matrices, u64),
}
