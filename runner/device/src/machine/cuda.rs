//! Kernels on NVIDIA GPUs, launched by the CUDA driver.

#![expect(unsafe_code, reason = "the driver works on addresses")]

pub(super) mod staging;

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, result, sys,
};
use candle_core::cuda_backend::cudarc::nvrtc::Ptx;
use candle_core::{CudaDevice, CudaStorage, Storage};

use crate::arguments::{Address, Arguments};
use crate::machine::cuda::staging::{Staging, Uploads};
use crate::machine::launch::Launch;

/// All kernels, for every supported generation.
const FATBIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"));

/// Bytes on a GPU.
pub(crate) type Memory = CudaSlice<u8>;

/// Granularity of memory in bytes: kernels read whole words.
const WORDS: usize = 16;

/// Float32 numbers on a GPU.
pub(crate) type DeviceNumbers = CudaSlice<f32>;

/// The kernels on a GPU.
pub(crate) struct Kernels {
    device: CudaDevice,
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
    functions: Mutex<HashMap<String, CudaFunction>>,
    /// Created with the first weight; dropped before `stream`.
    staging: Mutex<Option<Staging>>,
    /// Created with the first small upload.
    uploads: Mutex<Option<Uploads>>,
}

impl Kernels {
    pub(crate) fn load(device: &CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        if stream.context().has_async_alloc() {
            keep_freed(stream.context().cu_device())?;
        }
        let module = stream.context().load_module(Ptx::from_binary(FATBIN.to_vec()));
        let module = module.map_err(failed).context("the driver refuses the kernels")?;
        Ok(Self {
            device: device.clone(),
            stream,
            module,
            functions: Mutex::default(),
            staging: Mutex::default(),
            uploads: Mutex::default(),
        })
    }

    /// Returns the index of the GPU.
    pub(crate) fn index(&self) -> usize {
        self.stream.context().ordinal()
    }

    pub(crate) fn memory(&self, size: usize) -> Result<Memory> {
        let whole = size.max(1).next_multiple_of(WORDS);
        // SAFETY: the contents are written before they are read, see `Memory`.
        unsafe { self.stream.alloc::<u8>(whole) }
            .map_err(failed)
            .with_context(|| format!("cannot allocate {size} bytes on the GPU"))
    }

    /// Returns whether a storage is on this device, and so is ordered by its stream.
    pub(crate) fn has(&self, storage: &CudaStorage) -> bool {
        storage.device().id() == self.device.id()
    }

    pub(crate) fn numbers(&self, count: usize) -> Result<DeviceNumbers> {
        // SAFETY: a kernel writes all of them.
        unsafe { self.stream.alloc::<f32>(count.max(1)) }
            .map_err(failed)
            .with_context(|| format!("{count} numbers on the GPU"))
    }

    pub(crate) fn storage(&self, numbers: DeviceNumbers) -> Storage {
        Storage::Cuda(CudaStorage::wrap_cuda_slice(numbers, self.device.clone()))
    }

    pub(crate) fn write(&self, memory: &mut Memory, at: usize, bytes: &[u8]) -> Result<()> {
        if bytes.len() < staging::FROM {
            let mut part = memory.slice_mut(at..at + bytes.len());
            let (address, _in_order) = part.device_ptr_mut(&self.stream);
            // SAFETY: the part is as large as the bytes, and is freed in the order of the stream.
            return unsafe { self.write_at(Address(address), bytes) };
        }
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let staging = match &mut *staging {
            Some(staging) => staging,
            none => none.insert(Staging::new(self.stream.context())?),
        };
        staging.copy(&self.stream, memory, at, bytes)
    }

    pub(crate) fn copy(&self, from: &Memory, to: &mut Memory) -> Result<()> {
        self.stream.memcpy_dtod(from, to).map_err(failed)
    }

    pub(crate) fn wait(&self) -> Result<()> {
        self.stream.synchronize().map_err(failed)
    }

    pub(crate) fn time_of_upload(&self, size: usize) -> Result<Duration> {
        // SAFETY: it is written below, before it is copied.
        let mut bytes = unsafe { self.stream.context().alloc_pinned::<u8>(size) }.map_err(failed)?;
        bytes.as_mut_slice().map_err(failed)?.fill(1);
        let mut memory = self.memory(size)?;
        self.wait()?;
        let begin = Instant::now();
        self.stream.memcpy_htod(&bytes, &mut memory).map_err(failed)?;
        self.wait()?;
        Ok(begin.elapsed())
    }

    pub(crate) fn read(&self, memory: &Memory) -> Result<Vec<u8>> {
        let bytes = self.stream.clone_dtoh(memory).map_err(failed)?;
        // The driver may still be copying into memory that is not page-locked.
        self.wait()?;
        Ok(bytes)
    }

    /// # Safety
    /// See [`GpuRuntime::launch`](crate::machine::GpuRuntime::launch).
    pub(crate) unsafe fn launch<A: Arguments>(
        &self,
        kernel: &str,
        [x, y, z]: [u32; 3],
        [threads, shared]: [usize; 2],
        arguments: &A,
    ) -> Result<()> {
        self.stream.context().bind_to_thread().map_err(failed)?;
        let function = self.function(kernel)?;
        let mut parameters = [(&raw const *arguments).cast_mut().cast::<c_void>()];
        let (function, stream) = (function.cu_function(), self.stream.cu_stream());
        // SAFETY: as the caller promises; the driver copies the arguments before it returns.
        unsafe {
            result::launch_kernel(function, (x, y, z), (threads as u32, 1, 1), shared as u32, stream, &mut parameters)
        }
        .map_err(failed)
    }

    /// Creates a graph of sequential launches.
    pub(crate) fn graph(&self, launches: &[Launch]) -> Result<Graph> {
        self.stream.context().bind_to_thread().map_err(failed)?;
        let mut made = ptr::null_mut();
        // SAFETY: the driver writes a graph handle there.
        unsafe { sys::cuGraphCreate(&raw mut made, 0) }.result().map_err(failed)?;
        let (stream, module) = (self.stream.clone(), self.module.clone());
        let mut graph = Graph { nodes: made, launched: ptr::null_mut(), stream, _module: module };
        let mut before = ptr::null_mut();
        for (at, Launch { kernel, blocks: [x, y, z], threads, shared, arguments, .. }) in launches.iter().enumerate() {
            let function = self.function(kernel)?;
            let mut parameters = [arguments.as_ptr().cast_mut().cast::<c_void>()];
            let node = sys::CUDA_KERNEL_NODE_PARAMS {
                func: function.cu_function(),
                gridDimX: *x,
                gridDimY: *y,
                gridDimZ: *z,
                blockDimX: *threads as u32,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: *shared as u32,
                kernelParams: parameters.as_mut_ptr(),
                extra: ptr::null_mut(),
                kern: ptr::null_mut(),
                ctx: ptr::null_mut(),
            };
            let mut own = ptr::null_mut();
            // SAFETY: the graph exists, the previous node belongs to it, and the driver copies the
            // arguments before it returns.
            unsafe {
                sys::cuGraphAddKernelNode_v2(
                    &raw mut own,
                    graph.nodes,
                    &raw const before,
                    usize::from(at > 0),
                    &raw const node,
                )
            }
            .result()
            .map_err(failed)?;
            before = own;
        }
        let flags = sys::CUgraphInstantiate_flags(0);
        // SAFETY: the graph exists.
        graph.launched = unsafe { result::graph::instantiate(graph.nodes, flags) }.map_err(failed)?;
        Ok(graph)
    }

    pub(crate) fn launch_graph(&self, graph: &Graph) -> Result<()> {
        self.stream.context().bind_to_thread().map_err(failed)?;
        // SAFETY: the graph exists, and its recording keeps the memory that its launches use.
        unsafe { result::graph::launch(graph.launched, self.stream.cu_stream()) }.map_err(failed)
    }

    /// # Safety
    /// See [`GpuRuntime::write_at`](crate::machine::GpuRuntime::write_at).
    pub(crate) unsafe fn write_at(&self, address: Address, bytes: &[u8]) -> Result<()> {
        self.stream.context().bind_to_thread().map_err(failed)?;
        let mut uploads = self.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        let uploads = match &mut *uploads {
            Some(uploads) => uploads,
            none => none.insert(Uploads::new(&self.stream)?),
        };
        // SAFETY: as the caller promises.
        unsafe { uploads.copy_to(address.0, bytes) }
    }

    fn function(&self, kernel: &str) -> Result<CudaFunction> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(kernel) {
            return Ok(function.clone());
        }
        let function = self.module.load_function(kernel).map_err(failed)?;
        functions.insert(kernel.to_owned(), function.clone());
        Ok(function)
    }
}

/// Launches as a CUDA graph.
pub(crate) struct Graph {
    nodes: sys::CUgraph,
    launched: sys::CUgraphExec,
    stream: Arc<CudaStream>,
    /// Keeps the functions of the nodes.
    _module: Arc<CudaModule>,
}

// SAFETY: the driver accepts graphs from any thread, one at a time ("Graph object thread safety").
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        // The driver first completes running launches. An earlier error is recorded for the next
        // caller; the context must be bound anyway.
        let context = self.stream.context();
        if let Err(error) = context.bind_to_thread() {
            let _ = context.bind_to_thread();
            context.record_err(Err::<(), _>(error));
        }
        if !self.launched.is_null() {
            // SAFETY: it was instantiated, and there is no other reference to it.
            let _ = unsafe { result::graph::exec_destroy(self.launched) };
        }
        // SAFETY: it was created, and there is no other reference to it.
        let _ = unsafe { result::graph::destroy(self.nodes) };
    }
}

/// Makes the memory pool of a GPU keep freed memory. By default, the pool returns it to the driver
/// at each synchronization, and has to allocate it again. The threshold applies to all memory of
/// the pool, used or not; a runner's total use was planned.
fn keep_freed(device: sys::CUdevice) -> Result<()> {
    let mut bytes = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device is open, and the attribute is a number of 64 bits.
    let set = unsafe {
        result::device::get_default_mem_pool(device)
            .and_then(|pool| result::mem_pool::set_attribute(pool, attribute, (&raw mut bytes).cast()))
    };
    set.map_err(failed)
}

/// Returns the address of the elements.
pub(crate) fn address<T>(slice: &CudaSlice<T>) -> Address {
    let (address, _in_order) = slice.device_ptr(slice.stream());
    Address(address)
}

pub(crate) fn failed(error: result::DriverError) -> anyhow::Error {
    anyhow!("{error}")
}
