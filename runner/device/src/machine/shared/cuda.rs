//! Memory of NVIDIA GPUs that several processes map, with the driver's virtual memory management
//! (see "Virtual Memory Management" in the CUDA driver API). An allocation has a handle, which can
//! be exported as a file descriptor. A process with either one reserves addresses and maps the
//! allocation there.

#![expect(unsafe_code, reason = "the driver works on addresses")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, DriverError, sys};

use crate::arguments::Address;
use crate::machine::cuda::failed;
use crate::machine::cuda::staging::Staging;
use crate::machine::shared::SlabUse;

/// The memory of a GPU.
pub(crate) struct Vault {
    index: usize,
    context: Arc<CudaContext>,
    granularity: usize,
    /// Least amount of memory that other processes have used so far. Any more that is in use
    /// belongs to runners with promised memory.
    others: AtomicU64,
    /// Created with the first write.
    staging: Option<Staging>,
}

/// A mapped allocation.
#[derive(Debug)]
pub(crate) struct Slab {
    /// Keeps the context of the mapping.
    context: Arc<CudaContext>,
    handle: sys::CUmemGenericAllocationHandle,
    address: sys::CUdeviceptr,
    size: usize,
}

const BY_DESCRIPTOR: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

impl Vault {
    pub(crate) fn new(index: usize) -> Result<Self> {
        let context = CudaContext::new(index).map_err(failed)?;
        let (free, total) = context.mem_get_info().map_err(failed)?;
        let mut granularity = 0;
        let (properties, kind) =
            (properties(index)?, sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
        // SAFETY: one number is written, and the properties are read during the call.
        done(unsafe { sys::cuMemGetAllocationGranularity(&raw mut granularity, &raw const properties, kind) })
            .context("the GPU's driver shares no memory between processes")?;
        ensure!(granularity > 0, "the NVIDIA driver reports an allocation granularity of 0");
        let vault = Self { index, context, granularity, others: AtomicU64::new((total - free) as u64), staging: None };
        // Some drivers report missing support only when an allocation is exported.
        let probe = vault.slab(granularity)?.context("the GPU has no memory left")?;
        probe.descriptor().context("the GPU's driver shares no memory between processes")?;
        Ok(vault)
    }

    /// Memory that the driver reports as free may be promised to a runner that has not allocated it
    /// yet. Memory that other processes take is not free.
    pub(crate) fn memory(&self, SlabUse { size, spare }: SlabUse, promised: u64) -> Result<(u64, u64)> {
        let (free, total) = self.context.mem_get_info().map_err(failed)?;
        let (free, total) = (free as u64, total as u64);
        let elsewhere = total.saturating_sub(free).saturating_sub(size);
        let others = self.others.fetch_min(elsewhere, Ordering::Relaxed).min(elsewhere);
        let left = total.saturating_sub(others).saturating_sub(size).saturating_add(spare).saturating_sub(promised);
        Ok((left.min(free.saturating_add(spare)), total))
    }

    pub(crate) fn granularity(&self) -> usize {
        self.granularity
    }

    pub(crate) fn slab(&self, size: usize) -> Result<Option<Slab>> {
        self.context.bind_to_thread().map_err(failed)?;
        let (mut handle, properties) = (0, properties(self.index)?);
        // SAFETY: a handle is written, and the properties are read during the call.
        let status = unsafe { sys::cuMemCreate(&raw mut handle, size, &raw const properties, 0) };
        if status == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Ok(None);
        }
        done(status).with_context(|| format!("cannot allocate {size} shareable bytes on the GPU"))?;
        let access = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        Slab::of(&self.context, handle, size, self.index, access).map(Some)
    }

    pub(crate) fn write(&mut self, slab: &Slab, at: usize, bytes: &[u8]) -> Result<()> {
        let staging = match &mut self.staging {
            Some(staging) => staging,
            none => none.insert(Staging::new(&self.context)?),
        };
        // SAFETY: the caller has checked that the bytes fit, and slabs are dropped only after
        // `finish`.
        unsafe { staging.copy_to(slab.address + at as u64, bytes) }
    }

    pub(crate) fn finish(&mut self) -> Result<()> {
        self.staging.as_ref().map_or(Ok(()), Staging::finish)
    }
}

impl Slab {
    /// Maps a slab of another process for reading.
    pub(crate) fn map(index: usize, descriptor: &OwnedFd, size: usize) -> Result<Self> {
        let context = CudaContext::new(index).map_err(failed)?;
        let mut handle = 0;
        // The driver takes the descriptor cast to a pointer, and does not keep it.
        let descriptor = std::ptr::without_provenance_mut(usize::try_from(descriptor.as_raw_fd())?);
        // SAFETY: a handle is written; the descriptor is open during the call.
        done(unsafe { sys::cuMemImportFromShareableHandle(&raw mut handle, descriptor, BY_DESCRIPTOR) })
            .context("memory of the process that holds weights cannot be mapped")?;
        Self::of(&context, handle, size, index, sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ)
    }

    /// Maps an allocation. Takes ownership of the handle, also on failure.
    fn of(
        context: &Arc<CudaContext>,
        handle: sys::CUmemGenericAllocationHandle,
        size: usize,
        index: usize,
        access: sys::CUmemAccess_flags,
    ) -> Result<Self> {
        // Address 0 means that nothing is mapped.
        let mut slab = Self { context: context.clone(), handle, address: 0, size };
        let mut address = 0;
        // SAFETY: an address is written; nothing is mapped there yet.
        done(unsafe { sys::cuMemAddressReserve(&raw mut address, size, 0, 0, 0) })?;
        // SAFETY: the addresses have just been reserved, and the allocation has that size.
        if let Err(error) = done(unsafe { sys::cuMemMap(address, size, 0, handle, 0) }) {
            // SAFETY: nothing is mapped there.
            let _ = unsafe { sys::cuMemAddressFree(address, size) };
            return Err(error);
        }
        slab.address = address;
        let description = sys::CUmemAccessDesc { location: location(index)?, flags: access };
        // SAFETY: the range is mapped, and the description is read during the call.
        done(unsafe { sys::cuMemSetAccess(address, size, &raw const description, 1) })?;
        Ok(slab)
    }

    pub(crate) fn descriptor(&self) -> Result<OwnedFd> {
        let mut descriptor: libc::c_int = -1;
        // SAFETY: for this type of handle, a descriptor is written.
        done(unsafe {
            sys::cuMemExportToShareableHandle((&raw mut descriptor).cast(), self.handle, BY_DESCRIPTOR, 0)
        })?;
        ensure!(descriptor >= 0, "the GPU's driver gave no descriptor");
        // SAFETY: the descriptor is new and not shared.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    pub(crate) fn address(&self) -> Address {
        Address(self.address)
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // On an error the device is gone, and the memory with it.
        let _ = self.context.bind_to_thread();
        // SAFETY: the mapping belongs to this slab, and kernels that read it have ended after the
        // synchronization.
        unsafe {
            if self.address != 0 {
                let _ = sys::cuCtxSynchronize();
                let _ = sys::cuMemUnmap(self.address, self.size);
                let _ = sys::cuMemAddressFree(self.address, self.size);
            }
            let _ = sys::cuMemRelease(self.handle);
        }
    }
}

fn location(index: usize) -> Result<sys::CUmemLocation> {
    Ok(sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: i32::try_from(index)? })
}

fn properties(index: usize) -> Result<sys::CUmemAllocationProp> {
    Ok(sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: BY_DESCRIPTOR,
        location: location(index)?,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    })
}

fn done(status: sys::CUresult) -> Result<()> {
    if status == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failed(DriverError(status))) }
}
