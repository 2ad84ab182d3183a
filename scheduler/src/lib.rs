//! The scheduler: decides which models are loaded and for how long, and runs the processes that
//! serve them.
//!
//! ```text
//! acquire ──▶ machine (pure): queue, places, limits ──▶ Lease ──▶ generate … ──drop──▶ idle
//!                │    ▲
//!        actions ▼    │ events
//!             scheduler ──▶ supervisor (a task per runner) ──▶ process, runner (HTTP on socket)
//! ```
//!
//! The machine makes all decisions; the other modules carry them out. Each runner is a separate
//! process. If it fails, the daemon reports the failure to the waiting client and starts a new
//! runner for the next request.

// The code that starts and queries real processes is unused when `schedules` tests the order of
// tasks.
#![cfg_attr(feature = "schedules", allow(dead_code, unused_imports))]

mod error;
pub mod gpu_driver;
mod heartbeat;
mod holder;
mod isolation;
mod load_plan;
mod loaded;
mod machine;
mod private_memory;
mod process;
mod request;
mod runner;
mod runner_options;
mod scheduler;
#[cfg(feature = "schedules")]
mod schedules;
mod supervised;
mod supervisor;
mod sync;

pub use error::Error;
pub use load_plan::{BlobSource, LoadPlan};
pub use loaded::{LoadKey, Loaded};
pub use machine::{Attempt, Context, Counts, KeepAlive, KeepAliveChoice, Limits, Residence};
pub use private_memory::PrivateMemory;
pub use request::AcquireRequest;
pub use runner::{Events, Runner};
pub use runner_options::RunnerOptions;
pub use scheduler::{Lease, Scheduler};
