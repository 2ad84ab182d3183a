//! Credential helpers: programs `docker-credential-NAME` that store logins in the system's key
//! chain.
//!
//! `get` reads a server name on standard input and writes `{"ServerURL", "Username", "Secret"}`;
//! `store` reads that JSON; `erase` reads a server name. A helper that fails writes the reason on
//! standard output.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::client::{Credential, Error};

/// Maximum length of a helper's output, longer than any login.
const LONGEST_OUTPUT: u64 = 1 << 20;
/// A user name that marks the secret as an identity token.
const TOKEN_USER: &str = "<token>";

/// A helper program.
pub(super) struct Helper {
    name: String,
    program: PathBuf,
    search_path: OsString,
    limit: Duration,
}

/// The response of a helper.
pub(super) enum Reply {
    Credential(Credential),
    NotFound,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Login {
    #[serde(default, rename = "ServerURL")]
    server: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    secret: String,
}

/// Checks the name of a helper. It becomes part of a program's name, and must not become part of a
/// path.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let fine = name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if fine && !name.is_empty() {
        return Ok(());
    }
    let shown: String = name.chars().take(64).collect();
    Err(format!("`{shown}` is not a credential helper: expected letters, digits and `.`, `_`, `-`"))
}

impl Helper {
    /// Finds the program in the folders of `search_path`.
    pub(super) fn find(name: &str, search_path: &OsStr, limit: Duration) -> Result<Option<Self>, Error> {
        check_name(name).map_err(Error::Settings)?;
        let file = format!("docker-credential-{name}");
        let folders = std::env::split_paths(search_path).filter(|folder| folder.is_absolute());
        let program = folders.map(|folder| folder.join(&file)).find(|path| path.is_file());
        let (name, search_path) = (name.to_owned(), search_path.to_owned());
        Ok(program.map(|program| Self { name, program, search_path, limit }))
    }

    /// Returns the login at `server`.
    pub(super) fn get(&self, server: &str) -> Result<Reply, Error> {
        let (status, output) = self.run("get", server.as_bytes().to_vec())?;
        if !status.success() {
            let text = String::from_utf8_lossy(&output).to_ascii_lowercase();
            if text.contains("credentials not found") || text.contains("no credentials server url") {
                return Ok(Reply::NotFound);
            }
            return Err(self.refused("get", &output));
        }
        let login: Login = serde_json::from_slice(&output)
            .map_err(|_| self.error("does not answer with `{\"Username\", \"Secret\"}`; update it"))?;
        Ok(match (login.username, login.secret) {
            (_, secret) if secret.is_empty() => Reply::NotFound,
            (user, secret) if user == TOKEN_USER => Reply::Credential(Credential::IdentityToken(secret)),
            (user, password) => Reply::Credential(Credential::Password { user, password }),
        })
    }

    /// Stores a login.
    pub(super) fn store(&self, server: &str, credential: &Credential) -> Result<(), Error> {
        let (username, secret) = match credential {
            Credential::Password { user, password } => (user.clone(), password.clone()),
            Credential::IdentityToken(token) => (TOKEN_USER.to_owned(), token.clone()),
            Credential::Bearer(_) => {
                return Err(self.error("cannot keep a registry's token; log in with a user and a password"));
            }
        };
        let login = Login { server: server.to_owned(), username, secret };
        let input = serde_json::to_vec(&login).expect("invariant: a struct of strings is JSON");
        match self.run("store", input)? {
            (status, _) if status.success() => Ok(()),
            (_, output) => Err(self.refused("store", &output)),
        }
    }

    /// Removes a login. It is no error if the helper does not have it.
    pub(super) fn erase(&self, server: &str) -> Result<(), Error> {
        match self.run("erase", server.as_bytes().to_vec())? {
            (status, _) if status.success() => Ok(()),
            (_, output) if String::from_utf8_lossy(&output).contains("not found") => Ok(()),
            (_, output) => Err(self.refused("erase", &output)),
        }
    }

    fn run(&self, action: &str, input: Vec<u8>) -> Result<(ExitStatus, Vec<u8>), Error> {
        let failed = |source| Error::File { operation: "run", path: self.program.clone(), source };
        let mut child = Command::new(&self.program)
            .arg(action)
            .env("PATH", &self.search_path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let outcome = converse(&mut child, input, self.limit);
        if outcome.is_none() {
            // Both fail only if the helper has just exited by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        let late = || self.error(&format!("did not answer `{action}` within {} s", self.limit.as_secs_f32()));
        outcome.ok_or_else(late)?.map_err(failed)
    }

    /// After a failure, the output is a message for the user and contains no secret.
    fn refused(&self, action: &str, output: &[u8]) -> Error {
        let text = String::from_utf8_lossy(output);
        let shown: String = text.trim().chars().filter(|c| !c.is_control()).take(200).collect();
        self.error(&format!("failed to {action} a login: {shown}"))
    }

    fn error(&self, what: &str) -> Error {
        Error::Settings(format!("the credential helper `docker-credential-{}` {what}", self.name))
    }
}

/// Writes the input of a child process, reads its output and waits for its end. Returns `None`
/// after the timeout `limit`.
///
/// The reading thread ends with the child. It is not joined, because a grandchild may keep the pipe
/// open.
fn converse(child: &mut Child, input: Vec<u8>, limit: Duration) -> Option<std::io::Result<(ExitStatus, Vec<u8>)>> {
    let end = Instant::now() + limit;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        // A helper may ignore its input; its output and exit status show the result.
        let _ = stdin.map(|mut pipe| pipe.write_all(&input));
        let mut output = Vec::new();
        let read = stdout.map_or(Ok(0), |pipe| pipe.take(LONGEST_OUTPUT).read_to_end(&mut output));
        // After the timeout there is no receiver.
        let _ = sender.send(read.map(|_| output));
    });
    let output = match receiver.recv_timeout(limit).ok()? {
        Ok(output) => output,
        Err(error) => return Some(Err(error)),
    };
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(Ok((status, output))),
            Ok(None) if Instant::now() >= end => return None,
            Ok(None) => thread::sleep(Duration::from_millis(5)),
            Err(error) => return Some(Err(error)),
        }
    }
}
