//! Selection of the compute device at run time, from the devices that the build and the machine
//! support.
//!
//! `emulated:N` is an emulated GPU: its kernels run on the CPU, with N MiB of memory of its own. It
//! serves work on kernels and tests of the code around them. `lode-runner --emulator FOLDER`
//! compiles the kernels. `emulated:N+M` are two such devices.
//!
//! Only this module and its submodules name CUDA or Metal.

#[cfg(feature = "cuda")]
mod cuda;

use std::fmt::Write;

use anyhow::{Context, Error, Result, bail};
use candle_core::Device;
use device::{GpuRuntime, Vault};
use protocol::{Devices, UnusableDevice};

/// Whether this build supports no device other than the CPU.
pub(crate) const IS_CPU_ONLY: bool = !cfg!(any(feature = "cuda", feature = "metal"));

/// A device to compute on.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) device: Opening,
    /// Description of the device, or the reason why no other one was chosen.
    pub(crate) note: String,
}

/// An opened device.
#[derive(Debug)]
pub(crate) enum Opening {
    /// A device of candle, which may be the CPU.
    Candle(Device),
    /// An emulated GPU, and its name.
    Emulated(GpuRuntime, String),
}

/// A device whose memory can be held for runners.
#[derive(Debug)]
pub(crate) struct ShareableDevice {
    /// Name, as [`open`] takes it.
    pub(crate) name: String,
    /// Index among the devices of its kind.
    pub(crate) index: u64,
    pub(crate) description: String,
}

/// Human-readable description of emulated devices.
const EMULATED_NOTE: &str = "emulated thread by thread, for tests";
/// Prefix of the names of emulated devices.
const EMULATED: &str = "emulated:";

/// Opens the device for `auto`, `cpu`, `cuda`, `cuda:N`, `metal` or `emulated:N`.
///
/// `auto` opens the first GPU that works, else the CPU, and the note gives the reason. A named
/// device that the build or the machine lacks is an error, never a silent fallback.
pub(crate) fn open(choice: &str) -> Result<Opened> {
    match choice {
        "cpu" => Ok(Opened::of(Device::Cpu, "as it was asked for".to_owned())),
        "auto" => Ok(automatic()),
        "metal" => metal().context("the Metal device cannot be used; choose the device `cpu`"),
        "cuda" => first_cuda().context("no CUDA device can be used; choose the device `cpu`"),
        other => match (index_of(other), emulated_bytes(other)) {
            (Some(index), _) => asked_for(index),
            (None, Some(bytes)) => {
                let machine = GpuRuntime::emulated_with(bytes)?
                    .context("found neither a C++ compiler (`c++`) nor compiled kernels")?;
                let note = format!("GPU kernels on the CPU, {EMULATED_NOTE}");
                Ok(Opened { device: Opening::Emulated(machine, other.to_owned()), note })
            }
            (None, None) => bail!("device `{other}` is not known; expected auto, cpu, cuda:N or metal"),
        },
    }
}

/// Returns the devices of a choice whose memory can be held for runners. `auto` and `cuda` mean all
/// NVIDIA GPUs.
pub(crate) fn shareable(choice: &str) -> Vec<Result<ShareableDevice, UnusableDevice>> {
    if let Some(sizes) = choice.strip_prefix(EMULATED) {
        let one = |(index, size): (u64, &str)| {
            let name = format!("{EMULATED}{size}");
            match emulated_bytes(&name) {
                Some(_) => Ok(ShareableDevice { name, index, description: EMULATED_NOTE.to_owned() }),
                None => Err(UnusableDevice { name, reason: "the size is in MiB".to_owned() }),
            }
        };
        return (0..).zip(sizes.split('+')).map(one).collect();
    }
    match (choice, index_of(choice)) {
        ("auto" | "cuda", _) => gpus(None),
        (_, Some(index)) => gpus(Some(index)),
        _ => Vec::new(),
    }
}

/// Opens the memory of a device.
///
/// # Errors
/// There is no such device, or its memory cannot be shared.
pub(crate) fn vault(name: &str) -> Result<Vault> {
    match (index_of(name), emulated_bytes(name)) {
        #[cfg(feature = "cuda")]
        (Some(index), _) => Vault::of_gpu(index),
        #[cfg(not(feature = "cuda"))]
        (Some(_), _) => Err(lacks_cuda()),
        (None, Some(bytes)) => Ok(Vault::emulated(bytes)),
        (None, None) => bail!("the memory of device `{name}` cannot be shared between processes"),
    }
}

#[cfg(feature = "cuda")]
fn gpus(index: Option<usize>) -> Vec<Result<ShareableDevice, UnusableDevice>> {
    cuda::shareable(index)
}

#[cfg(not(feature = "cuda"))]
fn gpus(_index: Option<usize>) -> Vec<Result<ShareableDevice, UnusableDevice>> {
    vec![Err(unusable("cuda", &lacks_cuda()))]
}

/// Parses the index of an NVIDIA GPU from its name.
fn index_of(name: &str) -> Option<usize> {
    name.strip_prefix("cuda:")?.parse().ok()
}

/// Parses the size of an emulated device from its name, in bytes.
fn emulated_bytes(name: &str) -> Option<u64> {
    let mebibytes: u64 = name.strip_prefix(EMULATED)?.parse().ok()?;
    mebibytes.checked_mul(1 << 20).filter(|bytes| *bytes > 0)
}

/// Returns every device that [`open`] can open, and the reasons why others cannot be used.
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

/// Formats a survey for users, a line for each device.
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

/// Returns free and total bytes of the device's memory; `None` if the device does not report memory
/// of its own.
pub(crate) fn memory(device: &Device) -> Option<(u64, u64)> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::memory(device).ok(),
        _ => None,
    }
}

fn automatic() -> Opened {
    let mut reasons = Vec::new();
    for (kind, found) in [("CUDA", first_cuda()), ("Metal", metal())] {
        match found {
            Ok(opened) => return opened,
            // Devices that this kind of machine never has are not reported.
            Err(_) if kind == "Metal" && !cfg!(target_os = "macos") => {}
            Err(_) if kind == "CUDA" && cfg!(target_os = "macos") => {}
            // `lode doctor` reports once that this build lacks CUDA.
            Err(_) if kind == "CUDA" && !cfg!(feature = "cuda") => {}
            Err(error) => reasons.push(format!("{error:#}")),
        }
    }
    Opened::of(Device::Cpu, reasons.join("; "))
}

fn asked_for(index: usize) -> Result<Opened> {
    cuda(index).with_context(|| format!("CUDA device {index} cannot be used; choose the device `cpu`"))
}

/// Opens the first NVIDIA GPU that works.
fn first_cuda() -> Result<Opened> {
    #[cfg(feature = "cuda")]
    return cuda::open_first();
    #[cfg(not(feature = "cuda"))]
    Err(lacks_cuda().context("there is no CUDA device for this runner"))
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
    Ok(Opened::of(Device::new_metal(0)?, "the Metal device of this machine".to_owned()))
}

impl Opened {
    fn of(device: Device, note: String) -> Self {
        Self { device: Opening::Candle(device), note }
    }

    /// Returns the name of the device, as [`open`] takes it.
    pub(crate) fn name(&self) -> String {
        match &self.device {
            Opening::Candle(device) => name(device),
            Opening::Emulated(_, name) => name.clone(),
        }
    }
}

fn described(opened: &Opened) -> protocol::Device {
    protocol::Device { name: opened.name(), description: opened.note.clone(), free: None, total: None }
}

fn unusable(name: &str, reason: &Error) -> UnusableDevice {
    UnusableDevice { name: name.to_owned(), reason: format!("{reason:#}") }
}

/// Returns the name of a device, as [`open`] takes it.
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
        assert!(matches!(open("cpu"), Ok(Opened { device: Opening::Candle(Device::Cpu), .. })));
        for (choice, expect) in
            [("tpu", "not known"), ("cuda:x", "not known"), ("cudaa", "not known"), ("emulated:x", "not known")]
        {
            assert!(open(choice).expect_err(choice).to_string().contains(expect));
        }
        if !cfg!(feature = "cuda") {
            assert!(format!("{:#}", open("cuda:0").expect_err("no CUDA")).contains("--features cuda"));
            // The survey reports once that the build lacks a device; the note of each model does
            // not.
            let opened = open("auto").expect("the CPU");
            assert!(matches!(opened.device, Opening::Candle(Device::Cpu)) && opened.note.is_empty(), "{opened:?}");
        }
        if !cfg!(feature = "metal") {
            assert!(format!("{:#}", open("metal").expect_err("no Metal")).contains("--features metal"));
        }
    }

    #[test]
    fn what_can_be_held_is_named() {
        let names = |choice: &str| -> Vec<String> {
            shareable(choice)
                .into_iter()
                .map(|held| held.map_or_else(|unusable| unusable.reason, |held| held.name))
                .collect()
        };
        assert_eq!(names("emulated:64+8"), ["emulated:64", "emulated:8"]);
        assert_eq!(names("emulated:0"), ["the size is in MiB"]);
        assert!(names("cpu").is_empty() && names("metal").is_empty());
        if !cfg!(feature = "cuda") {
            assert!(names("auto")[0].contains("--features cuda"));
        }
        assert!(vault("emulated:1").is_ok() && vault("cpu").is_err());
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
