//! The registry's server.

pub mod access;
