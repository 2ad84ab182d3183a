//! Uploads of weights from mapped files to a GPU, through two page-locked buffers: while one is
//! filled, the other one is copied.
//!
//! The copies use a stream of their own. It waits for the computing stream before it writes to a
//! memory, and the computing stream waits until the last byte is copied. On the host, only the
//! thread that fills the next buffer waits. A direct copy from a mapping would make the driver wait
//! for each page.

#![expect(unsafe_code, reason = "the driver copies asynchronously")]

use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaEvent, CudaStream, DevicePtrMut, PinnedHostSlice, result,
};

use crate::machine::cuda::{Memory, failed};

/// Size of a buffer in bytes.
const BUFFER: usize = 32 << 20;
/// Number of bytes from which staging pays off.
pub(crate) const FROM: usize = 1 << 20;
/// Least number of bytes per copying thread. Several threads also read pages from the disk in
/// parallel.
const SHARE: usize = 4 << 20;
/// Greatest number of threads that fill a buffer.
const MOST_THREADS: usize = 8;

/// The buffers of a GPU.
pub(crate) struct Staging {
    stream: Arc<CudaStream>,
    buffers: [Buffer; 2],
    next: usize,
}

struct Buffer {
    bytes: PinnedHostSlice<u8>,
    /// Signals that the last copy from the buffer is complete.
    is_free: CudaEvent,
}

impl Buffer {
    fn new(context: &Arc<CudaContext>, size: usize) -> Result<Self> {
        // SAFETY: every part is written before it is copied.
        let bytes = unsafe { context.alloc_pinned::<u8>(size) }.map_err(failed);
        let bytes = bytes.with_context(|| format!("there are no {size} bytes of page-locked memory"))?;
        Ok(Self { bytes, is_free: context.new_event(None).map_err(failed)? })
    }
}

impl Staging {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let stream = context.new_stream().map_err(failed)?;
        Ok(Self { stream, buffers: [Buffer::new(context, BUFFER)?, Buffer::new(context, BUFFER)?], next: 0 })
    }

    /// Copies bytes into a memory, from `at` on. The source may be dropped when this returns.
    ///
    /// # Errors
    /// The device has failed; then no copy is in progress any more.
    pub(crate) fn copy(&mut self, compute: &CudaStream, memory: &mut Memory, at: usize, bytes: &[u8]) -> Result<()> {
        // Earlier users of the memory may still compute with it.
        self.stream.join(compute).map_err(failed)?;
        let mut part = memory.slice_mut(at..at + bytes.len());
        let stream = self.stream.clone();
        let (address, _in_order) = part.device_ptr_mut(&stream);
        // SAFETY: the part is as large as the bytes, and is used again only in the order of the
        // computing stream, which is joined below.
        unsafe { self.copy_to(address, bytes) }?;
        compute.join(&self.stream).map_err(failed)
    }

    /// Copies bytes to an address; they arrive before [`finish`](Self::finish) returns. The source
    /// may be dropped when this returns.
    ///
    /// # Errors
    /// The device has failed; then no copy is in progress any more.
    ///
    /// # Safety
    /// The bytes fit, and nothing else uses that memory until then.
    pub(crate) unsafe fn copy_to(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: as the caller promises.
        let copied = unsafe { self.chunks(address, bytes) };
        if copied.is_err() {
            // The caller may reuse the memory now.
            let _ = self.stream.synchronize();
        }
        copied
    }

    /// Waits until all copies are complete.
    pub(crate) fn finish(&self) -> Result<()> {
        self.stream.synchronize().map_err(failed)
    }

    /// # Safety
    /// The bytes fit, and nothing else uses that memory until they are copied.
    unsafe fn chunks(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        for (index, chunk) in bytes.chunks(BUFFER).enumerate() {
            let buffer = &mut self.buffers[self.next];
            self.next = 1 - self.next;
            buffer.is_free.synchronize().map_err(failed)?;
            let own = &mut buffer.bytes.as_mut_slice().map_err(failed)?[..chunk.len()];
            fill(own, chunk);
            let to = address + (index * BUFFER) as u64;
            // SAFETY: the chunk fits, as the caller promises. The buffer is not written to before
            // `is_free`, and lives as long as the stream, for which `drop` waits.
            unsafe { result::memcpy_htod_async(to, own, self.stream.cu_stream()) }.map_err(failed)?;
            buffer.is_free.record(&self.stream).map_err(failed)?;
        }
        Ok(())
    }
}

/// Small uploads to a GPU, in the order of its stream. Page-locked buffers are used in rotation, so
/// the host does not wait for the GPU, and the source may be dropped at once. For pageable memory,
/// the driver does not guarantee this ("API synchronization behavior").
pub(crate) struct Uploads {
    stream: Arc<CudaStream>,
    buffers: Vec<Buffer>,
    next: usize,
}

/// Number of upload buffers, and the size of each in bytes.
const UPLOADS: (usize, usize) = (8, 256 << 10);

impl Uploads {
    pub(crate) fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let (count, size) = UPLOADS;
        let buffers = (0..count).map(|_| Buffer::new(stream.context(), size)).collect::<Result<_>>()?;
        Ok(Self { stream: stream.clone(), buffers, next: 0 })
    }

    /// Copies bytes to an address in the order of the stream. The source may be dropped when this
    /// returns.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Safety
    /// The bytes fit, and nothing else uses that memory in the order of the stream.
    pub(crate) unsafe fn copy_to(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        let (count, size) = UPLOADS;
        for (index, chunk) in bytes.chunks(size).enumerate() {
            let buffer = &mut self.buffers[self.next];
            self.next = (self.next + 1) % count;
            buffer.is_free.synchronize().map_err(failed)?;
            let own = &mut buffer.bytes.as_mut_slice().map_err(failed)?[..chunk.len()];
            own.copy_from_slice(chunk);
            let to = address + (index * size) as u64;
            // SAFETY: the chunk fits, as the caller promises. The buffer is not written to before
            // `is_free`, and lives as long as the copies, for which `drop` waits.
            unsafe { result::memcpy_htod_async(to, own, self.stream.cu_stream()) }.map_err(failed)?;
            buffer.is_free.record(&self.stream).map_err(failed)?;
        }
        Ok(())
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        // On an error the device is gone, and no copy reads the buffers any more.
        let _ = self.stream.synchronize();
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // On an error the device is gone, and no copy reads the buffers any more.
        let _ = self.stream.synchronize();
    }
}

/// Copies with several threads.
fn fill(to: &mut [u8], from: &[u8]) {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let share = from.len().div_ceil(threads).max(SHARE);
    thread::scope(|scope| {
        let mut shares = to.chunks_mut(share).zip(from.chunks(share));
        let own = shares.next();
        for (to, from) in shares {
            scope.spawn(|| to.copy_from_slice(from));
        }
        if let Some((to, from)) = own {
            to.copy_from_slice(from);
        }
    });
}
