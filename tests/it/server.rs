//! A daemon for a test, with the built binary, its own store and a free port. It ends with the
//! test.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use reqwest::{Client, Response};
use serde_json::{Value, json};

/// The program under test: from this build, or from the folder that `LODE_TEST_PROGRAMS` names if
/// the tests run on another machine.
pub(crate) static LODE: LazyLock<String> = LazyLock::new(|| {
    let elsewhere = std::env::var("LODE_TEST_PROGRAMS").map(|folder| format!("{folder}/lode"));
    elsewhere.unwrap_or_else(|_| env!("CARGO_BIN_EXE_lode").to_owned())
});

/// A running daemon.
pub(crate) struct Server {
    child: Child,
    folder: tempfile::TempDir,
    pub(crate) address: String,
    pub(crate) http: Client,
}

/// Returns a setting with which runners on the CPU compute plain weights and FP8 in float32: it
/// excludes BF16 instructions on machines that have them.
pub(crate) fn in_float32() -> (&'static str, &'static str) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512bf16") {
        return ("LODE_CPU", "avx512-vnni");
    }
    ("LODE_CPU", "")
}

/// Returns a builder of HTTP clients for this machine.
pub(crate) fn http() -> reqwest::ClientBuilder {
    // An error means that a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().no_proxy()
}

/// Returns a port on which currently no process listens.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("bound").port()
}

impl Server {
    /// Returns the samples of `/metrics` by name and labels.
    pub(crate) async fn metrics(&self) -> BTreeMap<String, f64> {
        let response = self.http.get(self.url("/metrics")).send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        let kind = response.headers()["content-type"].to_str().expect("text").to_owned();
        assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
        let text = response.text().await.expect("text");
        let line = |line: &str| {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            (name.to_owned(), value.parse().expect("a number"))
        };
        text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(line).collect()
    }

    /// Starts a daemon with an empty store.
    pub(crate) async fn start(environment: &[(&str, &str)]) -> Self {
        Self::prepared(environment, |_| ()).await
    }

    /// Starts a daemon after `prepare` has written files into the folder of the store.
    pub(crate) async fn prepared(environment: &[(&str, &str)], prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let home = folder.path().join("home");
        std::fs::create_dir(&home).expect("a folder for the store");
        prepare(&home);
        Self::start_in(folder, environment).await
    }

    /// Starts a daemon under another program, which gets the daemon's command line as arguments.
    pub(crate) async fn start_under(program: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_by(program, tempfile::tempdir().expect("a temporary folder"), environment).await
    }

    async fn start_in(folder: tempfile::TempDir, environment: &[(&str, &str)]) -> Self {
        Self::start_by(&[], folder, environment).await
    }

    async fn start_by(program: &[&str], folder: tempfile::TempDir, environment: &[(&str, &str)]) -> Self {
        let address = format!("127.0.0.1:{}", free_port());
        let http = http().build().expect("a client");
        let child = spawn(program, folder.path(), &address, environment);
        let mut server = Self { child, folder, address, http };
        server.wait().await;
        server
    }

    async fn wait(&mut self) {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_mins(1) {
            if self.http.get(self.url("/api/version")).send().await.is_ok_and(|r| r.status().is_success()) {
                return;
            }
            if let Some(status) = self.child.try_wait().expect("a child") {
                panic!("the daemon ended at once: {status}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the daemon does not answer");
    }

    /// Kills the daemon as `kill -9` does, and starts another on the same store.
    pub(crate) async fn restart(self, environment: &[(&str, &str)]) -> Self {
        self.restart_on("127.0.0.1", environment).await
    }

    /// Restarts the daemon on a given address and port.
    pub(crate) async fn restart_at(mut self, address: &str) -> Self {
        self.kill();
        self.child = spawn(&[], self.folder.path(), address, &[]);
        address.clone_into(&mut self.address);
        self.wait().await;
        self
    }

    /// Restarts the daemon on a given address of this machine, or on all addresses.
    pub(crate) async fn restart_on(mut self, address: &str, environment: &[(&str, &str)]) -> Self {
        self.kill();
        let port = free_port();
        self.child = spawn(&[], self.folder.path(), &format!("{address}:{port}"), environment);
        self.address = format!("127.0.0.1:{port}");
        self.wait().await;
        self
    }

    /// Kills the daemon, and starts another on the same store under a program, which gets the
    /// daemon's command line as arguments.
    pub(crate) async fn restart_under(mut self, program: &[&str], environment: &[(&str, &str)]) -> Self {
        self.kill();
        self.address = format!("127.0.0.1:{}", free_port());
        self.child = spawn(program, self.folder.path(), &self.address, environment);
        self.wait().await;
        self
    }

    /// Kills the daemon as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for the daemon's end. Returns whether it ended in that time.
    pub(crate) async fn ended(&mut self, within: Duration) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < within {
            if self.child.try_wait().expect("a child").is_some() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        false
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the folder of the store.
    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Response {
        self.http.post(self.url(path)).json(body).send().await.expect("the daemon answers")
    }

    /// Posts a document. Returns the status and the response document.
    pub(crate) async fn call(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.post(path, body).await;
        let status = response.status().as_u16();
        let text = response.text().await.expect("a whole answer");
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// Posts a document and returns the response document. Asserts that the status is 200.
    pub(crate) async fn ask(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.call(path, body).await;
        assert_eq!(status, 200, "{path} {body}: {answer}");
        answer
    }

    /// Posts a document and returns the lines of the response.
    pub(crate) async fn lines(&self, path: &str, body: &Value) -> Vec<Value> {
        let response = self.post(path, body).await;
        assert_eq!(response.status().as_u16(), 200, "{path} {body}");
        let text = response.text().await.expect("a whole answer");
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Creates a model from a file or folder.
    pub(crate) async fn create(&self, name: &str, path: &Path) -> Vec<Value> {
        let lines = self.lines("/api/create", &json!({"model": name, "path": path})).await;
        let last = lines.last().expect("at least a line");
        assert_eq!(last["status"], "success", "create {name} from {}: {last}", path.display());
        lines
    }

    /// Runs the command line against this daemon.
    pub(crate) fn lode(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().expect("the program runs")
    }

    /// Runs the command line against this daemon with `input` on its standard input.
    pub(crate) fn lode_reading(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut pipe = child.stdin.take().expect("it was piped");
        // A program that ends without reading closes the pipe; its output then contains the reason.
        let _ = pipe.write_all(input.as_bytes());
        drop(pipe);
        child.wait_with_output().expect("the program runs")
    }

    /// Returns a command line for this daemon.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&*LODE);
        command
            .args(arguments)
            .env("LODE_HOME", self.home())
            .env("LODE_HOST", &self.address)
            .env("DOCKER_CONFIG", self.folder.path().join("docker"));
        command
    }

    /// Runs a command with additional environment variables.
    pub(crate) fn lode_with(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        command.envs(environment.iter().copied()).output().expect("the program runs")
    }

    /// Returns the daemon's log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Returns the daemon's log from this byte offset on.
    pub(crate) fn log_from(&self, start: u64) -> String {
        let mut log = std::fs::File::open(self.folder.path().join("log")).expect("a log");
        let mut text = String::new();
        log.seek(SeekFrom::Start(start)).and_then(|_| log.read_to_string(&mut text)).expect("a log of text");
        text
    }

    /// Waits until the log contains a text.
    pub(crate) async fn log_until(&self, said: &str) {
        let begin = std::time::Instant::now();
        while !self.log().contains(said) {
            assert!(begin.elapsed().as_secs() < 60, "nobody says `{said}`: {}", self.log());
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Loads a model and returns a client of its runner.
    pub(crate) async fn runner(&self, model: &str) -> Runner {
        self.ask("/api/generate", &json!({"model": model, "stream": false})).await;
        self.newest_runner()
    }

    /// Loads a model that only embeds, and returns a client of its runner.
    pub(crate) async fn embedder(&self, model: &str) -> Runner {
        self.ask("/api/embed", &json!({"model": model, "input": "a"})).await;
        self.newest_runner()
    }

    fn newest_runner(&self) -> Runner {
        let sockets = self.folder.path().join(format!("lode-{}", self.pid()));
        let mut found: Vec<PathBuf> =
            std::fs::read_dir(&sockets).expect("sockets").map(|entry| entry.expect("an entry").path()).collect();
        // Sorts by time, because the numbers in the names do not sort as text.
        found.sort_by_key(|path| std::fs::metadata(path).and_then(|facts| facts.modified()).ok());
        let socket = found.last().expect("a runner's socket").clone();
        Runner(http().unix_socket(socket).build().expect("a client"))
    }

    /// Returns the process id of the only runner.
    pub(crate) async fn runner_pid(&self) -> u32 {
        let answer = self.http.get(self.url("/api/ps")).send().await.expect("the daemon answers");
        let loaded: Value = answer.json().await.expect("JSON");
        u32::try_from(loaded["models"][0]["pid"].as_u64().expect("a loaded model")).expect("a process id")
    }
}

fn spawn(program: &[&str], folder: &Path, address: &str, environment: &[(&str, &str)]) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).expect("a log");
    let line: Vec<&str> = program.iter().copied().chain([&**LODE, "serve"]).collect();
    Command::new(line[0])
        .args(&line[1..])
        .env("LODE_HOME", folder.join("home"))
        .env("LODE_HOST", address)
        .env("LODE_LOG", "debug,hyper=info,hyper_util=info,reqwest=info,sled=info")
        .env("TMPDIR", folder)
        // The developer's own credentials must not influence the tests.
        .env("DOCKER_CONFIG", folder.join("docker"))
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("the daemon starts")
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(30).collect();
            crate::support::say(&tail.into_iter().rev().collect::<Vec<_>>().join("\n"));
        }
    }
}

/// A client that talks to a runner directly.
pub(crate) struct Runner(Client);

impl Runner {
    /// Calls the runner protocol. Returns the status and the document.
    pub(crate) async fn call(&self, call: &str, body: &Value) -> (u16, Value) {
        let response =
            self.0.post(format!("http://runner/{call}")).json(body).send().await.expect("the runner answers");
        let status = response.status().as_u16();
        (status, response.json().await.expect("JSON"))
    }

    /// Starts a call and returns its response, which may be a stream that is read later or never.
    pub(crate) async fn open(&self, call: &str, body: &Value) -> Response {
        self.0.post(format!("http://runner/{call}")).json(body).send().await.expect("the runner answers")
    }

    /// Returns the events of a generation.
    pub(crate) async fn events(&self, body: &Value) -> Vec<Value> {
        let answer = self.open("generate", body).await.text().await.expect("a whole answer");
        answer.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Returns the runner's status.
    pub(crate) async fn status(&self) -> Value {
        let response = self.0.get("http://runner/status").send().await.expect("the runner answers");
        response.json().await.expect("JSON")
    }

    pub(crate) async fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<u64> {
        let request = json!({"text": text, "add_special": add_special, "parse_special": parse_special});
        let (status, answer) = self.call("tokenize", &request).await;
        assert_eq!(status, 200, "{text:?}: {answer}");
        crate::support::numbers(&answer["tokens"])
    }

    pub(crate) async fn detokenize(&self, tokens: &Value) -> String {
        let (status, answer) = self.call("detokenize", &json!({"tokens": tokens})).await;
        assert_eq!(status, 200, "{answer}");
        answer["text"].as_str().expect("text").to_owned()
    }

    /// Returns the logits after every token, `[tokens][vocabulary]`.
    pub(crate) async fn logits(&self, tokens: &[u64], stepwise: bool) -> Vec<Vec<f32>> {
        let request = json!({"tokens": tokens, "stepwise": stepwise});
        let response = self.0.post("http://runner/evaluate").json(&request).send().await.expect("the runner answers");
        assert!(response.status().is_success(), "{}", response.text().await.unwrap_or_default());
        let bytes = response.bytes().await.expect("a whole answer");
        let numbers: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        numbers.chunks_exact(numbers.len() / tokens.len()).map(<[f32]>::to_vec).collect()
    }

    /// Returns the greedy continuation of tokens: the ids and the text.
    pub(crate) async fn greedy(&self, tokens: &[u64], most: usize) -> (Vec<u64>, String) {
        let request = json!({
            "prompt": {"kind": "tokens", "tokens": tokens},
            "sampling": {"temperature": 0.0},
            "max_tokens": most,
            "top_logprobs": 0,
        });
        let response = self.0.post("http://runner/generate").json(&request).send().await.expect("the runner answers");
        let answer = response.text().await.expect("a whole answer");
        let (mut ids, mut text) = (Vec::new(), String::new());
        for line in answer.lines() {
            let event: Value = serde_json::from_str(line).expect("a line of JSON");
            assert_ne!(event["event"], "error", "{event}");
            text.push_str(event["text"].as_str().unwrap_or_default());
            let logprobs = event["logprobs"].as_array().cloned().unwrap_or_default();
            ids.extend(logprobs.iter().map(|token| token["id"].as_u64().expect("an id")));
        }
        (ids, text)
    }
}
