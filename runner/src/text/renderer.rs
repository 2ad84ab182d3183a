//! Renders chat templates in separate processes. Templates are programs by strangers: if one grows
//! without end, it fails, and ends neither the runner nor the answers to other requests.
//!
//! ```text
//! runner ──task──▶ fork server ──fork──▶ child: reads the template, renders, ends
//!        ◀─reply──         ◀─reply──
//! ```
//!
//! Nurseries are forked while the runner has one thread. They give up the permissions that the
//! runner gives up, and fork a child for each task, one after the other. If a child crashes or
//! takes too long, its task fails. So a child has no data of any conversation but its own.

#![expect(unsafe_code, reason = "a fork")]

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prompt::ChatTemplate;
use protocol::RenderRequest;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use serde::{Deserialize, Serialize};

use crate::isolation;

/// Largest private memory of a child in bytes: many times the need of a long conversation.
const MEMORY: u64 = 512 << 20;
/// Longest time of a child with a template of the model, and with a template from a request.
const TIME: Duration = Duration::from_secs(10);
const TIME_OF_REQUESTS: Duration = Duration::from_secs(2);
/// Number of fork servers: several, so that a slow template delays few other requests.
const NURSERIES: usize = 4;

/// A task: to read a template, and to render a request if there is one.
#[derive(Debug, Serialize, Deserialize)]
struct Task<'a> {
    template: Cow<'a, ChatTemplate>,
    request: Option<Cow<'a, RenderRequest>>,
}

impl Task<'_> {
    fn time(&self) -> Duration {
        let brings_own = self.request.as_ref().is_some_and(|request| request.template.is_some());
        if brings_own { TIME_OF_REQUESTS } else { TIME }
    }
}

/// The rendered text, or the reason why there is none.
type Reply = Result<String, String>;

/// Renders templates in separate processes.
#[derive(Debug)]
pub(crate) struct Renderer {
    fork_servers: Vec<Mutex<UnixStream>>,
    pids: Vec<u32>,
    /// The fork server to wait for when all are busy.
    next: AtomicUsize,
}

/// The process that continues after the fork.
pub(crate) enum ForkRole {
    Runner(Renderer),
    /// A fork server that has finished its work.
    ForkServer(ExitCode),
}

impl Renderer {
    fn over(fork_servers: Vec<UnixStream>, pids: Vec<u32>) -> Self {
        Self { fork_servers: fork_servers.into_iter().map(Mutex::new).collect(), pids, next: AtomicUsize::new(0) }
    }

    /// Starts the fork servers. The caller must have no other thread, and no open file that another
    /// process must not have.
    ///
    /// # Errors
    /// Fails if the system creates no process.
    pub(crate) fn start(isolate: bool) -> io::Result<ForkRole> {
        let (mut fork_servers, mut pids) = (Vec::new(), Vec::new());
        for _ in 0..NURSERIES {
            let (ours, theirs) = UnixStream::pair()?;
            // A fork server that does not answer within this time is dead.
            ours.set_read_timeout(Some(2 * TIME))?;
            let Some(pid) = fork()? else {
                drop((ours, fork_servers));
                return Ok(ForkRole::ForkServer(fork_server(theirs, isolate)));
            };
            fork_servers.push(ours);
            pids.push(pid.as_raw_nonzero().get().cast_unsigned());
        }
        Ok(ForkRole::Runner(Self::over(fork_servers, pids)))
    }

    /// Returns the process ids of the fork servers.
    pub(crate) fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Checks that a template can be read.
    ///
    /// # Errors
    /// Returns the reason if it cannot.
    pub(crate) fn check(&self, template: &ChatTemplate) -> Result<(), prompt::Error> {
        self.ask(&Task { template: Cow::Borrowed(template), request: None }).map(drop)
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// Fails if the template reports an error, or exceeds the limits of memory or time.
    pub(crate) fn render(&self, template: &ChatTemplate, request: &RenderRequest) -> Result<String, prompt::Error> {
        self.ask(&Task { template: Cow::Borrowed(template), request: Some(Cow::Borrowed(request)) })
    }

    fn ask(&self, task: &Task<'_>) -> Result<String, prompt::Error> {
        let work = serde_json::to_vec(task).map_err(|error| prompt::Error::Template(error.to_string()))?;
        let mut stream = self.fork_server();
        let reply = send(&mut stream, task.time(), &work).and_then(|()| receive(&mut stream));
        let reply = reply.ok().flatten().and_then(|(_, reply)| serde_json::from_slice::<Reply>(&reply).ok());
        let Some(reply) = reply else {
            // No template can be rendered any more; the daemon starts another runner.
            tracing::error!("a process that renders templates has ended, or does not answer");
            std::process::exit(1);
        };
        reply.map_err(prompt::Error::Template)
    }

    /// Returns an idle fork server, or waits for the next one in round-robin order.
    fn fork_server(&self) -> MutexGuard<'_, UnixStream> {
        let free = self.fork_servers.iter().find_map(|fork_server| fork_server.try_lock().ok());
        free.unwrap_or_else(|| {
            let next = self.next.fetch_add(1, Ordering::Relaxed) % self.fork_servers.len();
            self.fork_servers[next].lock().unwrap_or_else(PoisonError::into_inner)
        })
    }

    /// Returns a renderer that renders in a thread of this process.
    #[cfg(test)]
    pub(crate) fn in_a_thread() -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        std::thread::spawn(move || serve(theirs, |task, _| encoded(&work(task))));
        Self::over(vec![ours], Vec::new())
    }
}

/// Runs a fork server.
fn fork_server(stream: UnixStream, isolate: bool) -> ExitCode {
    let prepared = || {
        end_with_parent()?;
        // Standard input is the runner's connection to the daemon, and standard output is the
        // socket that the runner serves on. A fork server must not keep them.
        rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
        rustix::stdio::dup2_stdout(std::fs::File::open("/dev/null")?)?;
        io::Result::Ok(())
    };
    if let Err(error) = isolation::limit_memory(MEMORY) {
        tracing::debug!("templates have no limit of memory: {error}");
    }
    let prepared = prepared();
    if isolate {
        isolation::apply(isolation::ProcessRole::ForkServer);
    }
    match prepared.and_then(|()| serve(stream, in_a_child)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::debug!("the template process ends: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Has the kernel kill this process when its parent ends.
#[cfg(target_os = "linux")]
fn end_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Does nothing: the process ends when the other end of its socket closes.
#[cfg(not(target_os = "linux"))]
fn end_with_parent() -> io::Result<()> {
    Ok(())
}

/// Forks the process. Returns the child's id in the parent, and `None` in the child.
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: this process has one thread, so no lock is held by a thread that the child lacks.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        child => Ok(Pid::from_raw(child)),
    }
}

/// Serves tasks until the runner is gone.
fn serve(mut stream: UnixStream, each: impl Fn(&[u8], Duration) -> Vec<u8>) -> io::Result<()> {
    while let Some((time, task)) = receive(&mut stream)? {
        send(&mut stream, Duration::ZERO, &each(&task, time))?;
    }
    Ok(())
}

/// Serves a task in a child.
fn in_a_child(task: &[u8], time: Duration) -> Vec<u8> {
    let reply = started(task).and_then(|(child, stream)| {
        let read = read_for(stream, time);
        if read.is_err() {
            kill_process(child, Signal::KILL)?;
        }
        let status = waitpid(Some(child), WaitOptions::empty())?.map(|(_, status)| status);
        Ok(match read {
            Ok(reply) if status.is_some_and(|status| status.exit_status() == Some(0)) => reply,
            Ok(_) => encoded(&Err(ended(status))),
            Err(_) => encoded(&Err(format!("it exceeded the time limit of {} s", time.as_secs()))),
        })
    });
    reply.unwrap_or_else(|error| encoded(&Err(format!("cannot start a process to render it: {error}; try again"))))
}

/// Starts a child; returns its id and the socket for its reply.
fn started(task: &[u8]) -> io::Result<(Pid, UnixStream)> {
    let (ours, mut theirs) = UnixStream::pair()?;
    let Some(child) = fork()? else {
        drop(ours);
        let sent = end_with_parent().and_then(|()| theirs.write_all(&encoded(&work(task))));
        std::process::exit(i32::from(sent.is_err()));
    };
    Ok((child, ours))
}

/// Reads until the other end closes; fails if that takes longer than `time`.
fn read_for(mut stream: UnixStream, time: Duration) -> io::Result<Vec<u8>> {
    let begun = Instant::now();
    let mut reply = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        let left = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        match stream.read(&mut piece)? {
            0 => return Ok(reply),
            count => reply.extend_from_slice(&piece[..count]),
        }
    }
}

/// Returns the reason why a child gave no reply. A program that gets no memory aborts.
fn ended(status: Option<WaitStatus>) -> String {
    let signal = status.and_then(WaitStatus::terminating_signal);
    if signal == Some(Signal::ABORT.as_raw()) {
        return format!("it exceeded the memory limit of {} MiB", MEMORY >> 20);
    }
    tracing::warn!(?status, "a process that rendered a template ended badly");
    format!("the process that rendered it ended badly ({status:?})")
}

fn work(task: &[u8]) -> Reply {
    let Task { template, request } = serde_json::from_slice(task).map_err(|error| error.to_string())?;
    let done = match request {
        Some(request) => template.render(&request),
        None => template.check().map(|()| String::new()),
    };
    done.map_err(|error| match error {
        prompt::Error::Template(reason) => reason,
        other => other.to_string(),
    })
}

fn encoded(reply: &Reply) -> Vec<u8> {
    serde_json::to_vec(reply).unwrap_or_default()
}

/// Sends the time that a task may take, the number of bytes, and the bytes.
fn send(stream: &mut UnixStream, time: Duration, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&(time.as_millis() as u64).to_le_bytes())?;
    stream.write_all(&(bytes.len() as u64).to_le_bytes())?;
    stream.write_all(bytes)
}

/// Receives a message; `None` if the other end is gone.
fn receive(stream: &mut UnixStream) -> io::Result<Option<(Duration, Vec<u8>)>> {
    let mut head = [[0; 8]; 2];
    match stream.read_exact(head.as_flattened_mut()) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let [time, length] = head.map(u64::from_le_bytes);
    let mut bytes = Vec::new();
    let read = stream.take(length).read_to_end(&mut bytes)?;
    let whole = read as u64 == length;
    if whole { Ok(Some((Duration::from_millis(time), bytes))) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn tasks_and_replies_come_as_they_were_sent() {
        let renderer = Renderer::in_a_thread();
        let messages = serde_json::from_value(json!([{"role": "user", "content": "é\n\"x\""}])).expect("messages");
        let request = RenderRequest { messages, ..RenderRequest::default() };
        let template = |text: &str| ChatTemplate::new(text, Map::new());
        let text = "{{ messages[0].content }}";
        for _ in 0..2 {
            assert_eq!(renderer.render(&template(text), &request).expect("text"), "é\n\"x\"");
        }
        renderer.check(&template(text)).expect("it can be read");
        let error = renderer.check(&template("{% if %}")).expect_err("it cannot").to_string();
        assert!(error.contains("template"), "{error}");
        let raised = renderer.render(&template("{{ raise_exception('no') }}"), &request).expect_err("it says no");
        assert!(matches!(&raised, prompt::Error::Template(reason) if reason.contains("no")), "{raised}");
    }
}
