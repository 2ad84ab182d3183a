//! Machine: runs kernels, and owns the memory that they work on.

#[cfg(feature = "cuda")]
mod cuda;
mod launch;
mod memory;
pub(crate) mod recording;
pub(crate) mod shared;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Storage, Tensor};

use crate::arguments::{Address, Arguments};
use crate::emulator;
use launch::Launch;
pub use memory::{Memory, Spare};
pub(crate) use memory::{MemoryPlace, Owner};
use recording::Recorder;

/// A device with our kernels. Clones share it.
#[derive(Clone)]
pub struct GpuRuntime {
    device: Device,
    kernels: Arc<Kernels>,
    /// Counters of 32 bits that are 0 between launches, see [`counters`](Self::counters).
    counters: Arc<OnceLock<Memory>>,
    launches: Arc<AtomicU64>,
    owner: Owner,
    pub(crate) recorder: Arc<Mutex<Recorder>>,
    /// Owners of memory that can be freed when memory runs out.
    pub(crate) spare: Arc<Mutex<Vec<Weak<dyn Spare>>>>,
}

enum Kernels {
    #[cfg(feature = "cuda")]
    Cuda(Box<cuda::Kernels>),
    Emulated(emulator::Kernels),
}

/// Memory for a tensor that is not written yet.
pub(crate) struct Fresh {
    numbers: FreshNumbers,
    shape: (usize, usize),
}

enum FreshNumbers {
    #[cfg(feature = "cuda")]
    Cuda(cuda::DeviceNumbers),
    Emulated(Vec<f32>),
}

/// A recorded sequence of launches.
pub(crate) enum Steps {
    #[cfg(feature = "cuda")]
    Cuda(cuda::Graph),
    Emulated(Vec<Launch>),
}

/// Number of counters for kernels.
pub(crate) const COUNTERS: usize = 1 << 16;

/// Grid of a launch: number of blocks, and of threads in a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: [usize; 3],
    pub(crate) threads: usize,
    /// Dynamic shared memory of a block in bytes, besides the memory that the kernel declares.
    pub(crate) shared: usize,
}

impl GpuRuntime {
    /// Loads the kernels for a candle device; `None` if we have none for it.
    ///
    /// # Errors
    /// The driver rejects the kernels.
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

    /// Creates an emulated machine on the CPU, for tests. With `backwards`, the threads of a block
    /// run from the last to the first.
    ///
    /// Returns `None` if there is no C++ compiler (`c++`).
    ///
    /// # Errors
    /// The kernels do not compile.
    pub fn emulated(backwards: bool) -> Result<Option<Self>> {
        let kernels = emulator::Kernels::new(backwards)?;
        Ok(kernels.map(|kernels| Self::with(Device::Cpu, Arc::new(Kernels::Emulated(kernels)))))
    }

    /// Creates an emulated machine with `bytes` bytes of memory. Tensors do not count towards it.
    ///
    /// # Errors
    /// The kernels do not compile.
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

    /// Returns the number of launches so far.
    pub fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    /// Returns the identity with which memory of this machine is marked.
    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Checks that memory belongs to this machine, and so is ordered by its stream.
    pub(crate) fn ensure_own(&self, owner: &Owner) -> Result<()> {
        ensure!(*owner == self.owner, "invariant: memory belongs to its machine");
        Ok(())
    }

    /// Returns the candle device of the tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Waits until all launches and copies are complete.
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

    /// Measures the time of a copy of `size` bytes from page-locked memory to the device. No load
    /// can be faster.
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

    /// Launches a kernel.
    ///
    /// # Safety
    /// The kernel takes these arguments. All memory that it accesses with them and this grid lives
    /// until it is dropped in the order of the stream.
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

    /// Prepares recorded launches for replay.
    #[cfg_attr(not(feature = "cuda"), expect(clippy::unnecessary_wraps, reason = "drivers may refuse them"))]
    pub(crate) fn steps(&self, launches: Vec<Launch>) -> Result<Steps> {
        Ok(match &*self.kernels {
            #[cfg(feature = "cuda")]
            Kernels::Cuda(kernels) => Steps::Cuda(kernels.graph(&launches)?),
            Kernels::Emulated(_) => Steps::Emulated(launches),
        })
    }

    /// Replays recorded launches. Their recording keeps the memory that they use.
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
                    // SAFETY: the caller of the recorded launch promised it, and the recording
                    // keeps its memory.
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
    /// The memory is this machine's, at least as long as the bytes, and has no other writer.
    #[expect(unsafe_code, reason = "who calls knows whose memory it is")]
    #[cfg_attr(not(feature = "cuda"), expect(clippy::unnecessary_wraps, reason = "GPUs may fail"))]
    pub(crate) unsafe fn write_at(&self, address: Address, bytes: &[u8]) -> Result<()> {
        match &*self.kernels {
            #[cfg(feature = "cuda")]
            // SAFETY: as the caller promises.
            Kernels::Cuda(kernels) => unsafe { kernels.write_at(address, bytes) },
            Kernels::Emulated(_) => {
                // SAFETY: as the caller promises.
                unsafe { emulator::write_at(address, bytes) };
                Ok(())
            }
        }
    }

    /// Allocates memory for a float32 tensor. A kernel must write it before
    /// [`tensor`](Self::tensor) is called.
    #[cfg_attr(not(feature = "cuda"), expect(clippy::unnecessary_wraps, reason = "GPUs may have no room"))]
    pub(crate) fn fresh(&self, [rows, width]: [usize; 2]) -> Result<Fresh> {
        let numbers = match &*self.kernels {
            #[cfg(feature = "cuda")]
            Kernels::Cuda(kernels) => FreshNumbers::Cuda(self.or_with_less(|| kernels.numbers(rows * width))?),
            // NaN reveals elements that no kernel writes.
            Kernels::Emulated(_) => FreshNumbers::Emulated(vec![f32::NAN; rows * width]),
        };
        Ok(Fresh { numbers, shape: (rows, width) })
    }

    /// Returns the tensor, after its kernel was launched.
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

    /// Returns the address of counters of 32 bits. They are 0 between launches: kernels reset them.
    pub(crate) fn counters(&self) -> Result<Address> {
        if self.counters.get().is_none() {
            let _ = self.counters.set(self.upload(&vec![0; COUNTERS * size_of::<u32>()])?);
        }
        Ok(self.counters.get().context("invariant: they have just been made")?.address())
    }

    /// Returns the address of a float32 tensor, which must live as long as the address is used.
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
    /// Returns the address to which a kernel writes.
    pub(crate) fn address(&mut self) -> Address {
        match &mut self.numbers {
            #[cfg(feature = "cuda")]
            FreshNumbers::Cuda(numbers) => cuda::address(numbers),
            FreshNumbers::Emulated(numbers) => Address(numbers.as_mut_ptr() as u64),
        }
    }
}

impl fmt::Debug for GpuRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GpuRuntime").field(&self.device).finish()
    }
}

/// Returns structures of kernels as bytes for uploads.
pub(crate) fn bytes_of<T: Copy>(all: &[T]) -> &[u8] {
    #[expect(unsafe_code, reason = "structures of kernels are uploaded as they are")]
    // SAFETY: they are `repr(C)` without gaps: explicit fields provide all padding.
    unsafe {
        std::slice::from_raw_parts(all.as_ptr().cast(), size_of_val(all))
    }
}
