//! NVIDIA GPUs: detection, and support by this build's kernels.
//!
//! No CUDA library is linked. Each one is opened at the first call of one of its functions; if it
//! is missing, the call returns an error (`scripts/cuda-toolkit`). So the same program runs on
//! machines without a driver.

#![expect(unsafe_code, reason = "calls of the driver that have no safe form")]

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use candle_core::Device;
use candle_core::cuda_backend::cudarc::driver::{CudaContext, result, sys};
use candle_core::cuda_backend::cudarc::{cublas, curand};
use protocol::{Devices, UnusableDevice};

use super::{Opened, ShareableDevice, described, unusable};

/// CUDA version of the toolkit that compiled the kernels; older drivers cannot read its PTX.
const TOOLKIT: i32 = 13_000;
/// Oldest driver version with support for this CUDA version.
const DRIVER: u32 = 580;

/// Adds every GPU of the machine.
pub(super) fn survey(devices: &mut Devices) {
    let count = match count() {
        Ok(count) => count,
        Err(error) => return devices.unusable.push(unusable("cuda", &error)),
    };
    for index in 0..count {
        let with_memory = |opened: Opened| -> Result<protocol::Device> {
            let (free, total) = memory_of(index)?;
            Ok(protocol::Device { free: Some(free), total: Some(total), ..described(&opened) })
        };
        match open(index).and_then(with_memory) {
            Ok(device) => devices.usable.push(device),
            Err(error) => devices.unusable.push(unusable(&format!("cuda:{index}"), &error)),
        }
    }
}

/// Returns every GPU of the machine, or the one with this index, with the driver's description.
pub(super) fn shareable(index: Option<usize>) -> Vec<Result<ShareableDevice, UnusableDevice>> {
    let count = match count() {
        Ok(count) => count,
        Err(error) => return vec![Err(unusable("cuda", &error))],
    };
    let one = |index: usize| {
        let name = format!("cuda:{index}");
        let description = if index < count { supported(index) } else { Err(beyond(count)) };
        let held =
            description.map(|description| ShareableDevice { name: name.clone(), index: index as u64, description });
        held.map_err(|error| unusable(&name, &error))
    };
    index.map_or_else(|| (0..count).map(one).collect(), |index| vec![one(index)])
}

fn beyond(count: usize) -> Error {
    anyhow!("there are {count} NVIDIA GPUs, the first is cuda:0")
}

/// Opens the first GPU that works.
///
/// # Errors
/// No GPU works; the error has the reason for each.
pub(super) fn open_first() -> Result<Opened> {
    let mut reasons = Vec::new();
    for index in 0..count()? {
        match open(index) {
            Ok(opened) => return Ok(opened),
            Err(error) => reasons.push(format!("{error:#}")),
        }
    }
    bail!(reasons.join("; "))
}

/// Opens a GPU. All work on it goes through one stream, whichever thread submits it.
///
/// # Errors
/// There is no driver or no such GPU, the kernels do not support the GPU, or a library is missing.
pub(super) fn open(index: usize) -> Result<Opened> {
    let count = count()?;
    if index >= count {
        return Err(beyond(count));
    }
    let note = supported(index)?;
    let device = Device::new_cuda_with_stream(index).map_err(Error::from);
    let device = device.with_context(|| format!("{note} cannot be used"))?;
    // SAFETY: all work is ordered by the device's stream. Weights use a second stream, ordered by
    // our own events.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    Ok(Opened::of(device, note))
}

/// Returns free and total bytes of a GPU's memory.
pub(super) fn memory(device: &Device) -> Result<(u64, u64)> {
    let (free, total) = device.as_cuda_device()?.cuda_stream().context().mem_get_info().map_err(failed)?;
    Ok((free as u64, total as u64))
}

/// Returns free and total bytes of a GPU's memory, by its index.
fn memory_of(index: usize) -> Result<(u64, u64)> {
    let (free, total) = CudaContext::new(index).and_then(|context| context.mem_get_info()).map_err(failed)?;
    Ok((free as u64, total as u64))
}

/// Returns the number of GPUs.
fn count() -> Result<usize> {
    let mut version = 0;
    // SAFETY: the call writes one number, and requires no earlier call.
    let status = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    if status != sys::CUresult::CUDA_SUCCESS {
        bail!("no NVIDIA driver found: cannot load `libcuda.so.1`");
    }
    ensure!(
        version >= TOOLKIT,
        "the NVIDIA driver is for CUDA {}.{}, this runner needs {}: install a driver of version {DRIVER} or later",
        version / 1000,
        version % 1000 / 10,
        TOOLKIT / 1000
    );
    result::init().map_err(failed).context("the NVIDIA driver does not start")?;
    let count = usize::try_from(CudaContext::device_count().map_err(failed)?)?;
    ensure!(count > 0, "the NVIDIA driver has no GPU; CUDA_VISIBLE_DEVICES may hide it");
    Ok(count)
}

/// Returns a description of a GPU if the kernels support it and the libraries are installed.
fn supported(index: usize) -> Result<String> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let device = result::device::get(i32::try_from(index)?).map_err(failed)?;
    let name = result::device::get_name(device).map_err(failed)?;
    // SAFETY: the driver has just returned this device.
    let attribute = |attribute| unsafe { result::device::get_attribute(device, attribute) }.map_err(failed);
    let (major, minor) = (attribute(MAJOR)?, attribute(MINOR)?);
    let least: i32 = device::LEAST_CAPABILITY.parse().context("invariant: the build says a number")?;
    ensure!(
        major * 10 + minor >= least,
        "the {name} has compute capability {major}.{minor}, this runner's kernels need {}.{}",
        least / 10,
        least % 10
    );
    libraries().with_context(|| format!("{name} cannot be used"))?;
    Ok(format!("{name}, compute capability {major}.{minor}"))
}

/// Checks that the libraries are installed that candle opens with a device.
fn libraries() -> Result<()> {
    let mut version = 0;
    // SAFETY: the calls write one number, and require no earlier call.
    let (blas, random) = unsafe {
        let major = cublas::sys::libraryPropertyType_t::MAJOR_VERSION;
        (cublas::sys::cublasGetProperty(major, &raw mut version), curand::sys::curandGetVersion(&raw mut version))
    };
    let are_there = blas == cublas::sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS
        && random == curand::sys::curandStatus::CURAND_STATUS_SUCCESS;
    ensure!(
        are_there,
        "the libraries cuBLAS and cuRAND of CUDA 13 are needed beside the driver: install them, and name their folder in \
         CUDA_LIBRARY_PATH if they are not found"
    );
    Ok(())
}

fn failed(error: result::DriverError) -> Error {
    anyhow!("{error}")
}
