//! Emulation of the kernels on the CPU. The machine's C++ compiler compiles them when they are
//! first needed, see `cuda/emulator.h`.
//!
//! One kernel runs at a time in a process, because the emulated machine is a single global.

#![expect(unsafe_code, reason = "a library is opened, and kernels work on addresses")]

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, anyhow, ensure};

use crate::arguments::Address;

/// Greatest amount of dynamic shared memory of a block: the default limit of every GPU, less the
/// largest static use of a kernel.
const MOST_SHARED: usize = 39 << 10;
/// The machine's C++ compiler.
const COMPILER: &str = "c++";
/// Source files of the library.
const SOURCES: [(&str, &str); 12] = [
    ("machine.cuh", include_str!("../cuda/machine.cuh")),
    ("emulator.h", include_str!("../cuda/emulator.h")),
    ("tables.cuh", include_str!(concat!(env!("OUT_DIR"), "/tables.cuh"))),
    ("formats.cuh", include_str!("../cuda/formats.cuh")),
    ("products.cuh", include_str!("../cuda/products.cuh")),
    ("rows.cuh", include_str!("../cuda/rows.cuh")),
    ("experts.cuh", include_str!("../cuda/experts.cuh")),
    ("select.cuh", include_str!("../cuda/select.cuh")),
    ("cache.cuh", include_str!("../cuda/cache.cuh")),
    ("attention.cuh", include_str!("../cuda/attention.cuh")),
    ("attention_tile.cuh", include_str!("../cuda/attention_tile.cuh")),
    ("kernels.cu", include_str!("../cuda/kernels.cu")),
];

/// A kernel, as `EmulatedKernel` is declared.
#[repr(C)]
struct Kernel {
    size: u64,
    body: *const c_void,
}

type Emulate = unsafe extern "C" fn(*const Kernel, *const [u32; 3], u32, *const c_void, bool);

/// The library of all kernels.
struct Library {
    handle: *mut c_void,
    emulate: Emulate,
    /// Addresses of kernels by name, as integers because pointers are not `Send`.
    kernels: Mutex<HashMap<String, usize>>,
    /// Held while a kernel runs.
    turn: Mutex<()>,
}

// SAFETY: any thread may look up symbols in the handle, and one kernel runs at a time.
unsafe impl Send for Library {}
// SAFETY: the same.
unsafe impl Sync for Library {}

/// The kernels, with an order of threads.
pub(crate) struct Kernels {
    library: &'static Library,
    backwards: bool,
    room: Arc<MemoryLimit>,
}

/// Bytes that are left for memory. Tensors do not count; they are the CPU's.
struct MemoryLimit(AtomicU64);

impl Kernels {
    /// Returns `None` if there is neither the compiled library nor a compiler.
    pub(crate) fn new(backwards: bool) -> Result<Option<Self>> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        if library_there().is_none() && Command::new(COMPILER).arg("--version").output().is_err() {
            return Ok(None);
        }
        let library = LIBRARY.get_or_init(|| Library::compiled().map_err(|error| format!("{error:#}")));
        let library = library.as_ref().map_err(|reason| anyhow!("{reason}"))?;
        Ok(Some(Self { library, backwards, room: Arc::new(MemoryLimit(AtomicU64::new(u64::MAX))) }))
    }

    /// Limits memory to `bytes` bytes.
    pub(crate) fn with_room(self, bytes: u64) -> Self {
        Self { room: Arc::new(MemoryLimit(AtomicU64::new(bytes))), ..self }
    }

    /// Allocates `size` bytes.
    ///
    /// # Errors
    /// There is not enough memory.
    pub(crate) fn memory(&self, size: usize) -> Result<Memory> {
        let bytes = size as u64;
        let taken = self.room.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map_err(|left| anyhow!("{size} bytes on the emulated device, {left} are left"))?;
        // NaN reveals memory that was not written.
        let words = (0..size.div_ceil(16)).map(|_| UnsafeCell::new(u128::MAX)).collect();
        Ok(Memory { words, size, room: self.room.clone() })
    }

    /// # Safety
    /// See [`GpuRuntime::launch`](crate::machine::GpuRuntime::launch).
    pub(crate) unsafe fn launch(
        &self,
        kernel: &str,
        grid: [u32; 3],
        [threads, shared]: [usize; 2],
        (arguments, given): (*const c_void, usize),
    ) -> Result<()> {
        let found = self.library.find(kernel)?;
        // SAFETY: the library lives as long as the process.
        let size = unsafe { (*found).size };
        ensure!(size == given as u64, "kernel arguments have {given} bytes, expected {size}");
        ensure!(shared <= MOST_SHARED, "{shared} bytes of shared memory");
        let _turn = self.library.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the kernel is from the library; the caller promises the rest.
        unsafe {
            (self.library.emulate)(found, &raw const grid, threads as u32, arguments, self.backwards);
        };
        Ok(())
    }
}

impl Library {
    fn compiled() -> Result<Self> {
        ensure!(cfg!(all(target_arch = "x86_64", target_os = "linux")), "kernels are emulated on x86-64 Linux only");
        let path = library_file()?;
        let name = CString::new(path.as_os_str().as_encoded_bytes())?;
        // SAFETY: the library is ours and runs no code when it is opened.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        ensure!(!handle.is_null(), "`{}` cannot be opened", path.display());
        // SAFETY: the handle is open.
        let emulate = unsafe { libc::dlsym(handle, c"lode_emulate".as_ptr()) };
        ensure!(!emulate.is_null(), "`{}` has no emulator", path.display());
        // SAFETY: `emulator.h` declares it so.
        let emulate = unsafe { std::mem::transmute::<*mut c_void, Emulate>(emulate) };
        Ok(Self { handle, emulate, kernels: Mutex::default(), turn: Mutex::default() })
    }

    fn find(&self, kernel: &str) -> Result<*const Kernel> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kernels.get(kernel) {
            return Ok(*found as *const Kernel);
        }
        let name = CString::new(format!("kernel_{kernel}"))?;
        // SAFETY: the handle is open.
        let found = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        ensure!(!found.is_null(), "there is no such kernel");
        kernels.insert(kernel.to_owned(), found as usize);
        Ok(found.cast_const().cast())
    }
}

/// Returns the file name of the compiled library, which depends on the sources.
fn library_name() -> String {
    let mut hasher = DefaultHasher::new();
    SOURCES.hash(&mut hasher);
    format!("lode-kernels-{:016x}.so", hasher.finish())
}

/// Returns the compiled library from the folders of `LD_LIBRARY_PATH`, or from an earlier process.
fn library_there() -> Option<PathBuf> {
    let told = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::env::split_paths(&told).chain([own_folder()]);
    folders.map(|folder| folder.join(library_name())).find(|path| path.is_file())
}

/// Returns the folder in which processes that may start a compiler put the library.
fn own_folder() -> PathBuf {
    std::env::temp_dir().join("lode-kernels")
}

/// Compiles the kernels into a folder if they are not there. Processes that may not start a
/// compiler find them by `LD_LIBRARY_PATH`.
///
/// # Errors
/// There is no compiler (`c++`), or the folder is not writable.
pub fn compile_kernels(folder: &Path) -> Result<()> {
    let path = folder.join(library_name());
    if path.is_file() {
        return Ok(());
    }
    let own = folder.join(format!("lode-kernels-{}", std::process::id()));
    std::fs::create_dir_all(&own).with_context(|| format!("`{}`", own.display()))?;
    let moved = compile(&own).and_then(|library| Ok(std::fs::rename(library, &path)?));
    std::fs::remove_dir_all(&own)?;
    moved
}

/// Returns the compiled library. It is compiled once for these sources; later processes find it.
fn library_file() -> Result<PathBuf> {
    if let Some(path) = library_there() {
        return Ok(path);
    }
    let folder = own_folder();
    compile_kernels(&folder)?;
    Ok(folder.join(library_name()))
}

fn compile(folder: &Path) -> Result<PathBuf> {
    for (name, text) in SOURCES {
        std::fs::write(folder.join(name), text)?;
    }
    let library = folder.join("kernels.so");
    let mut command = Command::new(COMPILER);
    command.current_dir(folder).args([
        "-std=c++17",
        "-O3",
        "-march=native",
        "-ffp-contract=off",
        "-fPIC",
        "-shared",
        "-fno-strict-aliasing",
        "-Wno-unknown-pragmas",
    ]);
    command.args(["-x", "c++", "kernels.cu", "-o"]).arg(&library);
    let output = command.output().with_context(|| format!("`{COMPILER}` cannot be run"))?;
    let said: String = String::from_utf8_lossy(&output.stderr).chars().take(2000).collect();
    ensure!(output.status.success(), "kernels cannot be compiled: {said}");
    Ok(library)
}

/// Writes to memory that kernels use.
///
/// # Safety
/// The memory is at least as long as the bytes, and no kernel runs.
pub(crate) unsafe fn write_at(address: Address, bytes: &[u8]) {
    // SAFETY: as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.0 as *mut u8, bytes.len()) };
}

/// Memory to which kernels write, also while other references to it exist.
pub(crate) struct Memory {
    words: Box<[UnsafeCell<u128>]>,
    size: usize,
    room: Arc<MemoryLimit>,
}

// SAFETY: kernels, one at a time, and its owner read and write it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    pub(crate) fn address(&self) -> Address {
        Address(self.words.as_ptr() as u64)
    }

    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.size, "within the memory");
        // SAFETY: the range was checked, and `&mut self` is exclusive.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.words.as_ptr().cast_mut().cast::<u8>().add(at),
                bytes.len(),
            );
        };
    }

    pub(crate) fn read(&self, size: usize) -> Vec<u8> {
        assert!(size <= self.size, "within the memory");
        // SAFETY: the range was checked, and no kernel is writing: `launch` returns after the
        // kernel has ended.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast::<u8>(), size) }.to_vec()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.room.0.fetch_add(self.size as u64, Ordering::Relaxed);
    }
}

/// Memory that several processes map: an anonymous file.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    file: OwnedFd,
    address: NonNull<c_void>,
    size: usize,
}

// SAFETY: it is an address and a descriptor. Writes precede reads by other processes, see `Vault`.
unsafe impl Send for SharedMemory {}
// SAFETY: the same.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Creates memory that is filled with zeros.
    pub(crate) fn new(size: usize) -> Result<Self> {
        // SAFETY: the name is a C string.
        let file = unsafe { libc::memfd_create(c"lode-emulated".as_ptr(), libc::MFD_CLOEXEC) };
        ensure!(file >= 0, "there is no shared memory: {}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is new and not shared.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        // SAFETY: the descriptor is open.
        let sized = unsafe { libc::ftruncate(file.as_raw_fd(), libc::off_t::try_from(size)?) };
        ensure!(sized == 0, "there is no shared memory of {size} bytes: {}", std::io::Error::last_os_error());
        Self::of(file, size, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Maps memory of another process for reading.
    pub(crate) fn map(file: &OwnedFd, size: usize) -> Result<Self> {
        Self::of(file.try_clone()?, size, libc::PROT_READ)
    }

    fn of(file: OwnedFd, size: usize, access: libc::c_int) -> Result<Self> {
        // SAFETY: a new mapping; the system chooses its address.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), size, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        ensure!(address != libc::MAP_FAILED, "{size} bytes cannot be mapped: {}", std::io::Error::last_os_error());
        Ok(Self { file, address: NonNull::new(address).context("invariant: no mapping is at 0")?, size })
    }

    pub(crate) fn address(&self) -> Address {
        Address(self.address.as_ptr() as u64)
    }

    pub(crate) fn descriptor(&self) -> Result<OwnedFd> {
        Ok(self.file.try_clone()?)
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.size, "within the memory");
        // SAFETY: the range was checked, and there are no reads before all writes are complete.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address.as_ptr().cast::<u8>().add(at), bytes.len());
        };
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: it was mapped with that size, and its address is not used any more.
        unsafe { libc::munmap(self.address.as_ptr(), self.size) };
    }
}
