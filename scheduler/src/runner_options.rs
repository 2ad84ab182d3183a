//! Options for starting runners.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use protocol::InstructionSet;

/// Options for starting runners.
#[derive(Clone, Debug)]
pub struct RunnerOptions {
    /// Path of the program.
    pub program: PathBuf,
    /// Folder for sockets, private to the user. It must be short: the path of a socket has at most
    /// about a hundred characters.
    pub sockets: PathBuf,
    /// The complete environment of runners. Nothing is inherited from the daemon, whose environment
    /// may contain tokens.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether runners are denied networks, other programs and files, except for the needs of
    /// drivers.
    pub isolated: bool,
    /// How long a loaded runner may go without a sign of life; `None` means forever.
    pub patience: Option<Duration>,
    /// The limit of each runner's private memory, in bytes.
    pub memory_limit: Option<u64>,
    /// How much of the unused weights stays on each GPU: bytes, or a share (`25%`).
    pub gpu_keep: String,
    /// Number of compute threads on the CPU; by default one per available core.
    pub threads: Option<usize>,
    /// The instruction set of the CPU kernels; by default the best one that the machine supports.
    pub cpu: Option<InstructionSet>,
}
