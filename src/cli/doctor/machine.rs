//! Programs and hardware.

use std::path::Path;
use std::process::Command;

use protocol::InstructionSet;

use super::Finding;
use crate::cli::text::size;
use crate::config::Config;

/// The programs of this installation: they must be of one build.
pub(super) fn programs(config: &Config) -> Vec<Finding> {
    let ours = env!("CARGO_PKG_VERSION");
    let mut findings = vec![Finding::ok("lode", format!("version {ours}"))];
    let runner = &config.daemon.runner;
    let remedy = "install `lode` and `lode-runner` of one build side by side, or set LODE_RUNNER";
    findings.push(match Command::new(runner).arg("--version").output() {
        Err(error) => Finding::failure("runner", format!("`{}` cannot be run: {error}", runner.display()), remedy),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if output.status.success() && said.ends_with(&format!(" {ours}")) {
                Finding::ok("runner", format!("`{}`, version {ours}", runner.display()))
            } else {
                Finding::failure(
                    "runner",
                    format!("`{}` says `{said}`, expected version {ours}", runner.display()),
                    remedy,
                )
            }
        }
    });
    findings
}

/// What models would run on.
pub(super) fn hardware(config: &Config) -> Vec<Finding> {
    let mut findings = vec![processor(config.daemon.cpu), device(config)];
    findings.extend(memory());
    findings
}

/// Which kernels run, of those that the machine has instructions for.
fn processor(chosen: Option<InstructionSet>) -> Finding {
    let here = InstructionSet::available_names();
    let found = |set: InstructionSet| format!("{}, kernels for {} (there are {here})", cores(), set.name());
    match chosen.or_else(|| InstructionSet::available().next_back()) {
        Some(set) if !set.is_here() => {
            let found = format!("LODE_CPU is `{}`, and this machine has {here}", set.name());
            Finding::failure("processor", found, "unset LODE_CPU, or name one of these")
        }
        Some(InstructionSet::Scalar) | None if chosen.is_none() && cfg!(target_arch = "x86_64") => {
            let remedy = "models run many times slower without AVX2, FMA and F16C; where this is a virtual machine let it see the host's processor";
            Finding::warning("processor", found(InstructionSet::Scalar), remedy)
        }
        set => Finding::ok("processor", found(set.unwrap_or(InstructionSet::Scalar))),
    }
}

fn cores() -> String {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{cores} cores")
}

fn device(config: &Config) -> Finding {
    let name = &config.daemon.device;
    let has_nvidia = Path::new("/dev/nvidiactl").exists();
    if name.starts_with("cuda") && !has_nvidia {
        let remedy = "install the driver of the card, or unset LODE_DEVICE";
        return Finding::failure("device", format!("LODE_DEVICE is `{name}`, and there is no NVIDIA driver"), remedy);
    }
    let card = if has_nvidia { "there is an NVIDIA card" } else { "there is no NVIDIA card" };
    Finding::ok("device", format!("LODE_DEVICE is `{name}`; {card}"))
}

/// Memory that can be had without swapping, where the system says.
fn memory() -> Option<Finding> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let (total, available) = (kibibytes("MemTotal")? << 10, kibibytes("MemAvailable")? << 10);
    Some(Finding::ok("memory", format!("{} of {} available", size(available), size(total))))
}
