//! Which device computes: a choice at run time among what the build has.

use anyhow::{Context, Result, bail};
use candle_core::Device;

/// Whether there is no other device for this build than the CPU.
pub(crate) const IS_CPU_ONLY: bool = !cfg!(any(feature = "cuda", feature = "metal"));

/// The device for `auto`, `cpu`, `cuda`, `cuda:N` or `metal`.
///
/// `auto` takes the first GPU that works and the CPU where none does; asking for what the build or the machine lacks is
/// an error, never a silent fallback.
pub(crate) fn open(choice: &str) -> Result<Device> {
    match choice {
        "cpu" => Ok(Device::Cpu),
        "auto" => Ok(automatic()),
        "metal" => metal(),
        other => match other.strip_prefix("cuda") {
            Some("") => cuda(0),
            Some(index) => match index.strip_prefix(':').and_then(|n| n.parse().ok()) {
                Some(index) => cuda(index),
                None => bail!("device `{other}` is not known; expected auto, cpu, cuda:N or metal"),
            },
            None => bail!("device `{other}` is not known; expected auto, cpu, cuda:N or metal"),
        },
    }
}

fn automatic() -> Device {
    if cfg!(feature = "cuda")
        && let Ok(device) = cuda(0)
    {
        return device;
    }
    if cfg!(feature = "metal")
        && let Ok(device) = metal()
    {
        return device;
    }
    Device::Cpu
}

fn cuda(index: usize) -> Result<Device> {
    if !cfg!(feature = "cuda") {
        bail!("this runner was built without CUDA; build it with `--features cuda`, or choose the device `cpu`");
    }
    Device::new_cuda(index).with_context(|| format!("CUDA device {index} cannot be used; choose the device `cpu`"))
}

fn metal() -> Result<Device> {
    if !cfg!(feature = "metal") {
        bail!("this runner was built without Metal; build it with `--features metal`, or choose the device `cpu`");
    }
    Device::new_metal(0).context("the Metal device cannot be used; choose the device `cpu`")
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
        assert!(matches!(open("cpu"), Ok(Device::Cpu)));
        for (choice, expect) in [("tpu", "not known"), ("cuda:x", "not known"), ("cudaa", "not known")] {
            assert!(open(choice).expect_err(choice).to_string().contains(expect));
        }
        if !cfg!(feature = "cuda") {
            assert!(open("cuda:0").expect_err("no CUDA").to_string().contains("--features cuda"));
            assert!(matches!(open("auto"), Ok(Device::Cpu)));
        }
        if !cfg!(feature = "metal") {
            assert!(open("metal").expect_err("no Metal").to_string().contains("--features metal"));
        }
    }
}
