//! Shared helpers of the tests: the location of the reference data, reports of skipped tests, and
//! access to files and JSON.

use std::fs::{self, OpenOptions};
use std::future::Future;
use std::io::Write;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use content::{Digest, Unwatched};
use import::{BlobSink, ImportProgress, Imported, NamedFile, Target};
use serde_json::Value as Json;

/// Returns the root of the project: the folder of the build, or the working directory if the tests
/// run on another machine.
pub(crate) fn root() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    if built.is_dir() { built } else { std::env::current_dir().expect("a folder") }
}

/// Returns the folder with reference data, if there is one.
pub(crate) fn shared() -> Option<PathBuf> {
    let folder = std::env::var_os("LODE_SHARED").map_or_else(|| root().join("../shared"), PathBuf::from);
    folder.is_dir().then_some(folder)
}

/// Returns the folder with real models, if there is one. Models that could not be fetched are
/// missing there.
pub(crate) fn models() -> Option<PathBuf> {
    let named = std::env::var_os("LODE_TEST_MODELS").map(PathBuf::from);
    let folder = named.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/lode/models")))?;
    folder.is_dir().then_some(folder)
}

/// Prints a line for the developer.
#[expect(clippy::print_stderr, reason = "a test that skips or measures tells whoever runs it")]
pub(crate) fn say(text: &str) {
    eprintln!("{text}");
}

/// Returns the number in an environment variable; `None` if it is unset or empty.
pub(crate) fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is `{text}`, expected a whole number")))
}

/// Reports that a test was skipped, and the reason.
pub(crate) fn skip(test: &str, reason: &str) {
    say(&format!("skipped {test}: {reason}"));
    let Some(path) = std::env::var_os("LODE_TEST_SKIPPED") else { return };
    let mut list = OpenOptions::new().create(true).append(true).open(path).expect("LODE_TEST_SKIPPED opens");
    // A single write keeps the lines of concurrent tests intact.
    list.write_all(format!("{test}: {reason}\n").as_bytes()).expect("LODE_TEST_SKIPPED takes a line");
}

/// Returns a folder of the fixtures. If there are no fixtures at all, reports the test as skipped.
pub(crate) fn fixtures(test: &str, folder: &str) -> Option<PathBuf> {
    let Some(shared) = shared() else {
        skip(test, "there is no folder `shared` beside the checkout, and LODE_SHARED names none");
        return None;
    };
    let folder = shared.join("fixtures").join(folder);
    assert!(folder.is_dir(), "`{}` is missing", folder.display());
    Some(folder)
}

/// Returns the paths of a folder's entries, sorted.
pub(crate) fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("cannot list `{}`: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry of a folder").path()).collect();
    paths.sort();
    paths
}

/// Returns the files of a folder with this extension, sorted.
pub(crate) fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut paths = entries(folder);
    paths.retain(|path| path.extension().is_some_and(|own| own == extension));
    paths
}

/// Returns the last component of a path.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the bytes of a file.
pub(crate) fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("cannot read `{}`: {e}", path.display()))
}

/// Returns the content of a JSON file.
pub(crate) fn json(path: &Path) -> Json {
    serde_json::from_slice(&read(path)).unwrap_or_else(|e| panic!("`{}` is not JSON: {e}", path.display()))
}

/// Returns the items of a JSON list.
pub(crate) fn list(value: &Json) -> &[Json] {
    value.as_array().unwrap_or_else(|| panic!("expected a list: {value}"))
}

/// Returns the members of a JSON object.
pub(crate) fn object(value: &Json) -> &serde_json::Map<String, Json> {
    value.as_object().unwrap_or_else(|| panic!("expected an object: {value}"))
}

/// Raises this process's limit of open files to its maximum: tests run concurrently, and some open
/// many connections.
pub(crate) fn allow_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("the soft limit may be raised");
}

/// Returns the whole numbers of a JSON list.
pub(crate) fn numbers(value: &Json) -> Vec<u64> {
    list(value).iter().map(|n| n.as_u64().expect("a whole number")).collect()
}

/// Imports the model at `path` with all steps in order.
pub(crate) fn import_model(path: &Path, target: &dyn Target) -> Result<Imported, import::Error> {
    import_files(&import::locate(path)?, target)
}

/// Imports the given files.
pub(crate) fn import_files(files: &[NamedFile], target: &dyn Target) -> Result<Imported, import::Error> {
    let inventory = import::inventory(files)?;
    let plan = import::plan(&inventory)?;
    import::write(&inventory, &plan, target, &ImportProgress::new(&Unwatched, 0))
}

/// Collects the bytes of a blob and passes them to a function that stores them. The function
/// returns whether they were new.
pub(crate) struct BufferSink<F> {
    size: u64,
    bytes: Vec<u8>,
    store: F,
}

impl<F: FnOnce(Digest, Vec<u8>) -> bool> BufferSink<F> {
    pub(crate) fn new(size: u64, store: F) -> Self {
        Self { size, bytes: Vec::new(), store }
    }
}

impl<F: FnOnce(Digest, Vec<u8>) -> bool> BlobSink for BufferSink<F> {
    fn append(&mut self, bytes: &[u8]) -> Result<(), content::Error> {
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(Digest, bool), content::Error> {
        assert_eq!(self.bytes.len() as u64, self.size, "as many bytes as were announced");
        let digest = Digest::of(&self.bytes);
        Ok((digest, (self.store)(digest, self.bytes)))
    }
}

/// Returns the folder of the model that is part of the repository.
pub(crate) fn tiny_model() -> PathBuf {
    root().join("tests/fixtures/tiny-llama")
}

/// Returns the tiny model with other weights: `seed` changes the lowest bits of each element.
pub(crate) fn variant(seed: u8) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for path in entries(&tiny_model()) {
        let mut bytes = read(&path);
        if name(&path).ends_with("safetensors") {
            let header = *bytes.first_chunk::<8>().expect("a header length");
            let data = 8 + usize::try_from(u64::from_le_bytes(header)).expect("small");
            for byte in bytes[data..].iter_mut().step_by(2) {
                *byte ^= seed;
            }
        }
        std::fs::write(folder.path().join(name(&path)), bytes).expect("a copy");
    }
    folder
}

/// Returns a non-loopback address of this machine. The daemon treats clients from there as remote.
pub(crate) fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // This sends no packet.
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// Waits until a condition holds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let begin = Instant::now();
    while !holds().await {
        assert!(begin.elapsed() < Duration::from_mins(1), "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
