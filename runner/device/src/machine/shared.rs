//! Device memory that several processes map. The process that allocates it writes it; processes
//! that get its descriptor read it.
//!
//! A [`Vault`] allocates [`Slab`]s and fills them. [`GpuRuntime::map`](crate::GpuRuntime::map) lets
//! kernels of another process read them. On NVIDIA GPUs, a slab is an allocation of the driver's
//! virtual memory management, whose descriptor can be mapped any number of times. On the emulated
//! machine, it is an anonymous file. A slab lives as long as a process maps it, even after its
//! creator has ended.

#[cfg(feature = "cuda")]
mod cuda;

#[cfg(feature = "cuda")]
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::{Result, ensure};

use crate::arguments::Address;
use crate::emulator;

/// The memory of a device, for a process that holds weights for other processes.
#[derive(Debug)]
pub struct Vault(PoolKind);

#[derive(Debug)]
enum PoolKind {
    #[cfg(feature = "cuda")]
    Cuda(Box<cuda::Vault>),
    /// Total memory in bytes.
    Emulated(u64),
}

/// Memory of slabs, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlabUse {
    /// Total size of all slabs.
    pub size: u64,
    /// The part of them that counts as free.
    pub spare: u64,
}

/// Memory that other processes can map.
#[derive(Debug)]
pub struct Slab {
    kind: SlabKind,
    size: usize,
}

#[derive(Debug)]
enum SlabKind {
    #[cfg(feature = "cuda")]
    Cuda(cuda::Slab),
    Emulated(emulator::SharedMemory),
}

/// A slab of another process.
#[derive(Clone, Debug)]
pub struct MappedSlab(Arc<Slab>);

impl Vault {
    /// Opens the memory of an NVIDIA GPU.
    ///
    /// # Errors
    /// There is no such GPU, or its driver cannot share memory between processes.
    #[cfg(feature = "cuda")]
    pub fn of_gpu(index: usize) -> Result<Self> {
        Ok(Self(PoolKind::Cuda(Box::new(cuda::Vault::new(index)?))))
    }

    /// Creates memory of the emulated machine.
    pub fn emulated(bytes: u64) -> Self {
        Self(PoolKind::Emulated(bytes))
    }

    /// Returns free and total bytes of the device. Slabs and promised bytes count as used; the
    /// spare part of slabs counts as free.
    ///
    /// # Errors
    /// The device has failed.
    pub fn memory(&self, slabs: SlabUse, promised: u64) -> Result<(u64, u64)> {
        match &self.0 {
            #[cfg(feature = "cuda")]
            PoolKind::Cuda(own) => own.memory(slabs, promised),
            PoolKind::Emulated(bytes) => {
                let left = bytes.saturating_sub(slabs.size).saturating_add(slabs.spare).saturating_sub(promised);
                Ok((left, *bytes))
            }
        }
    }

    /// Returns the granularity of slab sizes in bytes.
    pub fn granularity(&self) -> usize {
        match &self.0 {
            #[cfg(feature = "cuda")]
            PoolKind::Cuda(own) => own.granularity(),
            PoolKind::Emulated(_) => 1 << 16,
        }
    }

    /// Allocates a slab of `size` bytes, a multiple of the granularity; `None` if memory is
    /// exhausted.
    ///
    /// # Errors
    /// The device has failed.
    pub fn slab(&self, size: usize) -> Result<Option<Slab>> {
        ensure!(size > 0 && size.is_multiple_of(self.granularity()), "invariant: a slab of {size} bytes");
        let kind = match &self.0 {
            #[cfg(feature = "cuda")]
            PoolKind::Cuda(own) => match own.slab(size)? {
                Some(slab) => SlabKind::Cuda(slab),
                None => return Ok(None),
            },
            PoolKind::Emulated(_) => SlabKind::Emulated(emulator::SharedMemory::new(size)?),
        };
        Ok(Some(Slab { kind, size }))
    }

    /// Writes bytes into a slab of this vault. The source may be dropped when this returns; the
    /// bytes arrive before [`finish`](Self::finish) returns.
    ///
    /// # Errors
    /// They do not fit, or the device has failed.
    pub fn write(&mut self, slab: &Slab, at: usize, bytes: &[u8]) -> Result<()> {
        let fits = at.checked_add(bytes.len()).is_some_and(|end| end <= slab.size);
        ensure!(fits, "{} bytes at {at} do not fit into {}", bytes.len(), slab.size);
        match (&mut self.0, &slab.kind) {
            #[cfg(feature = "cuda")]
            (PoolKind::Cuda(own), SlabKind::Cuda(slab)) => own.write(slab, at, bytes),
            (PoolKind::Emulated(_), SlabKind::Emulated(slab)) => {
                slab.write(at, bytes);
                Ok(())
            }
            #[cfg(feature = "cuda")]
            _ => anyhow::bail!("invariant: a slab is of its vault"),
        }
    }

    /// Waits until all writes are complete.
    ///
    /// # Errors
    /// The device has failed.
    pub fn finish(&mut self) -> Result<()> {
        match &mut self.0 {
            #[cfg(feature = "cuda")]
            PoolKind::Cuda(own) => own.finish(),
            PoolKind::Emulated(_) => Ok(()),
        }
    }
}

impl Slab {
    /// Returns a descriptor with which another process maps the slab.
    ///
    /// # Errors
    /// Too many files are open, or the driver fails.
    pub fn descriptor(&self) -> Result<OwnedFd> {
        match &self.kind {
            #[cfg(feature = "cuda")]
            SlabKind::Cuda(own) => own.descriptor(),
            SlabKind::Emulated(own) => own.descriptor(),
        }
    }

    fn address(&self) -> Address {
        match &self.kind {
            #[cfg(feature = "cuda")]
            SlabKind::Cuda(own) => own.address(),
            SlabKind::Emulated(own) => own.address(),
        }
    }
}

impl MappedSlab {
    pub(crate) fn emulated(descriptor: &OwnedFd, size: usize) -> Result<Self> {
        let kind = SlabKind::Emulated(emulator::SharedMemory::map(descriptor, size)?);
        Ok(Self(Arc::new(Slab { kind, size })))
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn of_gpu(index: usize, descriptor: &OwnedFd, size: usize) -> Result<Self> {
        let kind = SlabKind::Cuda(cuda::Slab::map(index, descriptor, size)?);
        Ok(Self(Arc::new(Slab { kind, size })))
    }

    pub(crate) fn size(&self) -> usize {
        self.0.size
    }

    pub(crate) fn address(&self) -> Address {
        self.0.address()
    }
}

#[cfg(feature = "cuda")]
impl fmt::Debug for cuda::Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vault").finish_non_exhaustive()
    }
}
