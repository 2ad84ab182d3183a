//! Which device computes: a choice at run time among what the build and the machine have.
//!
//! Only this module and what is below it name CUDA or Metal.

#[cfg(feature = "cuda")]
mod cuda;

use std::fmt::Write;

use anyhow::{Context, Error, Result, bail};
use candle_core::Device;
use protocol::{Devices, UnusableDevice};

/// Whether there is no other device for this build than the CPU.
pub(crate) const IS_CPU_ONLY: bool = !cfg!(any(feature = "cuda", feature = "metal"));

/// A device to compute on.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) device: Device,
    /// What it is, or why no other was chosen.
    pub(crate) note: String,
}

/// The device for `auto`, `cpu`, `cuda`, `cuda:N` or `metal`.
///
/// `auto` takes the first GPU that works and the CPU where none does, and the note says why; asking for what the build or the machine
/// lacks is an error, never a silent fallback.
pub(crate) fn open(choice: &str) -> Result<Opened> {
    match choice {
        "cpu" => Ok(Opened { device: Device::Cpu, note: "as it was asked for".to_owned() }),
        "auto" => Ok(automatic()),
        "metal" => metal().context("the Metal device cannot be used; choose the device `cpu`"),
        other => match other.strip_prefix("cuda") {
            Some("") => asked_for(0),
            Some(index) => match index.strip_prefix(':').and_then(|n| n.parse().ok()) {
                Some(index) => asked_for(index),
                None => bail!("device `{other}` is not known; expected auto, cpu, cuda:N or metal"),
            },
            None => bail!("device `{other}` is not known; expected auto, cpu, cuda:N or metal"),
        },
    }
}

/// Every device that [`open`] could give, and why others could not be had.
pub(crate) fn survey() -> Devices {
    let mut devices = Devices::default();
    #[cfg(feature = "cuda")]
    cuda::survey(&mut devices);
    #[cfg(not(feature = "cuda"))]
    devices.unusable.push(unusable("cuda", &lacks_cuda()));
    match metal() {
        Ok(opened) => devices.usable.push(described(&opened)),
        Err(error) => devices.unusable.push(unusable("metal", &error)),
    }
    devices.usable.push(protocol::Device {
        name: "cpu".to_owned(),
        description: format!("{} threads", crate::cpus::threads()),
        free: None,
        total: None,
    });
    devices
}

/// A survey for people, a line for each device.
pub(crate) fn table(devices: &Devices) -> String {
    let mut text = String::new();
    for protocol::Device { name, description, free, total } in &devices.usable {
        let _ = write!(text, "{name}\t{description}");
        if let (Some(free), Some(total)) = (free, total) {
            let [free, total] = [free, total].map(|bytes| *bytes as f64 / f64::from(1 << 30));
            let _ = write!(text, ", {free:.1} of {total:.1} GiB free");
        }
        text.push('\n');
    }
    for UnusableDevice { name, reason } in &devices.unusable {
        let _ = writeln!(text, "{name}\tnot usable: {reason}");
    }
    text
}

/// Bytes of a device's memory that are free, and all; where it has memory of its own that can be asked for.
pub(crate) fn memory(device: &Device) -> Option<(u64, u64)> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::memory(device).ok(),
        _ => None,
    }
}

fn automatic() -> Opened {
    let mut reasons = Vec::new();
    for (kind, found) in [("CUDA", cuda(0)), ("Metal", metal())] {
        match found {
            Ok(opened) => return opened,
            // What no machine like this one has says nothing.
            Err(_) if kind == "Metal" && !cfg!(target_os = "macos") => {}
            Err(_) if kind == "CUDA" && cfg!(target_os = "macos") => {}
            Err(error) => reasons.push(format!("{error:#}")),
        }
    }
    Opened { device: Device::Cpu, note: reasons.join("; ") }
}

fn asked_for(index: usize) -> Result<Opened> {
    cuda(index).with_context(|| format!("CUDA device {index} cannot be used; choose the device `cpu`"))
}

fn cuda(index: usize) -> Result<Opened> {
    #[cfg(feature = "cuda")]
    return cuda::open(index);
    #[cfg(not(feature = "cuda"))]
    Err(lacks_cuda().context(format!("there is no CUDA device {index} for this runner")))
}

#[cfg(not(feature = "cuda"))]
fn lacks_cuda() -> Error {
    Error::msg("it was built without CUDA: build it with `--features cuda` and the toolkit of `scripts/cuda-toolkit`")
}

fn metal() -> Result<Opened> {
    if !cfg!(feature = "metal") {
        bail!("this runner was built without Metal: build it with `--features metal` on a Mac");
    }
    Ok(Opened { device: Device::new_metal(0)?, note: "the Metal device of this machine".to_owned() })
}

fn described(opened: &Opened) -> protocol::Device {
    protocol::Device { name: name(&opened.device), description: opened.note.clone(), free: None, total: None }
}

fn unusable(name: &str, reason: &Error) -> UnusableDevice {
    UnusableDevice { name: name.to_owned(), reason: format!("{reason:#}") }
}

/// The name of a device as [`open`] takes it.
pub(crate) fn name(device: &Device) -> String {
    match device.location() {
        candle_core::DeviceLocation::Cpu => "cpu".to_owned(),
        candle_core::DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        candle_core::DeviceLocation::Metal { .. } => "metal".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_the_build_lacks() {
        assert!(matches!(open("cpu"), Ok(Opened { device: Device::Cpu, .. })));
        for (choice, expect) in [("tpu", "not known"), ("cuda:x", "not known"), ("cudaa", "not known")] {
            assert!(open(choice).expect_err(choice).to_string().contains(expect));
        }
        if !cfg!(feature = "cuda") {
            assert!(format!("{:#}", open("cuda:0").expect_err("no CUDA")).contains("--features cuda"));
            let opened = open("auto").expect("the CPU");
            assert!(matches!(opened.device, Device::Cpu) && opened.note.contains("--features cuda"), "{opened:?}");
        }
        if !cfg!(feature = "metal") {
            assert!(format!("{:#}", open("metal").expect_err("no Metal")).contains("--features metal"));
        }
    }

    #[test]
    fn a_survey_names_every_kind_of_device() {
        let devices = survey();
        assert_eq!(devices.usable.last().expect("the CPU").name, "cpu");
        let text = table(&devices);
        let named = ["cpu", "cuda", "metal"].map(|kind| text.lines().filter(|line| line.starts_with(kind)).count());
        assert!(named.iter().all(|count| *count >= 1), "{text}");
    }
}
