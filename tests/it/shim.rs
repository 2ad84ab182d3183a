//! A library that is preloaded into the daemon and intercepts system calls on files
//! (`shim/shim.c`). It makes a chosen call fail, or records all writes. The machine's C compiler
//! builds it on first use.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use crate::support::root;

/// The offset of the kinds of calls in the control file, and their maximum number.
const KINDS_AT: u64 = 4096;
const MOST_KINDS: u64 = 1 << 20;
/// A pseudo error: the call writes only half of its bytes.
pub(crate) const SHORT_WRITE: u64 = 100_000;

/// The operating mode of the shim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass = 0,
    Count = 1,
    Inject = 2,
    Record = 3,
}

/// The words of the control file.
#[derive(Clone, Copy)]
enum Word {
    Mode = 0,
    Counter = 1,
    Target = 2,
    Sticky = 3,
    Error = 4,
    Hits = 5,
}

/// A call that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The number of the call, counted from 0.
    pub(crate) at: u64,
    /// The `errno` value, or [`SHORT_WRITE`].
    pub(crate) error: u64,
    /// Whether all later calls fail too.
    pub(crate) sticky: bool,
}

/// The test's side of the shim.
pub(crate) struct Shim {
    folder: tempfile::TempDir,
    control: File,
}

/// The built library. It is beside the test program, because a folder for temporary files may be
/// mounted `noexec`.
static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::current_exe().expect("this program").with_extension("shim");
    std::fs::create_dir_all(&folder).expect("a folder beside this program");
    // Another run of the tests may build it at the same time.
    let (library, new) = (folder.join("libshim.so"), folder.join(format!("{}.so", std::process::id())));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(compiler);
    command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&new);
    command.arg(root().join("tests/it/shim/shim.c")).args(["-ldl", "-lpthread"]);
    let built = command.output().expect("a C compiler, which building Lode needs as well");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    std::fs::rename(new, &library).expect("the library");
    library
});

impl Shim {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("control");
        let control = OpenOptions::new().read(true).write(true).create_new(true).open(path).expect("a control file");
        control.set_len(KINDS_AT + MOST_KINDS).expect("room for the kinds");
        Self { folder, control }
    }

    /// Returns the environment that loads the shim into a daemon with this store.
    pub(crate) fn environment(&self, home: &Path) -> Vec<(&'static str, String)> {
        let home = home.canonicalize().expect("a folder of a store");
        let shown = |path: &Path| path.to_str().expect("a plain path").to_owned();
        vec![
            ("LD_PRELOAD", shown(&LIBRARY)),
            ("LODE_SHIM_CONTROL", shown(&self.folder.path().join("control"))),
            ("LODE_SHIM_LOG", shown(&self.log())),
            ("LODE_SHIM_ROOT", shown(&home)),
        ]
    }

    /// Returns the path of the log of recorded calls.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// Sets the mode, and starts counting from 0.
    pub(crate) fn begin(&self, mode: Mode) {
        self.set(Word::Mode, Mode::Pass as u64);
        self.set(Word::Counter, 0);
        self.set(Word::Hits, 0);
        self.set(Word::Mode, mode as u64);
    }

    /// Makes a call fail, counted from now on.
    pub(crate) fn inject(&self, fault: Fault) {
        self.set(Word::Mode, Mode::Pass as u64);
        self.set(Word::Target, fault.at);
        self.set(Word::Error, fault.error);
        self.set(Word::Sticky, u64::from(fault.sticky));
        self.begin(Mode::Inject);
    }

    /// Stops counting, recording or failing. Returns the number of failed calls.
    pub(crate) fn end(&self) -> u64 {
        self.set(Word::Mode, Mode::Pass as u64);
        self.get(Word::Hits)
    }

    /// Returns the kinds of the counted calls, in their order.
    pub(crate) fn kinds(&self) -> Vec<u8> {
        let mut kinds = vec![0; self.get(Word::Counter).min(MOST_KINDS) as usize];
        self.control.read_exact_at(&mut kinds, KINDS_AT).expect("the control file");
        kinds
    }

    // The shim has mapped the file; the kernel keeps file and mapping coherent.
    fn set(&self, word: Word, value: u64) {
        self.control.write_all_at(&value.to_le_bytes(), word as u64 * 8).expect("the control file");
    }

    fn get(&self, word: Word) -> u64 {
        let mut bytes = [0; 8];
        self.control.read_exact_at(&mut bytes, word as u64 * 8).expect("the control file");
        u64::from_le_bytes(bytes)
    }
}

/// Converts an environment to the type that [`Server`](crate::server::Server) takes.
pub(crate) fn borrowed<'a>(environment: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    environment.iter().map(|(name, value)| (*name, value.as_str())).collect()
}
