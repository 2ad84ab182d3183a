//! Memory of a machine: taken, written, read; and given up by those who can make it again.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, Weak};

use anyhow::{Result, bail, ensure};

use super::{Kernels, Machine};
use crate::arguments::Address;
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::emulator;
use crate::shared::MappedSlab;

/// Memory of a device, at a multiple of 16 at least. What is in it when it is new is not known.
pub struct Memory {
    place: Arc<Place>,
    size: usize,
    /// The machine that it is of.
    owner: Owner,
}

/// Whose memory it is: of the machine that has the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owner(Arc<()>);

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Where memory is.
pub(crate) enum Place {
    #[cfg(feature = "cuda")]
    Cuda(cuda::Memory),
    Emulated(emulator::Memory),
    /// A part of what another process has filled.
    Shared(MappedSlab, usize),
}

/// Who has memory that can be made again.
pub trait Spare: Send + Sync {
    /// Gives it up; whether there was any.
    fn give_up(&self) -> bool;
}

impl Machine {
    /// Memory of so many bytes.
    ///
    /// # Errors
    /// There is not so much.
    pub fn memory(&self, size: usize) -> Result<Memory> {
        let memory = self.own_memory(size)?;
        self.note_memory(&memory);
        Ok(memory)
    }

    /// Memory that nobody else knows of, so that it may be written to.
    fn own_memory(&self, size: usize) -> Result<Memory> {
        let place = self.or_with_less(|| match &*self.kernels {
            #[cfg(feature = "cuda")]
            Kernels::Cuda(kernels) => Ok(Place::Cuda(kernels.memory(size)?)),
            Kernels::Emulated(kernels) => Ok(Place::Emulated(kernels.memory(size)?)),
        })?;
        Ok(Memory { place: Arc::new(place), size, owner: self.owner.clone() })
    }

    /// Has somebody give up memory where there is none left.
    pub fn may_give_up(&self, spare: Weak<dyn Spare>) {
        let mut all = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|own| own.strong_count() > 0);
        all.push(spare);
    }

    /// Once more without what can be made again, where there is no room beside it.
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

    /// A beginning of memory that somebody keeps; `None` where it is smaller.
    pub(crate) fn part_of(&self, place: &Arc<Place>, size: usize) -> Option<Memory> {
        let room = match &**place {
            #[cfg(feature = "cuda")]
            Place::Cuda(memory) => memory.len(),
            Place::Emulated(memory) => memory.size(),
            Place::Shared(..) => 0,
        };
        (size <= room).then(|| Memory { place: place.clone(), size, owner: self.owner.clone() })
    }

    /// Memory with these bytes, which may be gone when this returns.
    ///
    /// # Errors
    /// There is not so much.
    pub fn upload(&self, bytes: &[u8]) -> Result<Memory> {
        let mut memory = self.own_memory(bytes.len())?;
        self.write(&mut memory, 0, bytes)?;
        self.note_memory(&memory);
        Ok(memory)
    }

    /// Memory that another process has made and filled, see [`Vault`](crate::Vault).
    ///
    /// # Errors
    /// It is of another device, or its driver refuses.
    pub fn map(&self, descriptor: &OwnedFd, size: usize) -> Result<MappedSlab> {
        match &*self.kernels {
            #[cfg(feature = "cuda")]
            Kernels::Cuda(kernels) => MappedSlab::of_gpu(kernels.index(), descriptor, size),
            Kernels::Emulated(_) => MappedSlab::emulated(descriptor, size),
        }
    }

    /// A part of such memory; kernels only read it.
    ///
    /// # Errors
    /// It has no such part.
    pub fn within(&self, slab: &MappedSlab, at: usize, size: usize) -> Result<Memory> {
        let is_inside = at.checked_add(size).is_some_and(|end| end <= slab.size()) && at.is_multiple_of(16);
        ensure!(is_inside, "{size} bytes at {at} are no part of {} of another process", slab.size());
        Ok(Memory { place: Arc::new(Place::Shared(slab.clone(), at)), size, owner: self.owner.clone() })
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
            (Kernels::Cuda(kernels), Some(Place::Cuda(memory))) => kernels.write(memory, at, bytes),
            (Kernels::Emulated(_), Some(Place::Emulated(memory))) => {
                memory.write(at, bytes);
                Ok(())
            }
            _ => bail!("invariant: memory of this machine that is its own"),
        }
    }

    /// Makes memory the same as other memory of its size.
    ///
    /// # Errors
    /// The sizes differ, or the device has failed.
    pub fn copy(&self, from: &Memory, to: &mut Memory) -> Result<()> {
        self.ensure_own(&from.owner)?;
        self.ensure_own(&to.owner)?;
        ensure!(from.size == to.size, "memory of {} bytes is not the same as {}", to.size, from.size);
        match (&*self.kernels, &*from.place, Arc::get_mut(&mut to.place)) {
            #[cfg(feature = "cuda")]
            (Kernels::Cuda(kernels), Place::Cuda(from), Some(Place::Cuda(to))) => kernels.copy(from, to),
            (Kernels::Emulated(_), Place::Emulated(from), Some(Place::Emulated(to))) => {
                to.write(0, &from.read(from.size()));
                Ok(())
            }
            _ => bail!("invariant: memory of this machine that is its own"),
        }
    }

    /// The bytes of memory, once all that was launched is done.
    ///
    /// # Errors
    /// The device has failed.
    pub fn read(&self, memory: &Memory) -> Result<Vec<u8>> {
        self.ensure_own(&memory.owner)?;
        match (&*self.kernels, &*memory.place) {
            #[cfg(feature = "cuda")]
            (Kernels::Cuda(kernels), Place::Cuda(own)) => {
                let mut bytes = kernels.read(own)?;
                bytes.truncate(memory.size);
                Ok(bytes)
            }
            (Kernels::Emulated(_), Place::Emulated(memory)) => Ok(memory.read(memory.size())),
            _ => bail!("invariant: memory of this machine that is its own"),
        }
    }
}

impl Memory {
    /// How many bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(crate) fn place(&self) -> &Arc<Place> {
        &self.place
    }

    pub(crate) fn address(&self) -> Address {
        match &*self.place {
            #[cfg(feature = "cuda")]
            Place::Cuda(memory) => cuda::address(memory),
            Place::Emulated(memory) => memory.address(),
            Place::Shared(slab, at) => slab.address().after(*at),
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("size", &self.size).finish_non_exhaustive()
    }
}
