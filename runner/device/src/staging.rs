//! Weights on their way to a GPU: from mapped files by two page-locked buffers, one of which is filled while the other is copied.
//!
//! The copies have a stream of their own. It begins with a memory when that is there in the order of the stream that computes, and that one goes
//! on when the last byte has come; nobody waits but who fills the next buffer. Copying straight from a mapping
//! would have the driver wait for each page.

#![expect(unsafe_code, reason = "the driver copies while nobody looks")]

use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaEvent, CudaStream, DevicePtrMut, PinnedHostSlice, result,
};

use crate::cuda::{Memory, failed};

/// Bytes of a buffer.
const BUFFER: usize = 32 << 20;
/// Bytes from which on this is worth it.
pub(crate) const FROM: usize = 1 << 20;
/// Bytes that a thread copies, at least: pages that are not in memory are read by as many threads.
const SHARE: usize = 4 << 20;
/// Threads that fill a buffer, at most.
const MOST_THREADS: usize = 8;

/// The buffers of a GPU.
pub(crate) struct Staging {
    stream: Arc<CudaStream>,
    buffers: [Buffer; 2],
    next: usize,
}

struct Buffer {
    bytes: PinnedHostSlice<u8>,
    /// Whoever copied from it last is done.
    is_free: CudaEvent,
}

impl Buffer {
    fn new(context: &Arc<CudaContext>, size: usize) -> Result<Self> {
        // SAFETY: a part is written before it is copied.
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

    /// Copies bytes to a place of a memory. They may be gone when this returns.
    ///
    /// # Errors
    /// The device has failed; then nothing is copied any more.
    pub(crate) fn copy(&mut self, compute: &CudaStream, memory: &mut Memory, at: usize, bytes: &[u8]) -> Result<()> {
        // The memory may have been another's, which is still computed with.
        self.stream.join(compute).map_err(failed)?;
        let mut part = memory.slice_mut(at..at + bytes.len());
        let stream = self.stream.clone();
        let (address, _in_order) = part.device_ptr_mut(&stream);
        // SAFETY: the part is as large as the bytes, and goes back to others in the order of the stream that is joined below.
        unsafe { self.copy_to(address, bytes) }?;
        compute.join(&self.stream).map_err(failed)
    }

    /// Copies bytes to an address, by the time that [`finish`](Self::finish) returns. They may be gone when this returns.
    ///
    /// # Errors
    /// The device has failed; then nothing is copied any more.
    ///
    /// # Safety
    /// There is room for them, which is nobody else's until then.
    pub(crate) unsafe fn copy_to(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: as the caller promises.
        let copied = unsafe { self.chunks(address, bytes) };
        if copied.is_err() {
            // The memory may be given to somebody else now.
            let _ = self.stream.synchronize();
        }
        copied
    }

    /// Waits until all has been copied.
    pub(crate) fn finish(&self) -> Result<()> {
        self.stream.synchronize().map_err(failed)
    }

    /// # Safety
    /// There is room for the bytes, which is nobody else's until they are there.
    unsafe fn chunks(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        for (index, chunk) in bytes.chunks(BUFFER).enumerate() {
            let buffer = &mut self.buffers[self.next];
            self.next = 1 - self.next;
            buffer.is_free.synchronize().map_err(failed)?;
            let own = &mut buffer.bytes.as_mut_slice().map_err(failed)?[..chunk.len()];
            fill(own, chunk);
            let to = address + (index * BUFFER) as u64;
            // SAFETY: there is room for the chunk, as the caller promises; the buffer is not written to before `is_free`, and lives as long as
            // the stream, which is waited for when this is dropped.
            unsafe { result::memcpy_htod_async(to, own, self.stream.cu_stream()) }.map_err(failed)?;
            buffer.is_free.record(&self.stream).map_err(failed)?;
        }
        Ok(())
    }
}

/// Fewer bytes on their way to a GPU, in the order of its stream: by page-locked buffers in turns, so that nobody waits for the GPU and what was given
/// may be gone at once. What the driver does with other memory is not promised ("API synchronization behavior").
pub(crate) struct Uploads {
    stream: Arc<CudaStream>,
    buffers: Vec<Buffer>,
    next: usize,
}

/// Buffers of them, and the bytes of each.
const UPLOADS: (usize, usize) = (8, 256 << 10);

impl Uploads {
    pub(crate) fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let (count, size) = UPLOADS;
        let buffers = (0..count).map(|_| Buffer::new(stream.context(), size)).collect::<Result<_>>()?;
        Ok(Self { stream: stream.clone(), buffers, next: 0 })
    }

    /// Copies bytes to an address in the order of the stream. They may be gone when this returns.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Safety
    /// There is room for them, which is nobody else's in the order of the stream.
    pub(crate) unsafe fn copy_to(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        let (count, size) = UPLOADS;
        for (index, chunk) in bytes.chunks(size).enumerate() {
            let buffer = &mut self.buffers[self.next];
            self.next = (self.next + 1) % count;
            buffer.is_free.synchronize().map_err(failed)?;
            let own = &mut buffer.bytes.as_mut_slice().map_err(failed)?[..chunk.len()];
            own.copy_from_slice(chunk);
            let to = address + (index * size) as u64;
            // SAFETY: there is room for the chunk, as the caller promises; the buffer is not written to before `is_free`, and lives as long as
            // the copies, which are waited for when this is dropped.
            unsafe { result::memcpy_htod_async(to, own, self.stream.cu_stream()) }.map_err(failed)?;
            buffer.is_free.record(&self.stream).map_err(failed)?;
        }
        Ok(())
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        // An error says that the device is gone, and with it who would read the buffers.
        let _ = self.stream.synchronize();
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // An error says that the device is gone, and with it who would read the buffers.
        let _ = self.stream.synchronize();
    }
}

/// Copies by several threads.
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
