//! A server that sends scripted responses byte by byte, including ones that no HTTP library would
//! send, with scripted delays.
//!
//! One server runs all cases. A component of the path names the case (`/v2/crossed/c17/…`); the
//! rest of the path is the resource. A connection has one request and one response, and is then
//! closed. The server has its own thread and runtime.
//!
//! It listens at four addresses: loopback; a non-loopback address, if the machine has one, which
//! must not be able to redirect to loopback; a storage that redirects lead to; and the canary, to
//! which no client may connect.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::support::own_address;

/// The size limit of a request's head, in bytes.
const LONGEST_HEAD: usize = 64 << 10;
/// The interval between two bytes of a slow body.
const DROP: Duration = Duration::from_secs(1);

/// A request.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) path: String,
    pub(super) query: String,
    /// The path after the case's component; empty for the token service.
    pub(super) resource: String,
    /// The first and last byte of the requested range, if any.
    pub(super) range: Option<(usize, usize)>,
    pub(super) authorized: bool,
    /// The local address of the connection.
    pub(super) at: SocketAddr,
}

/// A step of a response. After the last step, the server closes the connection.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Send(Bytes),
    /// Sends the bytes repeatedly until the client disconnects.
    Repeat(Bytes),
    /// Sends one byte per second.
    Drip(Bytes),
    /// Sends nothing until the client disconnects.
    Silence,
}

/// Returns the steps of a case's response to a request.
pub(super) type Play = dyn Fn(&Asked) -> Vec<Step> + Send + Sync;

/// A case that is active on the server until it is dropped.
pub(super) struct Stage {
    key: String,
    scene: Arc<Scene>,
    shared: Arc<Shared>,
}

struct Scene {
    play: Box<Play>,
    open: AtomicUsize,
    is_over: AtomicBool,
}

#[derive(Default)]
struct Shared {
    scenes: Mutex<HashMap<String, Arc<Scene>>>,
    knocks: AtomicUsize,
}

/// The server.
pub(super) struct CrossedServer {
    /// The loopback address.
    pub(super) near: SocketAddr,
    /// A non-loopback address, if this machine has one.
    pub(super) far: Option<SocketAddr>,
    /// The storage: another origin with the same files, at a non-loopback address if possible.
    pub(super) storage: SocketAddr,
    /// The canary on loopback; the server counts connections to it.
    pub(super) canary: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CrossedServer {
    pub(super) fn start() -> Self {
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        let elsewhere = own_address();
        let (near, canary, storage) = (bound(loopback), bound(loopback), bound(elsewhere.unwrap_or(loopback)));
        let far = elsewhere.map(bound);
        let address = |listener: &std::net::TcpListener| listener.local_addr().expect("bound");
        let addresses = (address(&near), far.as_ref().map(address), address(&storage), address(&canary));
        let shared = Arc::new(Shared::default());
        let (stop, stopped) = oneshot::channel();
        let listeners: Vec<_> = [near, storage].into_iter().chain(far).collect();
        let own = Arc::clone(&shared);
        let thread = std::thread::spawn(move || serve(listeners, canary, &own, stopped));
        let (near, far, storage, canary) = addresses;
        Self { near, far, storage, canary, shared, stop: Some(stop), thread: Some(thread) }
    }

    /// Activates a case, whose paths contain the component `key`.
    pub(super) fn stage(&self, key: &str, play: Box<Play>) -> Stage {
        let scene = Arc::new(Scene { play, open: AtomicUsize::new(0), is_over: AtomicBool::new(false) });
        lock(&self.shared.scenes).insert(key.to_owned(), Arc::clone(&scene));
        Stage { key: key.to_owned(), scene, shared: Arc::clone(&self.shared) }
    }

    /// Returns the number of connections to the canary.
    pub(super) fn knocks(&self) -> usize {
        self.shared.knocks.load(Ordering::Relaxed)
    }
}

impl Drop for CrossedServer {
    fn drop(&mut self) {
        // The thread may have ended by itself.
        let _ = self.stop.take().map(|stop| stop.send(()));
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the server of the campaign panicked");
    }
}

impl Stage {
    /// Returns the number of the case's open connections.
    pub(super) fn open(&self) -> usize {
        self.scene.open.load(Ordering::Relaxed)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.scene.is_over.store(true, Ordering::Relaxed);
        lock(&self.shared.scenes).remove(&self.key);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panicked with it in hand")
}

fn bound(address: IpAddr) -> std::net::TcpListener {
    let listener = std::net::TcpListener::bind((address, 0)).expect("an address of this machine");
    listener.set_nonblocking(true).expect("a socket");
    listener
}

fn serve(
    listeners: Vec<std::net::TcpListener>,
    canary: std::net::TcpListener,
    shared: &Arc<Shared>,
    stopped: oneshot::Receiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        for listener in listeners {
            let listener = TcpListener::from_std(listener).expect("a listener");
            tokio::spawn(accept(listener, Arc::clone(shared)));
        }
        let canary = TcpListener::from_std(canary).expect("a listener");
        tokio::spawn(count(canary, Arc::clone(shared)));
        // An error means that the server was dropped, which ends the thread too.
        let _ = stopped.await;
    });
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(connection(stream, Arc::clone(&shared)))),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn count(canary: TcpListener, shared: Arc<Shared>) {
    loop {
        if canary.accept().await.is_ok() {
            shared.knocks.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Serves one request. A client's disconnect ends it.
async fn connection(mut stream: TcpStream, shared: Arc<Shared>) {
    let Ok(at) = stream.local_addr() else { return };
    let Some(head) = head(&mut stream).await else { return };
    let Some((asked, scene)) = shared.find(&head, at) else {
        let nobody = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let _ = stream.write_all(nobody).await;
        return;
    };
    let _open = Open::new(&scene);
    for step in (scene.play)(&asked) {
        if step.play(&mut stream, &scene).await.is_err() {
            return;
        }
    }
    let _ = stream.shutdown().await;
}

/// Reads the head of a request, or returns `None` if the client disconnects before its end.
async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut piece).await.ok()?;
        if count == 0 || bytes.len() > LONGEST_HEAD {
            return None;
        }
        bytes.extend_from_slice(&piece[..count]);
    }
    String::from_utf8(bytes).ok()
}

impl Shared {
    /// Returns the request, and the case that it belongs to.
    fn find(&self, head: &str, at: SocketAddr) -> Option<(Asked, Arc<Scene>)> {
        let mut lines = head.split("\r\n");
        let target = lines.next()?.split(' ').nth(1)?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = path.replace("%3A", ":");
        let scenes = lock(&self.scenes);
        let (key, scene) = path.split('/').find_map(|part| scenes.get_key_value(part))?;
        let resource = path.split_once(&format!("/{key}")).map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        let headers: Vec<(String, &str)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim()))
            .collect();
        let header = |name: &str| headers.iter().find(|(own, _)| own == name).map(|(_, value)| *value);
        let asked = Asked {
            path,
            query: query.to_owned(),
            resource,
            range: header("range").and_then(range),
            authorized: header("authorization").is_some(),
            at,
        };
        Some((asked, Arc::clone(scene)))
    }
}

fn range(text: &str) -> Option<(usize, usize)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().unwrap_or(usize::MAX)))
}

/// Counts a connection while it is open.
struct Open<'a>(&'a Scene);

impl<'a> Open<'a> {
    fn new(scene: &'a Scene) -> Self {
        scene.open.fetch_add(1, Ordering::Relaxed);
        Self(scene)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Step {
    async fn play(self, stream: &mut TcpStream, scene: &Scene) -> io::Result<()> {
        match self {
            Self::Send(bytes) => stream.write_all(&bytes).await,
            Self::Repeat(bytes) => loop {
                stream.write_all(&bytes).await?;
            },
            Self::Drip(bytes) => {
                for byte in bytes {
                    if scene.is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    stream.write_all(&[byte]).await?;
                    tokio::time::sleep(DROP).await;
                }
                Ok(())
            }
            Self::Silence => stream.read(&mut [0]).await.map(drop),
        }
    }
}
