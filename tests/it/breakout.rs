//! A program in place of the runner that tries to escape the sandbox: every attempt is refused.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::server::Server;
use crate::support::{skip, tiny_model};

const PYTHON: &str = "/usr/bin/python3";

/// Attempts each escape and reports its outcome. A failed attempt must have failed with a
/// permission error.
const PROBE: &str = r#"
import ctypes, errno, os, socket

def say(text):
    os.write(2, (text + "\n").encode())

def attempt(name, work):
    try:
        found = work()
    except OSError as error:
        # What is only not there would be another reason.
        outcome = "refused" if error.errno in (errno.EPERM, errno.EACCES) else "escaped"
        return say(f"probe: {outcome}: {name}: {error}")
    say(f"probe: escaped: {name}: {found!r}")

def connect(family, address, kind=socket.SOCK_STREAM):
    socket.socket(family, kind).connect(address)

def call(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))

def write(path):
    with open(path, "w") as file:
        file.write("x")

daemon = os.getppid()
sockets = f"{TEMPORARY}/lode-{daemon}"
attempt("the daemon's port", lambda: connect(socket.AF_INET, ("127.0.0.1", PORT)))
attempt("a datagram", lambda: connect(socket.AF_INET6, ("::1", 53), socket.SOCK_DGRAM))
attempt("the daemon's socket", lambda: connect(socket.AF_UNIX, f"{HOME}/daemon.sock"))
attempt("an abstract socket", lambda: connect(socket.AF_UNIX, "\0anything"))
attempt("a runner's socket", lambda: connect(socket.AF_UNIX, f"{sockets}/0.sock"))
attempt("a socket of its own", lambda: socket.socket(socket.AF_UNIX).bind(f"{sockets}/1.sock"))
attempt("a packet of a pair", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("a ring", lambda: call(425, 8, ctypes.create_string_buffer(256)))
if os.uname().machine == "x86_64":
    attempt("a socket by x32", lambda: call(0x40000000 | 41, 2, 1, 0))
    attempt("tracing", lambda: call(101, 16, daemon, 0, 0))
    attempt("the daemon's memory", lambda: call(310, daemon, 0, 0, 0, 0, 0))
attempt("the folder of sockets", lambda: os.listdir(sockets))
attempt("another's socket removed", lambda: os.unlink(f"{sockets}/0.sock"))
attempt("the store", lambda: os.listdir(HOME))
attempt("a blob", lambda: open(BLOB).read(1))
attempt("a secret", lambda: open(SECRET).read())
attempt("the daemon's environment", lambda: open(f"/proc/{daemon}/environ").read())
attempt("the daemon's files", lambda: os.listdir(f"/proc/{daemon}/root"))
attempt("the first process", lambda: open("/proc/1/environ").read())
attempt("a file in the folder of temporary files", lambda: write(f"{TEMPORARY}/escaped"))
attempt("a file in the store", lambda: write(f"{HOME}/escaped"))
attempt("its own program", lambda: open(__file__, "a"))
attempt("devices", lambda: os.listdir("/dev"))
attempt("a terminal", lambda: open("/dev/tty"))
attempt("a namespace", lambda: call(272, 0x10000000))
attempt("the daemon stopped", lambda: os.kill(daemon, 0))
for name in os.environ:
    if "TOKEN" in name or "KEY" in name:
        say(f"probe: escaped: {name}")
for number in os.listdir("/proc/self/fd"):
    if int(number) > 2:
        try:
            say(f"probe: escaped: descriptor {number}: " + os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            pass  # The folder that was listed.
say("probe: done")
"#;

/// Quotes a path as a Python string.
fn quoted(path: &Path) -> String {
    json!(path).to_string()
}

/// Writes the program with the paths and the port that it tries to reach.
fn probe(server: &Server, path: &Path, secret: &Path, blob: &Path) {
    let (_, port) = server.address.rsplit_once(':').expect("an address with a port");
    let text = PROBE
        .replace("PORT", port)
        .replace("{TEMPORARY}", &server.home().parent().unwrap_or(Path::new("/")).display().to_string())
        .replace("{HOME}", &server.home().display().to_string())
        .replace("HOME", &quoted(&server.home()))
        .replace("BLOB", &quoted(blob))
        .replace("SECRET", &quoted(secret));
    std::fs::write(path, format!("#!{PYTHON}\n{text}")).expect("a program");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("it can be run");
}

#[tokio::test]
async fn a_runner_gets_at_nothing() {
    if !Path::new(PYTHON).exists() {
        return skip("a_runner_gets_at_nothing", "there is no Python of the system");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (program, secret) = (folder.path().join("runner.py"), folder.path().join("secret"));
    std::fs::write(&secret, "secret").expect("a secret");
    let runner = program.to_str().expect("a path").to_owned();
    let server = Server::start(&[
        ("LODE_RUNNER", &runner),
        ("HF_TOKEN", "hf_secret"),
        ("LODE_API_KEY", "lode_secret"),
        ("AWS_SESSION_TOKEN", "secret"),
    ])
    .await;
    server.create("tiny", &tiny_model()).await;
    let blob = crate::stored::created(&server.home(), "tiny").blobs().into_keys().next().expect("a model has blobs");
    let blob = crate::stored::path(&server.home(), &blob);
    probe(&server, &program, &secret, &blob);
    let (status, answer) =
        server.call("/api/generate", &json!({"model": "tiny", "prompt": "x", "stream": false})).await;
    assert_eq!(status, 500, "{answer}");
    let begin = Instant::now();
    while !server.log().contains("probe: done") {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let log = server.log();
    // On kernels without Landlock's sixth version, only the real runner's own filter refuses
    // signals.
    let older = log.contains("older than its sixth version");
    let allowed = |line: &str| older && line.contains("the daemon stopped");
    let escapes: Vec<&str> = log.lines().filter(|line| line.contains("probe: escaped") && !allowed(line)).collect();
    assert!(escapes.is_empty(), "{escapes:#?}");
    let refused = log.lines().filter(|line| line.contains("probe: refused")).count();
    assert!(refused >= 24, "{log}");
}
