//! Pulls, pushes and creates as jobs: they do not depend on their clients, and go on after a
//! restart.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use axum::http::Method;
use content::{Digest, IngestId};
use serde_json::{Value, json};

use crate::gateway::Gateway;
use crate::peers::assert_same;
use crate::server::Server;
use crate::stored;
use crate::support::{tiny_model, until};
use crate::synthetic::llama;

use super::interrupted::{begin, colleague, received};
use super::local;

impl Server {
    /// Returns the only job.
    async fn job(&self) -> Value {
        let jobs = self.jobs().await;
        let [job] = jobs.as_slice() else { panic!("expected one job: {jobs:?}") };
        job.clone()
    }

    /// Waits until the first job has a record.
    async fn job_is_recorded(&self) {
        until("there is a record", async || self.home().join("jobs/1.json").exists()).await;
    }

    /// Waits until the only job is in a state.
    async fn job_is(&self, state: &str) -> Value {
        until(&format!("the job is {state}"), async || self.job().await["state"] == state).await;
        self.job().await
    }

    /// Cancels the job that runs.
    pub(super) async fn cancel(&self) {
        let jobs = self.jobs().await;
        let id = &jobs.iter().find(|job| job["state"] == "running").expect("a job that runs")["id"];
        assert_eq!(self.ask("/api/lode/jobs/cancel", &json!({"id": id})).await["state"], "cancelled");
    }
}

/// Starts a pull through a gateway that holds the second half.
async fn half_a_pull(target: &Server, gateway: &Gateway, total: u64) -> (String, tokio::task::JoinHandle<()>) {
    let name = format!("{}/library/m:latest", gateway.address);
    gateway.hold_after(total / 2);
    let pull = begin(target, "/api/pull", &json!({"model": name}));
    gateway.reached(total / 2 - total / 8).await;
    until("a quarter is on the disk", async || received(&target.home()) >= total / 4).await;
    (name, pull)
}

fn total(source: &Server) -> u64 {
    stored::created(&source.home(), "m").blobs().values().sum()
}

#[tokio::test]
async fn a_pull_goes_on_without_its_client() {
    let source = colleague().await;
    let gateway = Gateway::to(&source.address);
    let target = Server::start(&[]).await;
    let (name, pull) = half_a_pull(&target, &gateway, total(&source)).await;
    pull.abort();
    let _ = pull.await;
    until("the daemon reports bytes", async || target.job().await["completed"] != 0).await;
    let job = target.job().await;
    assert_eq!((&job["state"], &job["kind"], &job["model"]), (&json!("running"), &json!("pull"), &json!(name)));
    assert_eq!(job["total"], json!(total(&source)));
    let listed = String::from_utf8(target.lode(&["jobs"]).stdout).expect("text");
    assert!(listed.contains(&name) && listed.contains("running") && listed.contains('%'), "{listed}");
    gateway.release();
    let job = target.job_is("done").await;
    assert_eq!(job["completed"], job["total"]);
    assert_same((&source, &local("m")), (&target, &name)).await;
    let listed = String::from_utf8(target.lode(&["jobs"]).stdout).expect("text");
    assert!(!listed.contains(&name), "ended jobs are listed on request only: {listed}");
    let listed = String::from_utf8(target.lode(&["jobs", "--all"]).stdout).expect("text");
    assert!(listed.contains(&name) && listed.contains("done"), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn five_pulls_of_a_model_are_one_transfer() {
    let source = colleague().await;
    let gateway = Gateway::to(&source.address);
    let target = Server::start(&[]).await;
    let (name, first) = half_a_pull(&target, &gateway, total(&source)).await;
    // The name without its tag, and a client that waits for one document.
    let short = name.trim_end_matches(":latest").to_owned();
    let mut others = Vec::new();
    for body in [
        json!({"model": name}),
        json!({"name": short, "blobs": true}),
        json!({"model": short, "stream": false, "limit": 0, "priority": "high"}),
    ] {
        let request = target.http.post(target.url("/api/pull")).json(&body);
        others.push(tokio::spawn(async move { request.send().await.expect("an answer").text().await.expect("text") }));
    }
    let command = target.command(&["pull", &short]).stderr(std::process::Stdio::piped()).spawn().expect("a command");
    until("the job has the priority of the last request", async || target.job().await["priority"] == "high").await;
    gateway.release();
    for other in others {
        let text = other.await.expect("no panic");
        let last = text.lines().last().expect("a line");
        assert!(last.contains("success"), "{text}");
    }
    let output = command.wait_with_output().expect("an end");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    first.await.expect("no panic");
    assert_eq!(target.job().await["state"], "done");
    assert_eq!(gateway.requests(&Method::GET, "/manifests/").len(), 1);
    assert_eq!(gateway.fetched_bytes(), total(&source), "each byte comes once");
}

#[tokio::test]
async fn a_paused_pull_resumes_where_it_was() {
    let source = colleague().await;
    let (gateway, total) = (Gateway::to(&source.address), total(&source));
    let mut target = Server::start(&[]).await;
    let (name, client) = half_a_pull(&target, &gateway, total).await;
    let id = target.job().await["id"].to_string();
    let output = target.lode(&["pause", &id]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("is paused"), "{output:?}");
    gateway.idle().await;
    assert!(!client.is_finished(), "a client of a paused job waits");
    // It stays paused after a restart.
    target = target.restart(&[]).await;
    let job = target.job().await;
    assert_eq!((&job["state"], job["id"].to_string()), (&json!("paused"), id.clone()));
    let kept = received(&target.home());
    gateway.clear();
    gateway.release();
    assert!(target.lode(&["resume", &id]).status.success());
    let followed = target.lode(&["jobs", "--follow", &id]);
    assert!(followed.status.success(), "{}", String::from_utf8_lossy(&followed.stderr));
    assert_eq!(target.job().await["state"], "done");
    let second = gateway.fetched_bytes();
    assert!(second <= total - kept, "{second} of {total} bytes came again, {kept} were on the disk");
    assert_same((&source, &local("m")), (&target, &name)).await;
    for action in ["pause", "resume", "cancel"] {
        let output = target.lode(&[action, &id]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(&format!("job {id} has ended")), "{action}: {said}");
        let said = target.lode(&[action, "77"]);
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains("there is no job 77"), "{said}");
    }
}

#[tokio::test]
async fn a_cancelled_pull_tells_its_clients() {
    let source = colleague().await;
    let gateway = Gateway::to(&source.address);
    let target = Server::start(&[]).await;
    let (name, client) = half_a_pull(&target, &gateway, total(&source)).await;
    let request = json!({"model": name, "stream": false, "priority": "high"});
    let request = target.http.post(target.url("/api/pull")).json(&request);
    let other = tokio::spawn(async move {
        let answer = request.send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("text"))
    });
    until("the other request has joined", async || target.job().await["priority"] == "high").await;
    let watched = target.http.post(target.url("/api/lode/jobs/watch")).json(&json!({"id": 1}));
    let watched = watched.send().await.expect("an answer");
    assert_eq!(watched.headers()["lode-job"], "1");
    target.cancel().await;
    let (status, text) = other.await.expect("no panic");
    assert!(status == 400 && text.contains("job 1 was cancelled"), "{status} {text}");
    let text = watched.text().await.expect("text");
    assert!(text.lines().last().is_some_and(|line| line.contains("job 1 was cancelled")), "{text}");
    client.await.expect("no panic");
    assert!(target.names().await.is_empty());
    let target = target.restart(&[]).await;
    assert!(target.jobs().await.is_empty(), "a cancelled job does not come back");
}

#[tokio::test]
async fn pulls_and_pushes_go_on_after_a_restart() {
    let mut source = colleague().await;
    let total = total(&source);
    let gateway = Gateway::to(&source.address);
    let mut target = Server::start(&[]).await;
    let (name, client) = half_a_pull(&target, &gateway, total).await;
    target.kill();
    client.await.expect("no panic");
    gateway.idle().await;
    let kept = received(&target.home());
    gateway.clear();
    gateway.release();
    target = target.restart(&[]).await;
    target.job_is("done").await;
    assert!(gateway.fetched_bytes() <= total - kept, "{kept} of {total} bytes were on the disk");
    assert_same((&source, &local("m")), (&target, &name)).await;

    let destination = format!("{}/me/m:latest", target.address);
    let push = begin(&source, "/api/push", &json!({"model": "m", "destination": destination, "limit": 2_000_000}));
    let sends = |jobs: Vec<Value>| jobs.iter().any(|job| job["kind"] == "push" && job["total"] != 0);
    until("the push sends", async || sends(source.jobs().await)).await;
    source.kill();
    push.await.expect("no panic");
    assert!(!target.names().await.contains(&"me/m:latest".to_owned()));
    source = source.restart(&[]).await;
    let job = source.job().await;
    assert_eq!((&job["kind"], &job["limit"]), (&json!("push"), &json!(2_000_000)));
    assert_eq!(job["destination"], json!(destination));
    let id = job["id"].to_string();
    assert!(source.lode(&["limit", "none", "--job", &id]).status.success());
    source.job_is("done").await;
    assert_same((&source, &local("m")), (&target, "registry.ollama.ai/me/m:latest")).await;
}

/// Returns the bytes of incomplete ingests of blobs.
fn incomplete(home: &Path, blobs: &stored::Blobs) -> BTreeMap<String, u64> {
    let size = |digest: &String| {
        let id = IngestId::of(&digest.parse::<Digest>().expect("a digest"));
        let data = home.join("ingest").join(id.as_str()).join("data");
        Some((digest.clone(), std::fs::metadata(data).ok()?.len()))
    };
    blobs.keys().filter_map(size).collect()
}

/// A pull survives any number of kills, and no byte that has reached the disk is fetched again.
#[tokio::test]
async fn a_pull_survives_kills_without_a_client() {
    let source = colleague().await;
    let manifest = stored::created(&source.home(), "m");
    let blobs = manifest.blobs();
    let gateway = Gateway::to(&source.address);
    let mut target = Server::start(&[]).await;
    let name = format!("{}/library/m:latest", gateway.address);
    // Slow enough for all kills.
    let rounds = super::interrupted::rounds();
    let limit = blobs.values().sum::<u64>() * 4 / rounds;
    let client = begin(&target, "/api/pull", &json!({"model": name, "limit": limit}));
    target.job_is_recorded().await;
    let mut kills = 0;
    while kills < rounds && target.job().await["state"] == "running" {
        tokio::time::sleep(Duration::from_millis(37 * (kills % 7))).await;
        target.kill();
        gateway.idle().await;
        let kept = incomplete(&target.home(), &blobs);
        gateway.clear();
        target = target.restart(&[]).await;
        kills += 1;
        // A job that has succeeded has no record.
        if target.jobs().await.is_empty() {
            break;
        }
        for request in gateway.requests(&Method::GET, "/blobs/") {
            let digest = request.digest().expect("a blob");
            let from = request.range.as_deref().map_or(0, |range| {
                let from = range.trim_start_matches("bytes=").split('-').next();
                from.and_then(|from| from.parse().ok()).unwrap_or_else(|| panic!("a range: {range}"))
            });
            let there = kept.get(&digest).copied().unwrap_or(0);
            assert!(from >= there, "{digest} was fetched from byte {from}, {there} bytes were on the disk");
        }
    }
    client.await.expect("no panic");
    assert!(kills >= rounds / 2, "the pull ended after {kills} kills");
    if !target.jobs().await.is_empty() {
        let id = target.job().await["id"].to_string();
        assert!(target.lode(&["limit", "none", "--job", &id]).status.success());
        target.job_is("done").await;
    }
    assert_same((&source, &local("m")), (&target, &name)).await;
}

#[tokio::test]
async fn a_create_goes_on_without_its_client_and_after_a_restart() {
    let folder = llama(4, 512);
    let mut server = Server::start(&[]).await;
    let body = json!({"model": "m", "path": folder.path(), "quantize": "q8_0"});
    let client = begin(&server, "/api/create", &body);
    server.job_is_recorded().await;
    server = server.restart(&[]).await;
    client.await.expect("no panic");
    until("the model is there", async || server.names().await.contains(&"m:latest".to_owned())).await;
    until("its job has ended", async || server.jobs().await.iter().all(|job| job["state"] == "done")).await;
    let files = std::fs::read_dir(server.home().join("jobs")).expect("the folder");
    let names: Vec<_> = files.map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(names, ["last"], "a record is left");
    server.says("m").await;
}

/// The limits of a job and of all transfers hold, and can be changed while they wait.
#[tokio::test]
async fn limits_hold_and_can_be_changed() {
    let source = colleague().await;
    let total = total(&source);
    let name = format!("{}/library/m:latest", source.address);
    let target = Server::start(&[("LODE_BANDWIDTH", "8MB/s;0-24=4MB/s")]).await;
    let answer = target.http.get(target.url("/api/lode/jobs")).send().await.expect("the daemon answers");
    assert_eq!(answer.json::<Value>().await.expect("JSON")["limit"], 4_000_000);
    let set = target.lode(&["limit", "none"]);
    assert!(String::from_utf8_lossy(&set.stderr).contains("no limit"), "{set:?}");
    let set = target.lode(&["limit", "20MB/s"]);
    assert!(String::from_utf8_lossy(&set.stderr).contains("at most 19.07 MiB/s"), "{set:?}");
    let began = Instant::now();
    target.pull(&name).await;
    // A quarter of a second may pass at once.
    let least = total as f64 / 20e6 - 0.25;
    assert!(began.elapsed().as_secs_f64() >= least, "{total} bytes took {:?}", began.elapsed());
    target.remove(&name).await;
    target.ask("/api/lode/gc", &json!({})).await;
    // Without the change, this would take more than a day.
    let waiting = begin(&target, "/api/pull", &json!({"model": name, "limit": 200}));
    until("the second pull is listed", async || target.jobs().await.len() == 2).await;
    let set = target.lode(&["limit", "none", "--job", "2"]);
    assert!(set.status.success(), "{set:?}");
    waiting.await.expect("no panic");
    assert_eq!(target.names().await, [name.as_str()]);
    let said = target.lode(&["limit", "fast"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("`fast` is not a rate; expected e.g. 10MB/s"), "{said}");
    let said = target.lode_with(&[("LODE_BANDWIDTH", "9=1MB/s")], &["list"]);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("LODE_BANDWIDTH") && said.contains("not a part of the day"), "{said}");
}

/// A job of a higher priority goes first, though it was requested later.
#[tokio::test]
async fn a_higher_priority_goes_first() {
    let source = colleague().await;
    source.create("other", llama(14, 256).path()).await;
    let target = Server::start(&[("LODE_BANDWIDTH", "8MB/s")]).await;
    let name = |model: &str| format!("{}/library/{model}:latest", source.address);
    let low = begin(&target, "/api/pull", &json!({"model": name("m"), "priority": "low"}));
    until("the first pull has begun", async || {
        target.jobs().await.first().is_some_and(|job| job["completed"].as_u64() > Some(0))
    })
    .await;
    let before = target.jobs().await[0]["completed"].as_u64().expect("bytes");
    target.pull(&name("other")).await;
    let jobs = target.jobs().await;
    assert_eq!((&jobs[0]["state"], &jobs[0]["priority"]), (&json!("running"), &json!("low")), "{jobs:?}");
    let during = jobs[0]["completed"].as_u64().expect("bytes") - before;
    let other: u64 = stored::created(&source.home(), "other").blobs().values().sum();
    assert!(during < other / 2, "{during} bytes came of the pull of a low priority, and {other} of the other");
    assert!(target.lode(&["limit", "none"]).status.success());
    low.await.expect("no panic");
    assert_eq!(target.names().await.len(), 2);
}

/// A failed job tells why, and can be tried again.
#[tokio::test]
async fn a_failed_pull_can_be_resumed() {
    let source = Server::start(&[]).await;
    let mut target = Server::start(&[]).await;
    let name = format!("{}/library/tiny:latest", source.address);
    target.try_pull(&name).await.expect_err("there is no such model");
    let job = target.job().await;
    assert!(job["state"] == "failed" && job["error"].to_string().contains("not found"), "{job}");
    let listed = target.lode(&["jobs"]);
    let said = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(
        said.contains("job 1 failed") && said.contains("`lode resume 1` tries again, `lode cancel 1` removes it"),
        "{said}"
    );
    // It is still known after a restart, and an equal request tries it again.
    target = target.restart(&[]).await;
    assert_eq!(target.job().await["state"], "failed");
    target.try_pull(&name).await.expect_err("there is still no such model");
    assert_eq!((&target.job().await["state"], &target.job().await["id"]), (&json!("failed"), &json!(1)));
    source.create("tiny", &tiny_model()).await;
    assert!(target.lode(&["resume", "1"]).status.success());
    target.job_is("done").await;
    assert_eq!(target.names().await, [name.as_str()]);
    // A failed job can be removed from the list.
    target.try_pull(&format!("{}/library/other", source.address)).await.expect_err("there is no such model");
    let output = target.lode(&["cancel", "9", "2"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("there is no job 9") && said.contains("is cancelled"), "{said}");
    assert!(
        std::fs::read_dir(target.home().join("jobs"))
            .expect("the folder")
            .all(|entry| { entry.is_ok_and(|entry| entry.file_name() == "last") })
    );
}

/// A daemon that is told to stop keeps its jobs for the next one.
#[tokio::test]
async fn a_stop_keeps_jobs() {
    let source = colleague().await;
    let total = total(&source);
    let gateway = Gateway::to(&source.address);
    let mut target = Server::start(&[]).await;
    let (name, client) = half_a_pull(&target, &gateway, total).await;
    assert!(target.lode(&["shutdown"]).status.success());
    assert!(target.ended(Duration::from_secs(30)).await, "it did not stop");
    client.await.expect("no panic");
    gateway.idle().await;
    gateway.release();
    target = target.restart(&[]).await;
    target.job_is("done").await;
    assert_same((&source, &local("m")), (&target, &name)).await;
}

/// A restored pull waits for its registry.
#[tokio::test]
async fn a_restored_pull_waits_for_the_network() {
    let source = colleague().await;
    let target = Server::start(&[]).await;
    let port = crate::server::free_port();
    let name = format!("127.0.0.1:{port}/library/m:latest");
    let client = begin(&target, "/api/pull", &json!({"model": name}));
    target.job_is_recorded().await;
    let target = target.restart(&[]).await;
    client.await.expect("no panic");
    until("it says when it tries again", async || {
        target.job().await["status"].as_str().is_some_and(|status| status.contains("trying again in 5 s"))
    })
    .await;
    let source = source.restart_at(&format!("127.0.0.1:{port}")).await;
    target.job_is("done").await;
    assert_same((&source, &local("m")), (&target, &name)).await;
}

#[tokio::test]
async fn a_detached_pull_says_its_number() {
    let source = Server::start(&[]).await;
    source.create("tiny", &tiny_model()).await;
    let target = Server::start(&[]).await;
    let name = format!("{}/library/tiny:latest", source.address);
    let output = target.lode(&["pull", &name, "--detach", "--priority", "low", "--limit", "50MB/s"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("the pull runs as a job; `lode jobs` lists it"), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n");
    let job = target.job_is("done").await;
    assert_eq!((&job["priority"], &job["limit"]), (&json!("low"), &json!(50_000_000)));
}

/// A command that is interrupted says that its transfer goes on.
#[tokio::test]
async fn an_interrupted_command_leaves_its_job() {
    let source = colleague().await;
    let gateway = Gateway::to(&source.address);
    gateway.hold_after(0);
    let target = Server::start(&[]).await;
    let name = format!("{}/library/m:latest", gateway.address);
    let mut command = target.command(&["pull", &name]);
    let mut command = command.stderr(std::process::Stdio::piped()).spawn().expect("a command");
    let mut stderr = std::io::BufReader::new(command.stderr.take().expect("a pipe"));
    let mut said = String::new();
    stderr.read_line(&mut said).expect("a line");
    assert_eq!(said, "pulling manifest\n");
    let pid = rustix::process::Pid::from_raw(i32::try_from(command.id()).expect("a pid")).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("a signal");
    stderr.read_to_string(&mut said).expect("text");
    assert_eq!(command.wait().expect("an end").code(), Some(130), "{said}");
    assert!(said.contains("the pull goes on as job 1; `lode jobs` lists it, `lode cancel 1` ends it"), "{said}");
    gateway.release();
    target.job_is("done").await;
}

/// Of two requests that give a name to different models, the later one decides, also after a
/// restart.
#[tokio::test]
async fn a_later_request_for_a_name_replaces_a_job_without_clients() {
    let source = colleague().await;
    let gateway = Gateway::to(&source.address);
    let mut target = Server::start(&[]).await;
    let (name, client) = half_a_pull(&target, &gateway, total(&source)).await;
    target = target.restart(&[]).await;
    client.await.expect("no panic");
    assert_eq!(target.job().await["state"], "running");
    target.create(&name, &tiny_model()).await;
    let states: Vec<Value> = target.jobs().await.iter().map(|job| job["state"].clone()).collect();
    assert_eq!(states, ["cancelled", "done"]);
    gateway.release();
    gateway.idle().await;
    let shown = target.ask("/api/show", &json!({"model": name})).await;
    assert_eq!(shown["model_info"]["general.architecture"], "llama");
    assert!(shown["details"]["parameter_size"].as_str().is_some_and(|size| size.ends_with('K')), "{shown}");
}

/// A request for a model that is being pulled waits for it.
#[tokio::test]
async fn a_request_waits_for_a_model_that_is_being_pulled() {
    let source = colleague().await;
    let gateway = Gateway::to(&source.address);
    let target = Server::start(&[]).await;
    let (name, client) = half_a_pull(&target, &gateway, total(&source)).await;
    let body = json!({"model": name, "prompt": "w5", "raw": true, "stream": false, "options": {"num_predict": 2}});
    let (status, answer) = target.call("/api/generate", &json!({"model": "other", "prompt": "w5"})).await;
    assert_eq!(status, 404, "{answer}");
    let request = target.http.post(target.url("/api/generate")).json(&body);
    let generated = tokio::spawn(async move { request.send().await.expect("an answer").json::<Value>().await });
    gateway.release();
    let answer = generated.await.expect("no panic").expect("JSON");
    assert_eq!(answer["eval_count"], 2, "{answer}");
    client.await.expect("no panic");

    // The error of the pull is the error of the request.
    target.remove(&name).await;
    target.ask("/api/lode/gc", &json!({})).await;
    gateway.clear();
    let (_, client) = half_a_pull(&target, &gateway, total(&source)).await;
    let request = target.http.post(target.url("/api/generate")).json(&body);
    let generated = tokio::spawn(async move { request.send().await.expect("an answer").text().await });
    target.cancel().await;
    let answer = generated.await.expect("no panic").expect("text");
    assert!(answer.contains("was cancelled") || answer.contains("not found"), "{answer}");
    client.await.expect("no panic");
}
