//! The tier of a store: blobs of unused models go to a bucket or a folder, and come back.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::maintenance::{document, done, fails, files, run};
use crate::replicas::seaweed::Seaweed;
use crate::replicas::storage::{Fault, HostileStorage};
use crate::server::{LODE, Server, free_port};
use crate::support::{tiny_model, variant};

/// The variables of a daemon with a tier.
type Environment = Vec<(String, String)>;

fn folder_tier() -> (tempfile::TempDir, Environment) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("UTF-8").to_owned();
    (folder, vec![("LODE_TIER".to_owned(), path)])
}

fn bucket_tier(storage: Environment, prefix: &str) -> Environment {
    storage.into_iter().chain([("LODE_TIER".to_owned(), format!("s3://models/{prefix}"))]).collect()
}

fn borrowed(environment: &Environment) -> Vec<(&str, &str)> {
    environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

async fn start(environment: &Environment) -> Server {
    Server::start(&borrowed(environment)).await
}

/// The answer of a model to a prompt.
async fn answer(server: &Server, model: &str) -> Value {
    let request =
        json!({"model": model, "prompt": "ab", "stream": false, "options": {"temperature": 0, "num_predict": 8}});
    server.ask("/api/generate", &request).await["response"].clone()
}

/// Unloads a model, and waits until its runner is gone.
async fn unload(server: &Server, model: &str) {
    done(server, &["stop", model]);
    let begin = Instant::now();
    loop {
        let loaded: Value =
            server.http.get(server.url("/api/ps")).send().await.expect("an answer").json().await.expect("JSON");
        let mut models = loaded["models"].as_array().expect("models").iter();
        if !models.any(|entry| entry["name"].as_str().is_some_and(|name| name.starts_with(model))) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_mins(1), "the model stays loaded");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Runs a command until it succeeds: a failure of the tier is remembered for a second.
async fn done_soon(server: &Server, arguments: &[&str]) {
    let begin = Instant::now();
    loop {
        let said = run(server, arguments);
        if said.success {
            return;
        }
        assert!(begin.elapsed() < Duration::from_mins(1), "{arguments:?}: {}{}", said.out, said.err);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Number of blobs that are only in the tier.
fn moved(server: &Server) -> u64 {
    document(server, &["tier"])["moved_blobs"].as_u64().expect("a number")
}

fn blobs(home: &Path) -> Vec<PathBuf> {
    files(&home.join("blobs"))
}

/// The checks of a tier that hold for every kind.
async fn models_move_and_come_back(environment: &Environment) {
    let server = start(environment).await;
    server.create("mine", &tiny_model()).await;
    let before = (blobs(&server.home()).len(), answer(&server, "mine").await);
    // A loaded model stays.
    let report = document(&server, &["tier", "move", "mine"]);
    assert_eq!((report["planned_blobs"].as_u64(), report["blobs"].as_u64()), (Some(0), Some(0)), "{report}");
    unload(&server, "mine").await;
    let plan = document(&server, &["tier", "move", "mine", "--dry-run"]);
    assert!(plan["planned_blobs"].as_u64() > Some(5) && moved(&server) == 0, "{plan}");
    assert_eq!(plan["models"][0]["name"], "mine:latest", "{plan}");
    let report = document(&server, &["tier", "move", "mine"]);
    assert_eq!((&report["blobs"], &report["sent"]), (&plan["planned_blobs"], &plan["planned_bytes"]), "{report}");
    let left = plan["planned_blobs"].as_u64().expect("a number");
    assert_eq!(blobs(&server.home()).len() as u64, before.0 as u64 - left);

    // Lists, documents, tensors, checks and collections do not need the blobs.
    for arguments in [&["list"][..], &["show", "mine"], &["show", "mine", "--tensors"], &["fsck"], &["gc"], &["du"]] {
        done(&server, arguments);
    }
    assert_eq!(moved(&server), left);
    // A restart forgets nothing.
    let server = server.restart(&borrowed(environment)).await;
    assert_eq!(moved(&server), left);
    assert_eq!(answer(&server, "mine").await, before.1);
    assert_eq!((moved(&server), blobs(&server.home()).len()), (0, before.0));
    // Blobs that the tier has already are not sent again.
    unload(&server, "mine").await;
    let report = document(&server, &["tier", "move", "--after", "0s"]);
    assert_eq!((report["blobs"].as_u64(), report["sent"].as_u64()), (Some(left), Some(0)), "{report}");

    // Other readers wait for the blobs, too.
    let to = tempfile::tempdir().expect("a temporary folder");
    let to = to.path().join("export");
    done(&server, &["export", "mine", "--to", to.to_str().expect("UTF-8")]);
    let (exported, source) = (to.join("model.safetensors"), tiny_model().join("model.safetensors"));
    assert!(std::fs::read(exported).expect("a file") == std::fs::read(source).expect("a file"));
    unload(&server, "mine").await;
    done(&server, &["tier", "move", "mine"]);
    let other = Server::start(&[]).await;
    let name = format!("{}/library/mine", server.address);
    done(&other, &["pull", "--insecure", &name]);
    assert_eq!(answer(&other, &name).await, before.1);
    unload(&server, "mine").await;
    done(&server, &["tier", "move", "mine"]);
    done(&server, &["tier", "recall", "mine"]);
    assert_eq!(moved(&server), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn models_move_to_a_folder_and_come_back() {
    let (folder, environment) = folder_tier();
    models_move_and_come_back(&environment).await;
    // Another store cannot use it.
    let server = start(&environment).await;
    let error = run(&server, &["tier"]);
    assert!(!error.success && error.err.contains("another store"), "{}", error.err);
    drop(server);
    assert!(!files(&folder.path().join("blobs")).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn models_move_to_a_bucket_and_come_back() {
    let Some(seaweed) = Seaweed::start("tier::models_move_to_a_bucket_and_come_back").await else { return };
    models_move_and_come_back(&bucket_tier(seaweed.environment(), "tier")).await;
    assert!(!seaweed.objects("tier/tier/blobs").await.is_empty());
    assert!(seaweed.objects("tier/tier/uploads").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_models_leave_the_tier() {
    let (folder, environment) = folder_tier();
    let server = start(&environment).await;
    server.create("mine", &tiny_model()).await;
    server.create("tuned", variant(1).path()).await;
    done(&server, &["tier", "move", "mine", "tuned"]);
    let both = files(&folder.path().join("blobs")).len();
    done(&server, &["rm", "tuned"]);
    done(&server, &["gc"]);
    // Each move first removes released blobs from the tier. This one moves no blob.
    done(&server, &["tier", "move", "--after", "520w"]);
    let one = files(&folder.path().join("blobs")).len();
    assert!(0 < one && one < both, "{one} of {both}");
    answer(&server, "mine").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_keeps_to_its_budget() {
    let (_folder, mut environment) = folder_tier();
    environment.push(("LODE_TIER_DISK".to_owned(), "400KB".to_owned()));
    environment.push(("LODE_MAX_LOADED_MODELS".to_owned(), "1".to_owned()));
    let server = start(&environment).await;
    for seed in 1..4 {
        server.create(&format!("m{seed}"), variant(seed).path()).await;
    }
    for seed in [1, 2, 3, 1, 2] {
        answer(&server, &format!("m{seed}")).await;
        let begin = Instant::now();
        loop {
            let status = document(&server, &["tier"]);
            if status["disk_bytes"].as_u64() <= Some(400_000) {
                assert!(status["moved_blobs"].as_u64() > Some(0), "{status}");
                break;
            }
            assert!(begin.elapsed() < Duration::from_mins(1), "the disk stays over its budget: {status}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    done(&server, &["fsck"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_that_fails_loses_nothing() {
    let storage = HostileStorage::start().await;
    let environment = bucket_tier(storage.environment(), "x");
    let server = start(&environment).await;
    server.create("mine", &tiny_model()).await;
    server.create("here", variant(1).path()).await;
    let before = answer(&server, "mine").await;
    unload(&server, "mine").await;

    storage.set(Fault::Expired);
    fails(&server, &["tier", "move", "mine"], "refuses the credentials");
    assert_eq!(blobs(&server.home()).len(), document(&server, &["du"])["blobs"].as_u64().expect("a number") as usize);
    storage.set(Fault::Unavailable { left: 3 });
    done_soon(&server, &["tier", "move", "mine"]).await;
    let left = moved(&server);
    assert!(left > 5);

    // Other models work while the tier does not.
    storage.set(Fault::Expired);
    let server = server.restart(&borrowed(&environment)).await;
    answer(&server, "here").await;
    let (status, error) = server.call("/api/generate", &json!({"model": "mine", "prompt": "ab"})).await;
    assert!(status >= 500 && error["error"].as_str().is_some_and(|text| text.contains("credentials")), "{error}");
    fails(&server, &["tier"], "credentials");
    let checked = run(&server, &["fsck"]);
    assert!(!checked.success && checked.out.contains("credentials"), "{}", checked.out);

    storage.set(Fault::CorruptsReads);
    done_soon(&server, &["tier"]).await;
    let (status, error) = server.call("/api/generate", &json!({"model": "mine", "prompt": "ab"})).await;
    assert!(status >= 500 && error["error"].as_str().is_some_and(|text| text.contains("wrong digest")), "{error}");
    assert!(moved(&server) < left, "blobs with wrong bytes count as missing");
    fails(&server, &["fsck"], "found");

    storage.set(Fault::Slow(Duration::from_millis(300)));
    done(&server, &["repair"]);
    assert_eq!(answer(&server, "mine").await, before);
    storage.set(Fault::None);
    done(&server, &["fsck"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tier_repairs_a_damaged_blob() {
    let (folder, environment) = folder_tier();
    let server = start(&environment).await;
    server.create("mine", &tiny_model()).await;
    let before = answer(&server, "mine").await;
    unload(&server, "mine").await;
    done(&server, &["tier", "move", "mine"]);
    done(&server, &["tier", "recall", "mine"]);
    let in_tier: Vec<String> =
        files(&folder.path().join("blobs")).iter().map(|path| crate::support::name(path)).collect();
    let damage = |path: &Path| {
        let mut bytes = std::fs::read(path).expect("a blob");
        *bytes.last_mut().expect("not empty") ^= 1;
        std::fs::remove_file(path).and_then(|()| std::fs::write(path, bytes)).expect("damage");
    };
    let here = blobs(&server.home()).into_iter().find(|path| in_tier.contains(&crate::support::name(path)));
    damage(&here.expect("a blob in both places"));
    fails(&server, &["fsck"], "1 problem");
    done(&server, &["repair"]);
    done(&server, &["fsck"]);
    assert_eq!(answer(&server, "mine").await, before);
    // A tier that has lost a blob is reported, and the blob is fetched from elsewhere or not at
    // all.
    unload(&server, "mine").await;
    done(&server, &["tier", "move", "mine"]);
    std::fs::remove_file(&files(&folder.path().join("blobs"))[0]).expect("loss");
    fails(&server, &["fsck"], "1 problem");
    let (status, error) = server.call("/api/generate", &json!({"model": "mine", "prompt": "ab"})).await;
    assert!(status >= 500 && error["error"].as_str().is_some_and(|text| text.contains("lode repair")), "{error}");
}

/// Kills the daemon at each step of moves and collections.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_at_any_step() {
    for point in store::CrashPoint::TIER {
        let (folder, environment) = folder_tier();
        let crash: Environment =
            environment.iter().cloned().chain([("LODE_CRASH_AT".to_owned(), point.name().to_owned())]).collect();
        let mut server = start(&crash).await;
        server.create("mine", &tiny_model()).await;
        let before = answer(&server, "mine").await;
        unload(&server, "mine").await;
        if point == store::CrashPoint::TierReleased {
            server = server.restart(&borrowed(&environment)).await;
            server.create("tuned", variant(1).path()).await;
            done(&server, &["tier", "move", "mine", "tuned"]);
            server = server.restart(&borrowed(&crash)).await;
            // The connection breaks.
            drop(server.http.delete(server.url("/api/delete")).json(&json!({"model": "tuned"})).send().await);
            drop(server.http.post(server.url("/api/lode/gc")).json(&json!({})).send().await);
        } else {
            let asked = server.http.post(server.url("/api/lode/tier/move")).json(&json!({"models": ["mine"]})).send();
            // A client that does not read to the end cancels the move.
            if let Ok(answer) = asked.await {
                drop(answer.text().await);
            }
        }
        assert!(server.ended(Duration::from_mins(1)).await, "the daemon passes {point:?}");
        let server = server.restart(&borrowed(&environment)).await;
        done(&server, &["fsck"]);
        done(&server, &["gc"]);
        done(&server, &["tier", "move", "--after", "0s"]);
        assert_eq!(answer(&server, "mine").await, before, "{point:?}");
        unload(&server, "mine").await;
        done(&server, &["tier", "move", "mine"]);
        // The tier has no blobs but those of the list.
        let listed = files(&server.home().join("tier/blobs")).len();
        assert_eq!(files(&folder.path().join("blobs")).len(), listed, "{point:?}");
    }
}

/// Kills the daemon while blobs move and come back; afterwards every blob is in one of the places.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_the_daemon_is_killed() {
    let (folder, environment) = folder_tier();
    let mut server = start(&environment).await;
    server.create("mine", &tiny_model()).await;
    server.create("tuned", variant(1).path()).await;
    let before = [answer(&server, "mine").await, answer(&server, "tuned").await];
    let rounds = crate::support::number("LODE_TEST_TIER_KILLS").unwrap_or(12);
    for round in 0..rounds {
        let calls = [("move", json!({"after": 0})), ("recall", json!({"all": true})), ("move", json!({"after": 0}))];
        let calls = calls.map(|(call, body)| {
            let request = server.http.post(server.url(&format!("/api/lode/tier/{call}"))).json(&body);
            // The daemon may be killed before it answers.
            tokio::spawn(async move {
                if let Ok(answer) = request.send().await {
                    drop(answer.text().await);
                }
            })
        });
        // Another moment in each round, from the beginning of the moves to their end.
        tokio::time::sleep(Duration::from_millis(round * 7 % 90)).await;
        server.kill();
        for call in calls {
            call.await.expect("it ends with the daemon");
        }
        server = server.restart(&borrowed(&environment)).await;
        done(&server, &["fsck"]);
    }
    assert_eq!([answer(&server, "mine").await, answer(&server, "tuned").await], before);
    unload(&server, "mine").await;
    unload(&server, "tuned").await;
    done(&server, &["tier", "move", "--after", "0s"]);
    assert!(files(&folder.path().join("new")).is_empty());
    done(&server, &["rm", "mine", "tuned"]);
    done(&server, &["prune", "--yes"]);
    done(&server, &["tier", "move", "--after", "0s"]);
    assert_eq!(files(&server.home().join("tier/blobs")), [] as [PathBuf; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_keeps_to_its_tier() {
    let (folder, environment) = folder_tier();
    let server = start(&environment).await;
    server.create("mine", &tiny_model()).await;
    done(&server, &["tier", "move", "mine"]);
    // Without the tier, the models are listed, and the error names it.
    let server = server.restart(&[]).await;
    done(&server, &["list"]);
    let (status, error) = server.call("/api/generate", &json!({"model": "mine", "prompt": "ab"})).await;
    let hint = format!("LODE_TIER={}", folder.path().display());
    assert!(status >= 400 && error["error"].as_str().is_some_and(|text| text.contains(&hint)), "{status} {error}");
    assert!(server.log().contains("only in the tier"), "the log warns");
    fails(&server, &["tier"], "LODE_TIER");
    let server = server.restart(&borrowed(&environment)).await;
    answer(&server, "mine").await;
}

#[test]
fn wrong_settings_are_explained() {
    let home = tempfile::tempdir().expect("a temporary folder");
    for (settings, reason) in [
        (&[("LODE_TIER", "relative/path")][..], "absolute path"),
        (&[("LODE_TIER", "memory://")], "loses all blobs"),
        (&[("LODE_TIER", "ftp://x/y")], "`ftp`"),
        (&[("LODE_TIER_AFTER", "7d")], "LODE_TIER, e.g."),
        (&[("LODE_TIER_DISK", "7GB")], "LODE_TIER, e.g."),
        (&[("LODE_TIER", "/x"), ("LODE_TIER_AFTER", "soon")], "LODE_TIER_AFTER"),
        (&[("LODE_TIER", "/x"), ("LODE_TIER_AFTER", "0s")], "more than no time"),
        (&[("LODE_TIER", "/x"), ("LODE_TIER_DISK", "much")], "LODE_TIER_DISK"),
    ] {
        let mut command = std::process::Command::new(&*LODE);
        command.arg("serve").env("LODE_HOME", home.path()).env("LODE_HOST", format!("127.0.0.1:{}", free_port()));
        let ended = command.envs(settings.iter().copied()).output().expect("it runs");
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && text.contains(reason), "{settings:?}: {text}");
    }
}
