//! The scheduler: which models are loaded, for how long, and the processes that run them.
//!
//! ```text
//! acquire ──▶ machine (pure): queue, places, limits ──▶ Lease ──▶ generate … ──drop──▶ idle until it expires
//!                │    ▲
//!        actions ▼    │ events
//!             scheduler ──▶ supervisor (a task per runner) ──▶ process, runner (HTTP on its socket)
//! ```
//!
//! The machine decides, everything else carries out. A runner is a process of its own: whatever
//! happens in it, the daemon reports it to the client that waits, and starts a new one for the next request.

// What starts and asks real processes has nothing to do where orders of tasks are tried.
#![cfg_attr(feature = "schedules", allow(dead_code, unused_imports))]

mod error;
pub mod gpu_driver;
mod heartbeat;
mod holder;
mod isolation;
mod load_plan;
mod machine;
mod private_memory;
mod process;
mod runner;
mod scheduler;
#[cfg(feature = "schedules")]
mod schedules;
mod supervisor;
mod sync;

pub use error::Error;
pub use load_plan::{BlobSource, LoadPlan, OpenError};
pub use machine::{Context, Counts, KeepAlive, KeepAliveChoice, Limits, Residence};
pub use private_memory::PrivateMemory;
pub use process::RunnerOptions;
pub use runner::{Events, Runner};
pub use scheduler::{Attempt, Lease, LoadKey, Loaded, Scheduler, Wanted};
