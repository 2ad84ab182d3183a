//! Options of commands that start a job.

use anyhow::Result;
use api::lode::JobPriority;
use clap::{Args, ValueEnum};

use crate::config::bandwidth::rate;

/// The priority of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Priority {
    Low,
    Normal,
    High,
}

impl From<Priority> for JobPriority {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Low => Self::Low,
            Priority::Normal => Self::Normal,
            Priority::High => Self::High,
        }
    }
}

/// Limit and priority of a transfer that is requested.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct JobSettings {
    /// Do not wait; `lode jobs` shows the transfer
    #[arg(long, short)]
    pub(super) detach: bool,
    /// Limit of this transfer in bytes per second, e.g. 10MB/s
    #[arg(long, value_name = "RATE", value_parser = limit)]
    pub(super) limit: Option<u64>,
    /// While a transfer of a higher priority has data, others wait
    #[arg(long, value_enum)]
    pub(super) priority: Option<Priority>,
}

/// Parses a limit; 0 is none.
pub(super) fn limit(text: &str) -> Result<u64> {
    Ok(rate(text)?.unwrap_or(0))
}
