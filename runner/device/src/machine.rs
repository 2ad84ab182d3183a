//! Who runs kernels, and the memory that they work on.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Storage, Tensor};

use crate::arguments::{Address, Arguments};
#[cfg(feature = "cuda")]
use crate::cuda;
use crate::emulator;
use crate::recording::{Launch, Recorder};
use crate::shared::MappedSlab;

/// A device that has our kernels. Clones are the same one.
#[derive(Clone)]
pub struct Machine {
    device: Device,
    kernels: Arc<Kernels>,
    /// Numbers of 32 bits that are 0 between launches, see [`counters`](Self::counters).
    counters: Arc<OnceLock<Memory>>,
    launches: Arc<AtomicU64>,
    owner: Owner,
    pub(crate) recorder: Arc<Mutex<Recorder>>,
    /// Who gives memory up where there is none left.
    pub(crate) spare: Arc<Mutex<Vec<Weak<dyn Spare>>>>,
}

/// Who has memory that can be made again.
pub trait Spare: Send + Sync {
    /// Gives it up; whether there was any.
    fn give_up(&self) -> bool;
}

enum Kernels {
    #[cfg(feature = "cuda")]
    Cuda(Box<cuda::Kernels>),
    Emulated(emulator::Kernels),
}

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

/// Room for a tensor.
pub(crate) struct Fresh {
    numbers: FreshNumbers,
    shape: (usize, usize),
}

enum FreshNumbers {
    #[cfg(feature = "cuda")]
    Cuda(cuda::Numbers),
    Emulated(Vec<f32>),
}

pub(crate) enum Place {
    #[cfg(feature = "cuda")]
    Cuda(cuda::Memory),
    Emulated(emulator::Memory),
    /// A part of what another process has filled.
    Shared(MappedSlab, usize),
}

/// Launches that were recorded.
pub(crate) enum Steps {
    #[cfg(feature = "cuda")]
    Cuda(cuda::Graph),
    Emulated(Vec<Launch>),
}

/// Numbers that kernels count with.
pub(crate) const COUNTERS: usize = 1 << 16;

/// The grid of a launch: blocks, and threads of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: [usize; 3],
    pub(crate) threads: usize,
    /// Bytes of memory that the threads of a block share, besides what the kernel declares.
    pub(crate) shared: usize,
}

impl Machine {
    /// The kernels of a device of candle; `None` where we have none for it.
    ///
    /// # Errors
    /// The driver refuses the kernels.
    pub fn of(device: &Device) -> Result<Option<Self>> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(own) => {
                let kernels = Arc::new(Kernels::Cuda(Box::new(cuda::Kernels::load(own)?)));
                Ok(Some(Self::with(device.clone(), kernels)))
            }
            _ => Ok(None),
        }
    }

    /// The kernels on the CPU, for tests. `backwards` has the threads of a block run from the last to the first.
    ///
    /// `None` where there is no C++ compiler (`c++`).
    ///
    /// # Errors
    /// They cannot be compiled.
    pub fn emulated(backwards: bool) -> Result<Option<Self>> {
        let kernels = emulator::Kernels::new(backwards)?;
        Ok(kernels.map(|kernels| Self::with(Device::Cpu, Arc::new(Kernels::Emulated(kernels)))))
    }

    /// The same with so many bytes of memory. Tensors take none of it.
    ///
    /// # Errors
    /// The kernels cannot be compiled.
    pub fn emulated_with(bytes: u64) -> Result<Option<Self>> {
        let kernels = emulator::Kernels::new(false)?.map(|kernels| kernels.with_room(bytes));
        Ok(kernels.map(|kernels| Self::with(Device::Cpu, Arc::new(Kernels::Emulated(kernels)))))
    }

    fn with(device: Device, kernels: Arc<Kernels>) -> Self {
        Self {
            device,
            kernels,
            counters: Arc::default(),
            launches: Arc::default(),
            owner: Owner::default(),
            recorder: Arc::default(),
            spare: Arc::default(),
        }
    }

    /// How many kernels have been launched.
    pub fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    /// What memory of this machine says of whom it is; clones are the same machine.
    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Sees to it that memory is in the order of this machine's stream.
    pub(crate) fn ensure_own(&self, owner: &Owner) -> Result<()> {
        ensure!(*owner == self.owner, "invariant: memory belongs to its machine");
        Ok(())
    }

    /// Where tensors are.
    pub fn device(&self) -> &Device {
        &self.device
    }

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
    fn or_with_less<T>(&self, allocate: impl Fn() -> Result<T>) -> Result<T> {
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

    /// Waits until all that was launched and copied is done.
    ///
    /// # Errors
    /// The device has failed.
    pub fn wait(&self) -> Result<()> {
        match &*self.kernels {
            #[cfg(feature = "cuda")]
            Kernels::Cuda(kernels) => kernels.wait(),
            Kernels::Emulated(_) => Ok(()),
        }
    }

    /// How long so many bytes take from page-locked memory to the device: what no load is faster than.
    ///
    /// # Errors
    /// The device has failed, or there is no such memory.
    pub fn time_of_upload(&self, size: usize) -> Result<Duration> {
        match &*self.kernels {
            #[cfg(feature = "cuda")]
            Kernels::Cuda(kernels) => kernels.time_of_upload(size),
            Kernels::Emulated(_) => {
                let begin = Instant::now();
                drop(self.upload(&vec![1; size])?);
                Ok(begin.elapsed())
            }
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

    /// Has a kernel run.
    ///
    /// # Safety
    /// The kernel takes such arguments, and all that it reads and writes with them and such a grid is in memory that lives until it is dropped in the
    /// order of the stream.
    #[expect(unsafe_code, reason = "the kernel works on addresses")]
    pub(crate) unsafe fn launch<A: Arguments>(&self, kernel: &str, grid: Grid, arguments: &A) -> Result<()> {
        let blocks = grid.blocks.map(u32::try_from);
        let [Ok(x), Ok(y), Ok(z)] = blocks else { bail!("invariant: a grid of {:?}", grid.blocks) };
        ensure!(y <= 65_535 && z <= 65_535, "`{kernel}` cannot be launched with {y} times {z} rows of blocks");
        if x == 0 || y == 0 || z == 0 {
            return Ok(());
        }
        self.launches.fetch_add(1, Ordering::Relaxed);
        self.note_launch(kernel, grid, [x, y, z], bytes_of(std::slice::from_ref(arguments)));
        let done = match &*self.kernels {
            #[cfg(feature = "cuda")]
            // SAFETY: as the caller promises.
            Kernels::Cuda(kernels) => unsafe {
                kernels.launch(kernel, [x, y, z], [grid.threads, grid.shared], arguments)
            },
            // SAFETY: as the caller promises.
            Kernels::Emulated(kernels) => unsafe {
                let own = (&raw const *arguments).cast();
                kernels.launch(kernel, [x, y, z], [grid.threads, grid.shared], (own, size_of::<A>()))
            },
        };
        done.with_context(|| format!("the kernel `{kernel}`"))
    }

    /// Launches that can be launched again.
    #[cfg_attr(not(feature = "cuda"), expect(clippy::unnecessary_wraps, reason = "drivers may refuse them"))]
    pub(crate) fn steps(&self, launches: Vec<Launch>) -> Result<Steps> {
        Ok(match &*self.kernels {
            #[cfg(feature = "cuda")]
            Kernels::Cuda(kernels) => Steps::Cuda(kernels.graph(&launches)?),
            Kernels::Emulated(_) => Steps::Emulated(launches),
        })
    }

    /// Launches them again. What they work on is there as long as their recording.
    pub(crate) fn run_steps(&self, steps: &Steps) -> Result<()> {
        match (&*self.kernels, steps) {
            #[cfg(feature = "cuda")]
            (Kernels::Cuda(kernels), Steps::Cuda(graph)) => {
                self.launches.fetch_add(1, Ordering::Relaxed);
                kernels.launch_graph(graph)
            }
            (Kernels::Emulated(kernels), Steps::Emulated(launches)) => {
                for Launch { kernel, blocks, threads, shared, arguments, size } in launches {
                    self.launches.fetch_add(1, Ordering::Relaxed);
                    #[expect(unsafe_code, reason = "the kernel works on addresses")]
                    // SAFETY: as the caller of the launch that was recorded promised; its memory is kept by the recording.
                    unsafe {
                        kernels.launch(kernel, *blocks, [*threads, *shared], (arguments.as_ptr().cast(), *size))?;
                    };
                }
                Ok(())
            }
            #[cfg(feature = "cuda")]
            _ => bail!("invariant: a recording is of its machine"),
        }
    }

    /// Writes to memory, in the order of launches.
    ///
    /// # Safety
    /// It is this machine's, as long as the bytes, and nobody else writes there.
    #[expect(unsafe_code, reason = "who calls knows whose memory it is")]
    #[cfg_attr(not(feature = "cuda"), expect(clippy::unnecessary_wraps, reason = "GPUs may fail"))]
    pub(crate) unsafe fn write_at(&self, address: Address, bytes: &[u8]) -> Result<()> {
        match &*self.kernels {
            #[cfg(feature = "cuda")]
            // SAFETY: as the caller promises.
            Kernels::Cuda(kernels) => unsafe { kernels.write_at(address, bytes) },
            Kernels::Emulated(_) => {
                // SAFETY: the same.
                unsafe { emulator::write_at(address, bytes) };
                Ok(())
            }
        }
    }

    /// Room for a tensor of float32, which a kernel must write before it becomes one.
    #[cfg_attr(not(feature = "cuda"), expect(clippy::unnecessary_wraps, reason = "GPUs may have no room"))]
    pub(crate) fn fresh(&self, [rows, width]: [usize; 2]) -> Result<Fresh> {
        let numbers = match &*self.kernels {
            #[cfg(feature = "cuda")]
            Kernels::Cuda(kernels) => FreshNumbers::Cuda(self.or_with_less(|| kernels.numbers(rows * width))?),
            // What nobody has written is not a number.
            Kernels::Emulated(_) => FreshNumbers::Emulated(vec![f32::NAN; rows * width]),
        };
        Ok(Fresh { numbers, shape: (rows, width) })
    }

    /// The tensor, once its kernel is launched.
    pub(crate) fn tensor(&self, fresh: Fresh) -> Result<Tensor> {
        let Fresh { numbers, shape } = fresh;
        let tensor = match (&*self.kernels, numbers) {
            #[cfg(feature = "cuda")]
            (Kernels::Cuda(kernels), FreshNumbers::Cuda(numbers)) => {
                Tensor::from_storage(kernels.storage(numbers), shape, candle_core::op::BackpropOp::none(), false)
            }
            (Kernels::Emulated(_), FreshNumbers::Emulated(numbers)) => Tensor::from_vec(numbers, shape, &Device::Cpu)?,
            #[cfg(feature = "cuda")]
            _ => bail!("invariant: memory belongs to its machine"),
        };
        self.note_tensor(&tensor);
        Ok(tensor)
    }

    /// Where numbers of 32 bits are that kernels count with: they are 0, and kernels leave them so.
    pub(crate) fn counters(&self) -> Result<Address> {
        if self.counters.get().is_none() {
            let _ = self.counters.set(self.upload(&vec![0; COUNTERS * size_of::<u32>()])?);
        }
        Ok(self.counters.get().context("invariant: they have just been made")?.address())
    }

    /// Where the numbers of a tensor of float32 are; it must live as long as they are used.
    pub(crate) fn address(&self, tensor: &Tensor, count: usize) -> Result<Address> {
        let (storage, layout) = tensor.storage_and_layout();
        let is_plain = layout.is_contiguous() && tensor.dtype() == DType::F32 && tensor.elem_count() >= count;
        ensure!(is_plain, "invariant: {count} numbers of float32 that lie together, not {tensor:?}");
        self.note_use(|| Box::new(tensor.clone()));
        let first = match (&*self.kernels, &*storage) {
            #[cfg(feature = "cuda")]
            (Kernels::Cuda(kernels), Storage::Cuda(storage)) if kernels.has(storage) => {
                cuda::address(storage.as_cuda_slice::<f32>()?)
            }
            (Kernels::Emulated(_), Storage::Cpu(storage)) => Address(storage.as_slice::<f32>()?.as_ptr() as u64),
            _ => bail!("invariant: the tensor is on its machine"),
        };
        Ok(first.after(layout.start_offset() * size_of::<f32>()))
    }
}

impl Fresh {
    /// Where it is to be written.
    pub(crate) fn address(&mut self) -> Address {
        match &mut self.numbers {
            #[cfg(feature = "cuda")]
            FreshNumbers::Cuda(numbers) => cuda::address(numbers),
            FreshNumbers::Emulated(numbers) => Address(numbers.as_mut_ptr() as u64),
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

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Machine").field(&self.device).finish()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("size", &self.size).finish_non_exhaustive()
    }
}

/// Structures of kernels as they are uploaded.
pub(crate) fn bytes_of<T: Copy>(all: &[T]) -> &[u8] {
    #[expect(unsafe_code, reason = "structures of kernels are uploaded as they are")]
    // SAFETY: they are `repr(C)` and have no gaps: each is padded by a field of its own.
    unsafe {
        std::slice::from_raw_parts(all.as_ptr().cast(), size_of_val(all))
    }
}
