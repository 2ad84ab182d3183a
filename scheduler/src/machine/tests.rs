//! Tests of the machine in a simulated world: selected situations, properties over arbitrary
//! events, and a long simulation.

mod properties;
mod situations;
mod world;
