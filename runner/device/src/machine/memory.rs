//! Device memory of a machine: allocation, writing, reading, and eviction of memory that can be
//! recreated.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, Weak};

use anyhow::{Result, bail, ensure};

use super::{GpuRuntime, Kernels};
use crate::arguments::Address;
use crate::emulator;
#[cfg(feature = "cuda")]
use crate::machine::cuda;
use crate::machine::shared::MappedSlab;

/// Device memory, aligned to at least 16 bytes. New memory has unspecified contents.
pub struct Memory {
    place: Arc<MemoryPlace>,
    size: usize,
    /// The machine that owns it.
    owner: Owner,
}

/// Identifies the machine that owns memory: equal for all clones of a machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owner(Arc<()>);

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Location of memory.
pub(crate) enum MemoryPlace {
    #[cfg(feature = "cuda")]
    Cuda(cuda::Memory),
    Emulated(emulator::Memory),
    /// A part of memory that another process has filled, at an offset.
    Shared(MappedSlab, usize),
}

/// An owner of memory that can be recreated.
pub trait Spare: Send + Sync {
    /// Frees the memory; returns whether there was any.
    fn give_up(&self) -> bool;
}

impl GpuRuntime {
    /// Allocates `size` bytes.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn memory(&self, size: usize) -> Result<Memory> {
        let memory = self.own_memory(size)?;
        self.note_memory(&memory);
        Ok(memory)
    }

    /// Allocates memory that is not shared yet, so that it may be written to.
    fn own_memory(&self, size: usize) -> Result<Memory> {
        let place = self.or_with_less(|| match &*self.kernels {
            #[cfg(feature = "cuda")]
            Kernels::Cuda(kernels) => Ok(MemoryPlace::Cuda(kernels.memory(size)?)),
            Kernels::Emulated(kernels) => Ok(MemoryPlace::Emulated(kernels.memory(size)?)),
        })?;
        Ok(Memory { place: Arc::new(place), size, owner: self.owner.clone() })
    }

    /// Registers an owner of memory that can be freed when memory runs out.
    pub fn may_give_up(&self, spare: Weak<dyn Spare>) {
        let mut all = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|own| own.strong_count() > 0);
        all.push(spare);
    }

    /// Calls `allocate`; if it fails, frees memory that can be recreated and tries again.
    pub(super) fn or_with_less<T>(&self, allocate: impl Fn() -> Result<T>) -> Result<T> {
        allocate().or_else(|error| {
            let all = self.spare.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let mut is_less = self.give_up_recording();
            for spare in all.iter().filter_map(Weak::upgrade) {
                is_less |= spare.give_up();
            }
            if is_less { allocate() } else { Err(error) }
        })
    }

    /// Returns the first `size` bytes of a shared memory; `None` if it is smaller.
    pub(crate) fn part_of(&self, place: &Arc<MemoryPlace>, size: usize) -> Option<Memory> {
        let room = match &**place {
            #[cfg(feature = "cuda")]
            MemoryPlace::Cuda(memory) => memory.len(),
            MemoryPlace::Emulated(memory) => memory.size(),
            MemoryPlace::Shared(..) => 0,
        };
        (size <= room).then(|| Memory { place: place.clone(), size, owner: self.owner.clone() })
    }

    /// Allocates memory with these bytes. The source may be dropped when this returns.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn upload(&self, bytes: &[u8]) -> Result<Memory> {
        let mut memory = self.own_memory(bytes.len())?;
        self.write(&mut memory, 0, bytes)?;
        self.note_memory(&memory);
        Ok(memory)
    }

    /// Maps memory that another process has allocated and filled, see [`Vault`](crate::Vault).
    ///
    /// # Errors
    /// It belongs to another device, or the driver fails.
    pub fn map(&self, descriptor: &OwnedFd, size: usize) -> Result<MappedSlab> {
        match &*self.kernels {
            #[cfg(feature = "cuda")]
            Kernels::Cuda(kernels) => MappedSlab::of_gpu(kernels.index(), descriptor, size),
            Kernels::Emulated(_) => MappedSlab::emulated(descriptor, size),
        }
    }

    /// Returns a part of mapped memory; kernels only read it.
    ///
    /// # Errors
    /// The part is out of bounds.
    pub fn within(&self, slab: &MappedSlab, at: usize, size: usize) -> Result<Memory> {
        let is_inside = at.checked_add(size).is_some_and(|end| end <= slab.size()) && at.is_multiple_of(16);
        ensure!(is_inside, "{size} bytes at {at} exceed a shared slab of {} bytes", slab.size());
        Ok(Memory { place: Arc::new(MemoryPlace::Shared(slab.clone(), at)), size, owner: self.owner.clone() })
    }

    /// Writes bytes into memory.
    ///
    /// # Errors
    /// They do not fit, or the device has failed.
    pub fn write(&self, memory: &mut Memory, at: usize, bytes: &[u8]) -> Result<()> {
        let fits = at.checked_add(bytes.len()).is_some_and(|end| end <= memory.size);
        ensure!(fits, "{} bytes at {at} do not fit into {}", bytes.len(), memory.size);
        self.ensure_own(&memory.owner)?;
        match (&*self.kernels, Arc::get_mut(&mut memory.place)) {
            #[cfg(feature = "cuda")]
            (Kernels::Cuda(kernels), Some(MemoryPlace::Cuda(memory))) => kernels.write(memory, at, bytes),
            (Kernels::Emulated(_), Some(MemoryPlace::Emulated(memory))) => {
                memory.write(at, bytes);
                Ok(())
            }
            _ => bail!("invariant: memory of this machine that is its own"),
        }
    }

    /// Copies the contents of a memory to another one of the same size.
    ///
    /// # Errors
    /// The sizes differ, or the device has failed.
    pub fn copy(&self, from: &Memory, to: &mut Memory) -> Result<()> {
        self.ensure_own(&from.owner)?;
        self.ensure_own(&to.owner)?;
        ensure!(from.size == to.size, "cannot copy {} bytes to a memory of {} bytes", to.size, from.size);
        match (&*self.kernels, &*from.place, Arc::get_mut(&mut to.place)) {
            #[cfg(feature = "cuda")]
            (Kernels::Cuda(kernels), MemoryPlace::Cuda(from), Some(MemoryPlace::Cuda(to))) => kernels.copy(from, to),
            (Kernels::Emulated(_), MemoryPlace::Emulated(from), Some(MemoryPlace::Emulated(to))) => {
                to.write(0, &from.read(from.size()));
                Ok(())
            }
            _ => bail!("invariant: memory of this machine that is its own"),
        }
    }

    /// Returns the bytes of a memory, after all launches are complete.
    ///
    /// # Errors
    /// The device has failed.
    pub fn read(&self, memory: &Memory) -> Result<Vec<u8>> {
        self.ensure_own(&memory.owner)?;
        match (&*self.kernels, &*memory.place) {
            #[cfg(feature = "cuda")]
            (Kernels::Cuda(kernels), MemoryPlace::Cuda(own)) => {
                let mut bytes = kernels.read(own)?;
                bytes.truncate(memory.size);
                Ok(bytes)
            }
            (Kernels::Emulated(_), MemoryPlace::Emulated(memory)) => Ok(memory.read(memory.size())),
            _ => bail!("invariant: memory of this machine that is its own"),
        }
    }
}

impl Memory {
    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(crate) fn place(&self) -> &Arc<MemoryPlace> {
        &self.place
    }

    pub(crate) fn address(&self) -> Address {
        match &*self.place {
            #[cfg(feature = "cuda")]
            MemoryPlace::Cuda(memory) => cuda::address(memory),
            MemoryPlace::Emulated(memory) => memory.address(),
            MemoryPlace::Shared(slab, at) => slab.address().after(*at),
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("size", &self.size).finish_non_exhaustive()
    }
}
