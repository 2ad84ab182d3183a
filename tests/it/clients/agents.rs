//! Unmodified coding agents: each has a conversation, calls a tool or edits a file, and continues
//! with a second turn. `lode launch` starts them where it can pass all they need, so that its
//! settings are tested too.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::scripted::{self, Line, call};
use crate::server::Server;
use crate::support::skip;

/// The text that the tool prints, which proves that it ran.
const PROOF: &str = "lode-was-here";
/// The time limit of an agent for one prompt. It allows for debug builds, two cores and concurrent
/// tests.
const PATIENCE: Duration = Duration::from_mins(4);

/// Returns the model's lines: a greeting, the calls of each agent, and the text after a tool's
/// result.
fn lines() -> Vec<Line> {
    let echo = format!("echo {PROOF} > proof.txt");
    let line = |asked, tool, says: String| Line { asked, tool, says };
    vec![
        line("GREET-ME", None, "Greetings from the small model.".to_owned()),
        line("USE-YOUR-TOOL", Some("Bash"), call("Bash", &json!({"command": echo, "description": "Prove it"}))),
        line("USE-YOUR-TOOL", Some("bash"), call("bash", &json!({"command": echo, "description": "Prove it"}))),
        line("USE-YOUR-TOOL", Some("exec_command"), call("exec_command", &json!({"cmd": echo}))),
        line("USE-YOUR-TOOL", Some("shell"), call("shell", &json!({"command": ["bash", "-c", echo]}))),
        line("EDIT-THE-FILE", None, format!("proof.txt\n```\n{PROOF}\n```\n")),
        line("SAY-GOODBYE", None, "Goodbye from the small model.".to_owned()),
    ]
}

/// An agent's environment: a home folder, a project, and a daemon with the scripted model.
struct Workplace {
    server: Server,
    folder: tempfile::TempDir,
}

impl Workplace {
    async fn new() -> Self {
        let (folder, model) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        scripted::write(model.path(), &lines(), "The tool has answered.");
        let server = Server::start(&[]).await;
        server.create("scripted", model.path()).await;
        for name in ["home", "project"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let workplace = Self { server, folder };
        let made = Command::new("git").args(["init", "--quiet"]).current_dir(workplace.project()).status();
        assert!(made.is_ok_and(|status| status.success()), "git makes a repository");
        workplace
    }

    fn project(&self) -> PathBuf {
        self.folder.path().join("project")
    }

    /// Runs `lode launch AGENT … -- arguments`, with the agent's program in `bin`.
    fn launch(&self, bin: &Path, agent: &str, environment: &[(&str, &str)], arguments: &[&str]) -> String {
        let all = [&["launch", agent, "--model", "scripted:latest", "--yes", "--"], arguments].concat();
        self.run(self.server.command(&all), bin, environment)
    }

    /// Runs a command to its end and returns its output.
    fn run(&self, mut command: Command, bin: &Path, environment: &[(&str, &str)]) -> String {
        let home = self.folder.path().join("home");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([bin.to_owned()].into_iter().chain(std::env::split_paths(&path)));
        command
            .current_dir(self.project())
            .env("PWD", self.project())
            .env("HOME", &home)
            .env("PATH", path.expect("paths"));
        for variable in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"] {
            command.env_remove(variable);
        }
        let output = ended(command.envs(environment.iter().copied()));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\nstdout: {said}\nstderr: {told}\n{}", output.status, self.server.log());
        said
    }

    /// Asserts that the tool has run in the project.
    fn check_proof(&self) {
        let proof = std::fs::read_to_string(self.project().join("proof.txt")).unwrap_or_default();
        assert_eq!(proof.trim(), PROOF, "the agent has done what the model asked for");
    }
}

/// Waits for a command, and kills it after [`PATIENCE`].
fn ended(command: &mut Command) -> Output {
    let (stdout, stderr) =
        (tempfile::NamedTempFile::new().expect("a file"), tempfile::NamedTempFile::new().expect("a file"));
    let open = |file: &tempfile::NamedTempFile| Stdio::from(file.reopen().expect("it opens"));
    let mut child =
        command.stdin(Stdio::null()).stdout(open(&stdout)).stderr(open(&stderr)).spawn().expect("the command starts");
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("its state") {
            break status;
        }
        if begin.elapsed() > PATIENCE {
            child.kill().expect("it is killed");
            break child.wait().expect("its end");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let read = |file: tempfile::NamedTempFile| std::fs::read(file.path()).expect("what was printed");
    Output { status, stdout: read(stdout), stderr: read(stderr) }
}

/// Returns the folder with the agents' programs, if this one is installed.
fn installed(test: &str, program: &str) -> Option<PathBuf> {
    let reason = |what: &str| format!("{what}; scripts/test installs the agents");
    let Some(folder) = std::env::var_os("LODE_TEST_AGENTS") else {
        skip(test, &reason("LODE_TEST_AGENTS names no folder with npm packages"));
        return None;
    };
    let bin = PathBuf::from(folder).join("node_modules/.bin");
    if !bin.join(program).exists() {
        skip(test, &reason(&format!("`{program}` is not installed")));
        return None;
    }
    Some(bin)
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_code() {
    let Some(bin) = installed("clients::agents::claude_code", "claude") else { return };
    let place = Workplace::new().await;
    let quiet = [("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"), ("DISABLE_AUTOUPDATER", "1")];
    let ask = |arguments: &[&str]| place.launch(&bin, "claude", &quiet, arguments);
    assert!(ask(&["-p", "GREET-ME"]).contains("Greetings from the small model."));
    let used = ask(&["-p", "USE-YOUR-TOOL", "--allowedTools", "Bash"]);
    assert!(used.contains("The tool has answered."), "{used}");
    place.check_proof();
    let second = ask(&["-p", "SAY-GOODBYE", "--continue"]);
    assert!(second.contains("Goodbye from the small model."), "{second}");
}

#[tokio::test(flavor = "multi_thread")]
async fn codex() {
    let Some(bin) = installed("clients::agents::codex", "codex") else { return };
    let place = Workplace::new().await;
    let free = ["--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"];
    let ask = |arguments: &[&str]| place.launch(&bin, "codex", &[], &[&["exec"], &free[..], arguments].concat());
    assert!(ask(&["GREET-ME"]).contains("Greetings from the small model."));
    let used = ask(&["USE-YOUR-TOOL"]);
    assert!(used.contains("The tool has answered."), "{used}");
    place.check_proof();
    let second = ask(&["resume", "--last", "SAY-GOODBYE"]);
    assert!(second.contains("Goodbye from the small model."), "{second}");
    // Uses the daemon as if it were Ollama.
    let base = format!("{}/v1", place.server.url("").trim_end_matches('/'));
    let mut oss = Command::new(bin.join("codex"));
    oss.args(["exec", "--oss", "--local-provider", "ollama", "-m", "scripted:latest"]).args(free).arg("GREET-ME");
    let said = place.run(oss, &bin, &[("CODEX_OSS_BASE_URL", &base)]);
    assert!(said.contains("Greetings from the small model."), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode() {
    let Some(bin) = installed("clients::agents::opencode", "opencode") else { return };
    let place = Workplace::new().await;
    let quiet = [("OPENCODE_DISABLE_AUTOUPDATE", "1")];
    let ask = |arguments: &[&str]| place.launch(&bin, "opencode", &quiet, &[&["run"], arguments].concat());
    assert!(ask(&["GREET-ME"]).contains("Greetings from the small model."));
    let used = ask(&["USE-YOUR-TOOL"]);
    assert!(used.contains("The tool has answered."), "{used}");
    place.check_proof();
    let second = ask(&["--continue", "SAY-GOODBYE"]);
    assert!(second.contains("Goodbye from the small model."), "{second}");
}

#[tokio::test(flavor = "multi_thread")]
async fn copilot() {
    let Some(bin) = installed("clients::agents::copilot", "copilot") else { return };
    let place = Workplace::new().await;
    let quiet = [("COPILOT_OFFLINE", "true"), ("COPILOT_AUTO_UPDATE", "false")];
    let ask = |arguments: &[&str]| place.launch(&bin, "copilot", &quiet, &[&["--allow-all-tools"], arguments].concat());
    let greeted = ask(&["-p", "GREET-ME"]);
    assert!(greeted.contains("Greetings from the small model."), "{greeted}");
    let used = ask(&["-p", "USE-YOUR-TOOL"]);
    assert!(used.contains("The tool has answered."), "{used}");
    place.check_proof();
    let second = ask(&["--continue", "-p", "SAY-GOODBYE"]);
    assert!(second.contains("Goodbye from the small model."), "{second}");
}

#[tokio::test(flavor = "multi_thread")]
async fn aider() {
    const TEST: &str = "clients::agents::aider";
    let Some(python) = std::env::var_os("LODE_TEST_AIDER") else {
        return skip(TEST, "LODE_TEST_AIDER names no Python with the package `aider-chat`; scripts/test makes one");
    };
    let bin = PathBuf::from(OsString::from(&python)).parent().expect("a folder").to_owned();
    let place = Workplace::new().await;
    let quiet = [("AIDER_ANALYTICS_DISABLE", "true"), ("AIDER_CHECK_UPDATE", "false")];
    // aider calls no tools: it edits files according to the answer's text.
    let always = ["--no-show-model-warnings", "--edit-format", "whole", "--yes-always", "--no-stream", "--no-git"];
    let ask = |arguments: &[&str]| place.launch(&bin, "aider", &quiet, &[&always[..], arguments].concat());
    let greeted = ask(&["--message", "GREET-ME"]);
    assert!(greeted.contains("Greetings from the small model."), "{greeted}");
    ask(&["--message", "EDIT-THE-FILE", "proof.txt"]);
    place.check_proof();
    let second = ask(&["--restore-chat-history", "--message", "SAY-GOODBYE"]);
    assert!(second.contains("Goodbye from the small model."), "{second}");
}
