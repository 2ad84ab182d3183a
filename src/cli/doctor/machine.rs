//! Checks of programs and hardware.

use std::process::Command;

use protocol::{Devices, InstructionSet};

use super::Finding;
use crate::config::Config;
use content::text::size;

/// Checks that the programs of this installation are from the same build.
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

/// Checks the hardware that models would run on.
pub(super) fn hardware(config: &Config) -> Vec<Finding> {
    let mut findings = vec![processor(config.daemon.cpu), device(config)];
    findings.extend(memory());
    findings.push(threads());
    findings
}

/// Checks that a daemon of this user could start its threads.
fn threads() -> Finding {
    match daemon::scarce_threads() {
        None => Finding::ok("threads", "the limit is high enough for the daemon and its runners"),
        Some(reason) => Finding::failure("threads", reason, "raise the limit"),
    }
}

/// Checks which kernels run, given the instruction sets of the machine.
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

/// Compares the devices that the runner finds with the configured one.
fn device(config: &Config) -> Finding {
    let asked = &config.daemon.device;
    let remedy = "install the driver of the card or a runner that is built for it, or unset LODE_DEVICE";
    let devices = match surveyed(config) {
        Ok(devices) => devices,
        Err(reason) => return Finding::failure("device", reason, "install `lode` and `lode-runner` of one build"),
    };
    let not_usable = devices.unusable.iter().map(|device| format!("{} is not usable: {}", device.name, device.reason));
    let not_usable: Vec<String> = not_usable.collect();
    // `cuda` means the first CUDA device.
    let name = if asked == "cuda" { "cuda:0" } else { asked };
    let chosen = match asked.as_str() {
        "auto" => devices.usable.first(),
        _ => devices.usable.iter().find(|device| device.name == name),
    };
    let Some(device) = chosen else {
        let found = format!("LODE_DEVICE is `{asked}`, which does not exist; {}", not_usable.join("; "));
        return Finding::failure("device", found, remedy);
    };
    let found = format!("LODE_DEVICE is `{asked}`: models are computed on {} ({})", device.name, device.description);
    let why = not_usable.into_iter().filter(|_| asked == "auto" && device.name == "cpu");
    Finding::ok("device", std::iter::once(found).chain(why).collect::<Vec<_>>().join("; "))
}

/// Queries the runner for the devices that it finds.
fn surveyed(config: &Config) -> Result<Devices, String> {
    let runner = &config.daemon.runner;
    let mut command = Command::new(runner);
    command.arg("--devices=json").env_clear().envs(config.daemon.runner_environment.iter().cloned());
    let output = command.output();
    let output = output.map_err(|error| format!("`{}` cannot be run: {error}", runner.display()))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("`{}` does not say what devices it has", runner.display()))
}

/// Reports the memory that is available without swapping, if the system reports it.
fn memory() -> Option<Finding> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let (total, available) = (kibibytes("MemTotal")? << 10, kibibytes("MemAvailable")? << 10);
    Some(Finding::ok("memory", format!("{} of {} available", size(available), size(total))))
}
