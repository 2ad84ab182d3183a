//! Chat templates are programs by strangers: they are rendered in a process of its own, so that one that grows without end
//! is refused and ends neither the runner nor the answers of others.
//!
//! ```text
//! runner ──task──▶ nursery ──fork──▶ child: reads the template, renders, ends
//!        ◀─reply──         ◀─reply──
//! ```
//!
//! The nursery is forked while the runner has one thread, gives up what the runner gives up, and forks a child for each task.
//! A child that ends badly, or takes too long, is the task's failure. So a child has nothing of a conversation but its own.

#![expect(unsafe_code, reason = "a fork")]

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prompt::ChatTemplate;
use protocol::RenderRequest;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde::{Deserialize, Serialize};

use crate::isolation;

/// Private bytes that a child may have: many times what a long conversation takes.
const MEMORY: u64 = 512 << 20;
/// How long a child may take.
const TIME: Duration = Duration::from_secs(10);

/// What is to be done: to read a template, and to render a request where there is one.
#[derive(Debug, Serialize, Deserialize)]
struct Task {
    template: ChatTemplate,
    request: Option<RenderRequest>,
}

/// The text, or why there is none.
type Reply = Result<String, String>;

/// Renders templates in a process of its own.
#[derive(Debug)]
pub(crate) struct Renderer(Mutex<UnixStream>);

/// Who goes on after the fork.
pub(crate) enum Started {
    Runner(Renderer),
    /// The nursery has done its work.
    Nursery(ExitCode),
}

impl Renderer {
    /// Starts the nursery. There must be no other thread, and nothing open that another process must not have.
    ///
    /// # Errors
    /// Where the system gives no process.
    pub(crate) fn start(isolate: bool) -> io::Result<Started> {
        let (ours, theirs) = UnixStream::pair()?;
        if fork()?.is_some() {
            return Ok(Started::Runner(Self(Mutex::new(ours))));
        }
        drop(ours);
        // The daemon's end of the standard input is the runner's.
        rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
        // Standard output is the socket that the runner serves on.
        rustix::stdio::dup2_stdout(std::fs::File::open("/dev/null")?)?;
        if let Err(error) = isolation::limit_memory(MEMORY) {
            tracing::debug!("templates have no limit of memory: {error}");
        }
        if isolate {
            isolation::apply();
        }
        let served = serve(theirs, in_a_child);
        Ok(Started::Nursery(if served.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
    }

    /// Whether a template can be read.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self, template: ChatTemplate) -> Result<(), prompt::Error> {
        self.ask(&Task { template, request: None }).map(drop)
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// What the template says, or that it takes too much.
    pub(crate) fn render(&self, template: ChatTemplate, request: RenderRequest) -> Result<String, prompt::Error> {
        self.ask(&Task { template, request: Some(request) })
    }

    fn ask(&self, task: &Task) -> Result<String, prompt::Error> {
        let task = serde_json::to_vec(task).map_err(|error| prompt::Error::Template(error.to_string()))?;
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reply = send(&mut stream, &task).and_then(|()| receive(&mut stream));
        let Some(reply) = reply.ok().flatten().and_then(|reply| serde_json::from_slice::<Reply>(&reply).ok()) else {
            // Nothing can be rendered any more; the daemon starts another runner.
            tracing::error!("the process that renders templates has ended");
            std::process::exit(1);
        };
        reply.map_err(prompt::Error::Template)
    }

    /// One that renders in a thread of this process.
    #[cfg(test)]
    pub(crate) fn in_a_thread() -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        std::thread::spawn(move || serve(theirs, |task| Ok(encoded(&work(task)))));
        Self(Mutex::new(ours))
    }
}

/// The child's id in the parent, nothing in the child.
fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: this process has one thread, so no lock is held by one that the child lacks.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        child => Ok(Pid::from_raw(child)),
    }
}

/// Does tasks until the runner is gone.
fn serve(mut stream: UnixStream, each: impl Fn(&[u8]) -> io::Result<Vec<u8>>) -> io::Result<()> {
    while let Some(task) = receive(&mut stream)? {
        send(&mut stream, &each(&task)?)?;
    }
    Ok(())
}

/// Does a task in a child.
fn in_a_child(task: &[u8]) -> io::Result<Vec<u8>> {
    let (mut ours, mut theirs) = UnixStream::pair()?;
    let Some(child) = fork()? else {
        drop(ours);
        let sent = theirs.write_all(&encoded(&work(task)));
        std::process::exit(i32::from(sent.is_err()));
    };
    drop(theirs);
    let mut reply = Vec::new();
    ours.set_read_timeout(Some(TIME))?;
    let read = ours.read_to_end(&mut reply);
    if read.is_err() {
        kill_process(child, Signal::KILL)?;
    }
    let ended = waitpid(Some(child), WaitOptions::empty())?;
    let well = ended.is_some_and(|(_, status)| status.exit_status() == Some(0));
    Ok(match (read, well) {
        (Ok(_), true) => reply,
        (Ok(_), false) => encoded(&Err(format!("it takes more than {} MiB of memory, and is stopped", MEMORY >> 20))),
        (Err(_), _) => encoded(&Err(format!("it takes more than {} s, and is stopped", TIME.as_secs()))),
    })
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

/// Bytes after their number.
fn send(stream: &mut UnixStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&(bytes.len() as u64).to_le_bytes())?;
    stream.write_all(bytes)
}

/// What was sent; nothing where the other end is gone.
fn receive(stream: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    match stream.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let mut bytes = Vec::new();
    let length = u64::from_le_bytes(length);
    let read = stream.take(length).read_to_end(&mut bytes)?;
    if read as u64 == length { Ok(Some(bytes)) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
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
            assert_eq!(renderer.render(template(text), request.clone()).expect("text"), "é\n\"x\"");
        }
        renderer.check(template(text)).expect("it can be read");
        let error = renderer.check(template("{% if %}")).expect_err("it cannot").to_string();
        assert!(error.contains("template"), "{error}");
        let raised = renderer.render(template("{{ raise_exception('no') }}"), request).expect_err("it says no");
        assert!(matches!(&raised, prompt::Error::Template(reason) if reason.contains("no")), "{raised}");
    }
}
