//! Files that a command passes to the daemon. The command opens the files that its user named and
//! sends the descriptors. So the daemon cannot read more than the user, and it can read files that
//! only the user can.
//!
//! ```text
//! command ──▶ length of names, names as JSON, SCM_RIGHTS ──▶ daemon     repeated as necessary
//!         ◀── one byte: received                          ◀──
//!         ──▶ 0                                           ──▶
//!         ◀── a token, 32 hexadecimal digits              ◀──
//! command ──▶ POST /api/create {"handed": TOKEN} ──▶ daemon             over HTTP, with API keys
//! ```
//!
//! The socket is for the daemon's user, or for all users of the machine if the operator allows it:
//! it reveals and changes nothing. Files without a request are closed after a minute.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use content::operation::{Context, OperationError, Result, Unclassified};
use content::{bail, ensure};
use import::{LocalFile, NamedFile};
use rand::Rng;
use rustix::fs::{Mode, chmod, fchmod};
use rustix::io::{FdFlags, fcntl_setfd, ioctl_fionbio};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketType, bind, listen, recvmsg, sendmsg, socket,
};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

/// Maximal number of descriptors in a message.
const SOME: usize = 32;
/// Maximal length of the list of names in a message, in bytes.
const MOST_NAMES: usize = 1 << 18;
/// Maximal number of files that are passed at once, and that wait for requests altogether.
const MOST_FILES: usize = 1024;
/// Maximal number of waiting files per user, if the limit of open files allows it.
const MOST_OF_USER: usize = 512;
/// How long files wait for their request.
const KEPT: Duration = Duration::from_mins(1);
/// Timeout of passing files.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximal number of connections that are not yet accepted.
const BACKLOG: i32 = 128;
/// Maximal number of commands that pass files at the same time.
const AT_A_TIME: usize = 2;

/// Files that wait for their requests. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketUploads(Arc<Mutex<HashMap<String, Waiting>>>);

#[derive(Debug)]
struct Waiting {
    since: Instant,
    /// The user at the other end of the socket, which owns the share.
    user: u32,
    files: Vec<NamedFile>,
}

impl SocketUploads {
    /// Takes the files of a token. A second call returns `None`.
    pub(crate) fn take(&self, token: &str) -> Option<Vec<NamedFile>> {
        self.expire();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.remove(token).map(|waiting| waiting.files)
    }

    /// Closes files whose request did not arrive in time.
    fn expire(&self) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|_, waiting| waiting.since.elapsed() < KEPT);
    }

    fn keep(&self, files: Vec<NamedFile>, user: u32) -> Result<String> {
        self.expire();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ensure_share(&waiting, files.len(), user)?;
        let token = format!("{:032x}", rand::rng().random::<u128>());
        waiting.insert(token.clone(), Waiting { since: Instant::now(), user, files });
        Ok(token)
    }

    /// Receives files of commands at the socket, until the future is dropped.
    pub(crate) async fn serve(self, socket: Socket) {
        let turns = Arc::new(Semaphore::new(AT_A_TIME));
        let mut sweep = tokio::time::interval(KEPT / 4);
        loop {
            let accepted = tokio::select! {
                accepted = socket.listener.accept() => accepted,
                _ = sweep.tick() => {
                    self.expire();
                    continue;
                }
            };
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            };
            let Ok(turn) = turns.clone().acquire_owned().await else { return };
            let Ok(user) = stream.peer_cred().map(|peer| peer.uid()) else { continue };
            let (own, stream) = (self.clone(), stream.into_std());
            // The task ends by itself, because the transfer has a timeout.
            drop(tokio::task::spawn_blocking(move || {
                if let Err(error) = stream.map_err(OperationError::from).and_then(|stream| own.receive(&stream, user)) {
                    tracing::debug!("files were not handed over: {error:#}");
                }
                drop(turn);
            }));
        }
    }

    fn receive(&self, mut stream: &UnixStream, user: u32) -> Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut files = Vec::new();
        let end = Instant::now() + PATIENCE;
        while let Some(mut some) = receive_some(Timed { stream, end })? {
            files.append(&mut some);
            ensure_share(&self.0.lock().unwrap_or_else(PoisonError::into_inner), files.len(), user)?;
            stream.write_all(&[1])?;
        }
        ensure!(!files.is_empty(), "no files");
        let token = self.keep(files, user)?;
        Ok(stream.write_all(token.as_bytes())?)
    }
}

/// Checks the shares of users, so that no single user takes all descriptors.
fn ensure_share(waiting: &HashMap<String, Waiting>, more: usize, user: u32) -> Result<()> {
    let count = |of: &dyn Fn(&Waiting) -> bool| -> usize {
        waiting.values().filter(|waiting| of(waiting)).map(|waiting| waiting.files.len()).sum()
    };
    let (own, share) = (count(&|waiting| waiting.user == user) + more, share_of_user());
    ensure!(
        own <= share,
        "{own} files of user {user} would wait for their requests, at most {share} may: a quarter of the files that the daemon may \
         have open (`ulimit -n`), and {MOST_OF_USER} at most"
    );
    let all = count(&|_| true) + more;
    ensure!(all <= MOST_FILES, "{all} files of all users would wait for their requests, at most {MOST_FILES} may");
    Ok(())
}

/// Returns how many descriptors of one user may wait: at most a quarter of the files that the
/// process may open.
fn share_of_user() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(MOST_OF_USER, |limit| MOST_OF_USER.min(usize::try_from(limit / 4).unwrap_or(usize::MAX)))
}

/// A reader with an absolute deadline, however slowly the bytes arrive.
struct Timed<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl<'a> Timed<'a> {
    fn in_time(&self) -> io::Result<&'a UnixStream> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        Ok(self.stream)
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.in_time()?.read(buffer)
    }
}

/// Receives the files of a message; `None` at the end.
fn receive_some(mut timed: Timed<'_>) -> Result<Option<Vec<NamedFile>>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOME))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; 4];
    let received =
        recvmsg(timed.in_time()?.as_fd(), &mut [IoSliceMut::new(&mut length)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
            .internal()?;
    let descriptors: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect();
    ensure!(received.bytes > 0, "the connection was closed");
    timed.read_exact(&mut length[received.bytes..])?;
    let length = u32::from_le_bytes(length) as usize;
    if length == 0 {
        return Ok(None);
    }
    ensure!(length <= MOST_NAMES, "the names are too long");
    let mut names = vec![0; length];
    timed.read_exact(&mut names)?;
    let names: Vec<String> = serde_json::from_slice(&names).internal()?;
    if names.len() != descriptors.len() {
        bail!("{} of {} descriptors arrived; allow more open files (`ulimit -n`)", descriptors.len(), names.len());
    }
    let file = |(name, descriptor): (String, OwnedFd)| {
        let name = import::relative_name(&name)?;
        let opened = LocalFile::opened(PathBuf::from(&name), File::from(descriptor));
        let source = opened.with_context(|| format!("`{name}`"))?;
        Ok(NamedFile { name, source: Arc::new(source) })
    };
    names.into_iter().zip(descriptors).map(file).collect::<Result<_>>().map(Some)
}

/// The socket on which commands pass files. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Creates the socket, replacing a stale one of a daemon that was killed. A `shared` socket is
    /// open to all users that can reach it, otherwise only to this user.
    pub(crate) fn bind(path: &Path, shared: bool) -> Result<Self> {
        let failed = || format!("cannot listen on the socket `{}`; LODE_SOCKET chooses another", path.display());
        match std::fs::symlink_metadata(path) {
            Ok(there) if std::os::unix::fs::FileTypeExt::is_socket(&there.file_type()) => {
                ensure!(
                    UnixStream::connect(path).is_err(),
                    "another process listens on the socket `{}`; LODE_SOCKET chooses another",
                    path.display()
                );
                std::fs::remove_file(path).with_context(failed)?;
            }
            Ok(_) => bail!("`{}` exists and is not a socket; LODE_SOCKET sets another path", path.display()),
            Err(_) => {}
        }
        let listener = Self::listen(path).with_context(failed)?;
        if shared {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).with_context(failed)?;
        }
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Ensures that only this user can connect, from the first moment on. Linux gives the file the
    /// permissions of the socket, less the process's umask. Other systems do not, so the
    /// permissions are set again.
    fn listen(path: &Path) -> io::Result<UnixListener> {
        let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        ioctl_fionbio(&socket, true)?;
        let own = Mode::RUSR | Mode::WUSR;
        let _ = fchmod(&socket, own);
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        chmod(path, own)?;
        listen(&socket, BACKLOG)?;
        UnixListener::from_std(socket.into())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Passes files to the daemon through its socket. Returns the token for the request.
///
/// # Errors
/// No process listens on the socket, or the daemon does not accept the files.
pub fn hand_over(socket: &Path, files: &[(String, File)]) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    for some in files.chunks(SOME) {
        let names: Vec<&str> = some.iter().map(|(name, _)| name.as_str()).collect();
        let names = serde_json::to_vec(&names)?;
        let length = u32::try_from(names.len()).map_err(io::Error::other)?.to_le_bytes();
        let descriptors: Vec<BorrowedFd<'_>> = some.iter().map(|(_, file)| file.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOME))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::Error::other("there is no room for the descriptors of a message"));
        }
        let sent = sendmsg(stream.as_fd(), &[IoSlice::new(&length)], &mut ancillary, SendFlags::empty())?;
        stream.write_all(&length[sent..])?;
        stream.write_all(&names)?;
        stream.read_exact(&mut [0])?;
    }
    stream.write_all(&[0; 4])?;
    let mut token = [0; 32];
    stream.read_exact(&mut token)?;
    String::from_utf8(token.to_vec()).map_err(io::Error::other)
}
