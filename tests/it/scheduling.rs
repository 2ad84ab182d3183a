//! Several models and many clients: the queue, the limits, runners that hang, die or are killed,
//! with real daemons and runners.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{list, say, tiny_model, until, variant};

/// The time limit for events that depend only on the machine's speed.
const PATIENCE: Duration = Duration::from_mins(2);

/// Returns the children of a process, with their states (`Z` is a zombie).
fn children(parent: u32) -> Vec<(u32, char)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("there is /proc").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // The process may have ended.
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        let mut fields = rest.split_whitespace();
        let (state, own_parent) = (fields.next(), fields.next());
        if own_parent == Some(&parent.to_string()) {
            found.push((pid, state.and_then(|state| state.chars().next()).unwrap_or('?')));
        }
    }
    found
}

/// Returns the resident bytes of a process.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS is told");
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number of kB");
    kib << 10
}

fn kill(pid: u32) -> bool {
    std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().expect("kill runs").success()
}

async fn loaded(server: &Server) -> Vec<Value> {
    let answer = server.http.get(server.url("/api/ps")).send().await.expect("the daemon answers");
    let ps: Value = answer.json().await.expect("JSON");
    list(&ps["models"]).to_vec()
}

/// Writes a shell script that replaces the runner.
fn script(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("runner.sh");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it can be run");
    path
}

fn real_runner() -> PathBuf {
    Path::new(&*crate::server::LODE).with_file_name("lode-runner")
}

fn short(model: &str) -> Value {
    json!({"model": model, "prompt": "Hello", "raw": true, "stream": false,
        "options": {"num_predict": 4, "temperature": 0}})
}

/// Sends a request. Returns the status and the error message.
async fn ask(server: &Server, body: &Value) -> (u16, String) {
    let (status, answer) = server.call("/api/generate", body).await;
    (status, answer["error"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_full_queue_refuses_as_ollama_does() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The runner never becomes ready, and ends with the daemon.
    let runner = script(folder.path(), "exec cat > /dev/null");
    let server = Server::start(&[("LODE_MAX_QUEUE", "1"), ("LODE_RUNNER", runner.to_str().expect("a path"))]).await;
    server.create("tiny", &tiny_model()).await;
    let first = server.http.post(server.url("/api/generate")).json(&short("tiny")).send();
    let first = tokio::spawn(first);
    until("somebody waits for a runner", || async { !children(server.pid()).is_empty() }).await;
    let (status, error) = ask(&server, &short("tiny")).await;
    let text = "server busy, please try again.  maximum pending requests exceeded";
    assert_eq!((status, error.as_str()), (503, text));
    // A client that disconnects frees its place in the queue immediately.
    first.abort();
    let again = async || {
        let request = server.http.post(server.url("/api/generate")).json(&short("tiny"));
        request.timeout(Duration::from_millis(200)).send().await.is_err_and(|error| error.is_timeout())
    };
    until("the queue is free", again).await;
}

#[tokio::test]
async fn a_load_that_hangs_is_ended_and_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runner = script(folder.path(), "exec cat > /dev/null");
    let server = Server::start(&[("LODE_LOAD_TIMEOUT", "1s"), ("LODE_RUNNER", runner.to_str().expect("a path"))]).await;
    server.create("tiny", &tiny_model()).await;
    let (status, error) = ask(&server, &short("tiny")).await;
    assert!(status == 500 && error.contains("did not load the model within 1 s"), "{status} {error}");
    until("the process is gone", || async { children(server.pid()).is_empty() }).await;
}

#[tokio::test]
async fn a_runner_that_keeps_dying_is_left_alone_for_a_while() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runner = script(folder.path(), "exit 3");
    let server = Server::start(&[("LODE_RUNNER", runner.to_str().expect("a path"))]).await;
    server.create("tiny", &tiny_model()).await;
    let mut told = 0;
    for _ in 0..6 {
        let (status, error) = ask(&server, &short("tiny")).await;
        match status {
            500 => assert!(error.contains("exit status: 3"), "{error}"),
            503 => {
                assert!(error.contains("exit status: 3") && error.contains("next attempt is possible in"), "{error}");
                told += 1;
            }
            _ => panic!("{status} {error}"),
        }
    }
    assert!(told > 0, "six attempts in a row");
}

#[tokio::test]
async fn a_runner_killed_while_it_loads_gets_a_second_try() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (flag, real) = (folder.path().join("killed"), real_runner());
    // The script simulates the kernel's OOM killer.
    let text = format!(
        "if [ ! -e '{0}' ]; then touch '{0}'; kill -9 $$; fi\nexec '{1}' \"$@\"",
        flag.display(),
        real.display()
    );
    let runner = script(folder.path(), &text);
    // An isolated program could not start another one from this folder.
    let runner = runner.to_str().expect("a path");
    let server = Server::start(&[("LODE_RUNNER", runner), ("LODE_RUNNER_ISOLATION", "0")]).await;
    server.create("tiny", &tiny_model()).await;
    server.ask("/api/generate", &short("tiny")).await;
    assert!(flag.exists(), "the first one was killed");
    // A runner that is killed at every start.
    let runner = script(folder.path(), "kill -9 $$");
    let server = server.restart(&[("LODE_RUNNER", runner.to_str().expect("a path"))]).await;
    let (status, error) = ask(&server, &short("tiny")).await;
    assert!(status == 500 && error.contains("not enough memory") && error.contains("signal: 9"), "{status} {error}");
}

#[tokio::test]
async fn pinned_models_are_there_and_stay() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    server.create("other", variant(1).path()).await;
    let server = server.restart(&[("LODE_PIN", "tiny"), ("LODE_MAX_LOADED_MODELS", "1")]).await;
    until("the pinned model is loaded", || async { loaded(&server).await.len() == 1 }).await;
    let (status, error) = ask(&server, &short("other")).await;
    assert!(status == 503 && error.contains("1 pinned models"), "{status} {error}");
    let kept = json!({"model": "tiny", "prompt": "x", "stream": false, "keep_alive": 0, "options": {"num_predict": 1}});
    server.ask("/api/generate", &kept).await;
    assert_eq!(loaded(&server).await[0]["name"], "tiny:latest", "a request does not unload it either");
}

#[tokio::test]
async fn a_model_too_large_for_the_limit_is_refused() {
    let server = Server::start(&[("LODE_MEMORY_LIMIT", "1KiB")]).await;
    server.create("tiny", &tiny_model()).await;
    let (status, error) = ask(&server, &short("tiny")).await;
    assert!(status == 500 && error.contains("requires more system memory"), "{status} {error}");
}

#[tokio::test]
async fn contexts_are_shared_unless_another_is_asked_for() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let context = async |num_ctx: Option<u64>| {
        let mut body = short("tiny");
        if let Some(tokens) = num_ctx {
            body["options"]["num_ctx"] = tokens.into();
        }
        server.ask("/api/generate", &body).await;
        loaded(&server).await[0]["context_length"].clone()
    };
    // The model supports 256 tokens of context.
    for (asked, expect) in [(Some(64), 64), (None, 256), (Some(128), 128), (Some(128), 128), (None, 256), (None, 256)] {
        assert_eq!(context(asked).await, expect, "{asked:?}");
    }
}

#[tokio::test]
async fn runners_have_the_limit_that_is_asked_for() {
    let server = Server::start(&[("LODE_RUNNER_MEMORY_LIMIT", "1GiB")]).await;
    server.create("tiny", &tiny_model()).await;
    server.ask("/api/generate", &short("tiny")).await;
    let pid = server.runner_pid().await;
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let data = limits.lines().find(|line| line.starts_with("Max data size")).expect("a limit of data");
    assert!(data.contains(&(1_u64 << 30).to_string()), "{data}");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    assert!(status.contains("Seccomp:\t2"), "system calls are filtered: {status}");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
}

/// Returns the soft and the hard limit of private memory from `/proc/PID/limits`.
fn data_limits(pid: u32) -> (String, String) {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max data size")).expect("a limit of data");
    let mut words = line.split_whitespace().map(str::to_owned);
    (words.next().expect("the soft limit"), words.next().expect("the hard one"))
}

#[tokio::test]
async fn runners_have_not_much_more_memory_than_is_planned() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    let mut limits = Vec::new();
    for context in [64, 128, 64] {
        let mut request = short("tiny");
        request["options"]["num_ctx"] = json!(context);
        server.ask("/api/generate", &request).await;
        limits.push(data_limits(server.runner_pid().await).0.parse::<u64>().expect("bytes"));
    }
    let cores = std::thread::available_parallelism().expect("cores").get() as u64;
    let beside = (256 << 20) + (40 << 20) + cores * (2 << 20);
    let apart = (512 << 20) + beside * 3 / 2;
    assert!(limits.iter().all(|limit| (apart..apart + (64 << 20)).contains(limit)), "{limits:?}");
    assert!(limits[0] < limits[1] && limits[0] == limits[2], "it goes with the KV cache: {limits:?}");
}

#[tokio::test]
async fn a_runner_that_is_stopped_is_replaced() {
    let server = Server::start(&[("LODE_RUNNER_TIMEOUT", "1s")]).await;
    server.create("tiny", &tiny_model()).await;
    server.ask("/api/generate", &short("tiny")).await;
    let pid = server.runner_pid().await;
    stop(pid).await;
    let (status, error) = ask(&server, &short("tiny")).await;
    assert!(status == 500 && error.contains("it did not answer for 1 s"), "{status} {error}");
    server.ask("/api/generate", &short("tiny")).await;
    assert_ne!(server.runner_pid().await, pid);
    // An idle runner keeps running.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let pid = server.runner_pid().await;
    server.ask("/api/generate", &short("tiny")).await;
    assert_eq!(server.runner_pid().await, pid);
}

/// Stops a process. Each thread stops separately, so this waits for all of them.
async fn stop(pid: u32) {
    rustix::process::kill_process(rustix_pid(pid), rustix::process::Signal::STOP).expect("it is stopped");
    let is_stopped = |task: std::fs::DirEntry| {
        let state = std::fs::read_to_string(task.path().join("stat")).expect("a state");
        state.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    while !std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads").flatten().all(is_stopped) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn rustix_pid(pid: u32) -> rustix::process::Pid {
    rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid")
}

/// Templates whose output grows without limit: in a loop, in a single expression, and by many
/// pieces.
const BOMBS: [&str; 3] = [
    "{% set ns = namespace(x='a' * 1000000) %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{{ ('a' * 99999999) ~ ('a' * 99999999) ~ ('a' * 99999999) ~ ('a' * 99999999) ~ ('a' * 99999999) ~ ('a' * 99999999) }}",
    "{% for i in range(10000) %}{{ 'a' * 10000 }}{% endfor %}",
];

#[tokio::test]
async fn a_template_that_grows_ends_nobody_else() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    server.ask("/api/generate", &short("tiny")).await;
    let pid = server.runner_pid().await;
    for bomb in BOMBS {
        let request = json!({"model": "tiny", "prompt": "x", "template": bomb, "stream": false});
        let (status, error) = ask(&server, &request).await;
        assert!(status == 400 && error.contains("exceed"), "{bomb}: {status} {error}");
    }
    // A text that would need sixty times its length in memory is refused. The longest allowed text
    // is accepted.
    for (length, expect) in [(15 << 20, 400), (2 << 20, 200)] {
        let request = json!({"model": "tiny", "content": "1 2 ".repeat(length / 4)});
        let (status, answer) = server.call("/api/tokenize", &request).await;
        assert_eq!(status, expect, "{length}: {}", answer["error"]);
    }
    server.ask("/api/generate", &short("tiny")).await;
    assert_eq!(server.runner_pid().await, pid, "it is the same runner");
    let most = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let most = most.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line").trim().to_owned();
    let most: u64 = most.trim_end_matches(" kB").parse().expect("a number");
    assert!(most < 1 << 20, "{most} kB");
}

/// Runners do not inherit the daemon's secrets.
#[tokio::test]
async fn runners_have_an_environment_of_their_own() {
    let secrets = [("HF_TOKEN", "hf_secret"), ("LODE_API_KEY", "lode-secret"), ("NVIDIA_API_KEY", "nvapi-secret")];
    let given = [&secrets[..], &[("CUDA_VISIBLE_DEVICES", "0"), ("TZ", "UTC")]].concat();
    let server = Server::start(&given).await;
    server.create("tiny", &tiny_model()).await;
    server.ask("/api/generate", &short("tiny")).await;
    let pid = server.runner_pid().await;
    let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("it runs");
    let environment = String::from_utf8_lossy(&environment);
    let names: Vec<&str> = environment.split_terminator('\0').filter_map(|line| line.split('=').next()).collect();
    assert!(["CUDA_VISIBLE_DEVICES", "TZ", "LODE_LOG"].iter().all(|name| names.contains(name)), "{names:?}");
    for name in ["HF_TOKEN", "LODE_API_KEY", "NVIDIA_API_KEY", "LODE_HOME", "DOCKER_CONFIG", "PATH"] {
        assert!(!names.contains(&name), "{names:?}");
    }
}

/// Returns the duration of the load test; `LODE_TEST_SOAK_SECONDS` overrides it.
fn soak() -> Duration {
    let asked = std::env::var("LODE_TEST_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(asked.unwrap_or(15))
}

/// The number of requests by outcome.
type Tally = BTreeMap<String, usize>;

#[tokio::test]
async fn a_list_of_texts_gives_way_to_a_chat() {
    let server = Server::start(&[]).await;
    server.create("tiny", &tiny_model()).await;
    server.ask("/api/generate", &short("tiny")).await;
    let count = 5000;
    let texts: Vec<String> =
        (0..count).map(|text| format!("{text} {}", "once upon a time there was a model ".repeat(8))).collect();
    let request = reqwest::Client::new().post(server.url("/api/embed")).json(&json!({"model": "tiny", "input": texts}));
    let embedding = tokio::spawn(request.send());
    let slots = server.url("/slots");
    until("the texts are computed", || async {
        let slots: Value = reqwest::get(&slots).await.expect("slots").json().await.expect("JSON");
        slots[0]["is_processing"] == true
    })
    .await;
    server.ask("/api/generate", &short("tiny")).await;
    assert!(!embedding.is_finished(), "the answer came after all texts");
    let answer: Value = embedding.await.expect("no panic").expect("an answer").json().await.expect("JSON");
    assert_eq!(answer["embeddings"].as_array().map(Vec::len), Some(count), "{}", answer["error"]);
}

#[tokio::test]
async fn a_long_text_holds_no_conversation_up() {
    let server = Server::start(&[("LODE_NUM_PARALLEL", "1")]).await;
    server.create("tiny", &tiny_model()).await;
    server.ask("/api/generate", &short("tiny")).await;
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(45_000);
    for (path, body) in [
        ("/api/tokenize", json!({"model": "tiny", "content": text})),
        ("/api/embed", json!({"model": "tiny", "input": text, "truncate": true})),
    ] {
        let long = tokio::spawn(reqwest::Client::new().post(server.url(path)).json(&body).send());
        let running = server.url("/api/lode/running");
        until("the long text is with the runner", || async {
            let running: Value = reqwest::get(&running).await.expect("an answer").json().await.expect("JSON");
            running["active"] != 0 || long.is_finished()
        })
        .await;
        server.ask("/api/generate", &short("tiny")).await;
        assert!(!long.is_finished(), "{path} was done before the short prompt");
        assert_eq!(long.await.expect("no panic").expect("an answer").status().as_u16(), 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_shares_two_places() {
    let server = Server::start(&[("LODE_MAX_LOADED_MODELS", "2")]).await;
    let models = ["one", "two", "three"];
    server.create("one", &tiny_model()).await;
    server.create("two", variant(1).path()).await;
    server.create("three", variant(2).path()).await;
    for model in models {
        server.ask("/api/generate", &short(model)).await;
    }
    let before = resident(server.pid());
    let time = soak();
    let end = Instant::now() + time;
    let clients = (0..8).map(|seed| client(&server, models, StdRng::seed_from_u64(seed), end));
    let clients = futures_util::future::join_all(clients);
    let (tallies, ()) = tokio::join!(clients, kill_twice(&server, time));
    let mut all = Tally::new();
    for (what, count) in tallies.into_iter().flatten() {
        *all.entry(what).or_default() += count;
    }
    say(&format!("a crowd in {time:?}: {all:?}"));
    for model in models {
        assert!(all.get(model).is_some_and(|count| *count > 3), "`{model}` was hardly served: {all:?}");
    }
    assert!(all.get("cancelled").is_some_and(|count| *count > 3), "{all:?}");
    // All models are unloaded.
    for model in models {
        server.ask("/api/generate", &json!({"model": model, "keep_alive": 0, "stream": false})).await;
    }
    until("all runners are gone", || async { children(server.pid()).is_empty() }).await;
    assert!(loaded(&server).await.is_empty());
    let after = resident(server.pid());
    say(&format!("the daemon had {} MiB before and {} MiB after", before >> 20, after >> 20));
    assert!(after < before + (64 << 20), "the daemon had {before} bytes before and {after} after");
    // All models still work.
    for model in models {
        server.ask("/api/generate", &short(model)).await;
    }
}

/// Kills a runner after a third and after two thirds of the time.
async fn kill_twice(server: &Server, time: Duration) {
    for _ in 0..2 {
        tokio::time::sleep(time / 3).await;
        until("a runner was killed", || async {
            let alive = children(server.pid()).into_iter().find(|(_, state)| *state != 'Z');
            alive.is_some_and(|(pid, _)| kill(pid))
        })
        .await;
    }
}

/// Sends random requests one after the other until the end.
async fn client(server: &Server, models: [&str; 3], mut random: StdRng, end: Instant) -> Tally {
    let mut tally = Tally::new();
    while Instant::now() < end {
        let model = models[random.random_range(0..3)];
        let (path, body, patience) = request(model, &mut random);
        let fate = match tokio::time::timeout(patience, answer(server, path, &body)).await {
            Ok(Ok(())) => model.to_owned(),
            Ok(Err(error)) => error,
            // A client that gives up drops its connection and the partial response.
            Err(_elapsed) => {
                assert!(patience < PATIENCE, "no answer to {body}");
                "cancelled".to_owned()
            }
        };
        *tally.entry(fate).or_default() += 1;
    }
    tally
}

/// Returns a request and the time that its client waits.
fn request(model: &str, random: &mut StdRng) -> (&'static str, Value, Duration) {
    let patience = if random.random_bool(0.2) { Duration::from_millis(random.random_range(0..300)) } else { PATIENCE };
    let mut options = json!({"num_predict": random.random_range(1..40), "seed": 1});
    if random.random_bool(0.1) {
        options["num_ctx"] = 128.into();
    }
    let stream = random.random_bool(0.5);
    let mut body = json!({"model": model, "stream": stream, "options": options});
    if random.random_bool(0.1) {
        body["keep_alive"] = 0.into();
    }
    if random.random_bool(0.5) {
        body["messages"] = json!([{"role": "user", "content": "Hi"}]);
        ("/api/chat", body, patience)
    } else {
        body["prompt"] = "Hello".into();
        ("/api/generate", body, patience)
    }
}

/// Sends a request. Returns an error if the runner was killed, and panics on any other failure.
async fn answer(server: &Server, path: &str, body: &Value) -> Result<(), String> {
    let response = server.post(path, body).await;
    let status = response.status().as_u16();
    let text = response.text().await.expect("the daemon does not break off");
    let last: Value = text.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    if let Some(error) = last["error"].as_str() {
        // A runner was killed during a response or a load.
        let clear = error.contains("ended unexpectedly") || error.contains("not enough memory");
        assert!(clear && [200, 500].contains(&status), "{status} {error}");
        return Err("the runner was killed".to_owned());
    }
    assert!(status == 200 && last["done"] == true, "{status} {text}");
    Ok(())
}
