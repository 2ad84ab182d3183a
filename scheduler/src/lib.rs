//! The scheduler: which models are loaded, for how long, and the processes that run them.
//!
//! ```text
//! acquire ──▶ is a runner of this model alive? ──yes──▶ Lease ──▶ generate … ──drop──▶ idle until it expires
//!                     │ no                                ▲
//!                     └──▶ evict the longest idle ──▶ start ──▶ load
//! ```
//!
//! A runner is a process of its own: whatever happens in it, the daemon reports it to the client that waits, forgets the
//! runner, and starts a new one for the next request.

mod error;
pub mod estimate;
mod runner;
mod scheduler;

pub use error::Error;
pub use runner::{Events, Runner, RunnerOptions};
pub use scheduler::{KeepAlive, KeepAliveChoice, Lease, LoadKey, Loaded, Scheduler};
