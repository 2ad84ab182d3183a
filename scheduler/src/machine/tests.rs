//! The machine in a world of its own: chosen situations, properties of any events, a long simulation.

mod properties;
mod situations;
mod world;
