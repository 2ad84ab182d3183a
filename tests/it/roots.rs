//! Roots: more stores that a daemon reads and never changes, also of several machines at a time.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::adopt::{answer, bytes, text};
use crate::maintenance::{digest, document, done, fails, files, run};
use crate::server::Server;
use crate::support::{skip, tiny_model, variant};

/// A folder with a store that has the model `base`.
async fn root_with_model() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = Server::start(&[]).await;
    server.create("base", &tiny_model()).await;
    done(&server, &["shutdown"]);
    copy(&server.home(), &folder.path().join("store"));
    folder
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(copied.success());
}

/// A folder that is mounted a second time, for reading only.
struct ReadOnly(tempfile::TempDir);

impl ReadOnly {
    fn of(test: &str, folder: &Path) -> Option<Self> {
        let mount = Self(tempfile::tempdir().expect("a temporary folder"));
        let run = |arguments: &[&str]| Command::new("mount").args(arguments).output().is_ok_and(|o| o.status.success());
        let point = text(mount.0.path());
        if run(&["--bind", text(folder), point]) && run(&["-o", "remount,ro,bind", point]) {
            return Some(mount);
        }
        skip(test, "nothing can be mounted here");
        None
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

fn listed(server: &Server) -> Vec<String> {
    let tags = document(server, &["list"]);
    tags["models"].as_array().expect("models").iter().map(|m| m["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn two_daemons_share_a_read_only_root() {
    let folder = root_with_model().await;
    let store = folder.path().join("store");
    let Some(mount) = ReadOnly::of("roots::two_daemons_share_a_read_only_root", &store) else { return };
    let environment = [("LODE_ROOTS", text(mount.path()))];
    let before = files(&store);
    let (one, two) = (Server::start(&environment).await, Server::start(&environment).await);
    let expect = answer(&one, "base").await;
    for server in [&one, &two] {
        assert_eq!(listed(server), ["base:latest"]);
        assert_eq!(answer(server, "base").await, expect);
        for arguments in [&["show", "base", "--tensors"][..], &["gc"], &["fsck"], &["prune", "--older-than", "0s"]] {
            done(server, arguments);
        }
        assert_eq!(files(&server.home().join("blobs")), Vec::<PathBuf>::new(), "nothing is copied");
    }
    assert_eq!(listed(&one), ["base:latest"], "neither a collection nor a prune touches a root");
    // Others pull the model from there, and a fine-tune shares its blobs.
    let other = Server::start(&[]).await;
    let remote = format!("{}/library/base", one.address);
    done(&other, &["pull", "--insecure", &remote]);
    assert_eq!((digest(&other, &remote), answer(&other, &remote).await), (digest(&one, "base"), expect.clone()));
    one.create("again", &tiny_model()).await;
    assert_eq!(digest(&one, "again"), digest(&one, "base"));
    assert!(bytes(&one.home().join("blobs")) < 20_000, "only documents that the root lacks are stored");
    assert_eq!(answer(&one, "again").await, expect);
    // The page of a list has both; a name of the store hides one of the root.
    one.create("base", variant(1).path()).await;
    assert_ne!(digest(&one, "base"), digest(&two, "base"));
    assert_eq!(listed(&one).len(), 2);
    done(&one, &["rm", "base"]);
    assert_eq!(digest(&one, "base"), digest(&two, "base"), "it is there again");
    fails(&one, &["rm", "base"], "which is only read");
    let page = one.http.get(one.url("/api/tags?limit=1")).send().await.expect("an answer").text().await.expect("text");
    assert!(page.contains("again:latest") && !page.contains("base:latest"), "{page}");
    let usage = document(&two, &["du"]);
    assert!(usage["root_bytes"].as_u64() > Some(100_000) && usage["bytes"] == 0, "{usage}");
    assert_eq!(files(&store), before);
}

#[tokio::test]
async fn a_model_of_a_root_can_be_owned() {
    let folder = root_with_model().await;
    let store = folder.path().join("store");
    let environment = [("LODE_ROOTS", text(&store))];
    let server = Server::start(&environment).await;
    let expect = answer(&server, "base").await;
    done(&server, &["own", "base"]);
    let server = server.restart(&[]).await;
    assert_eq!(answer(&server, "base").await, expect);
    done(&server, &["fsck"]);
}

#[tokio::test]
async fn a_root_may_come_and_go() {
    let folder = root_with_model().await;
    let (store, away) = (folder.path().join("store"), folder.path().join("away"));
    std::fs::rename(&store, &away).expect("moved");
    let environment = [("LODE_ROOTS", text(&store))];
    let server = Server::start(&environment).await;
    server.create("mine", variant(1).path()).await;
    assert_eq!(listed(&server), ["mine:latest"]);
    let doctor = server.lode_with(&environment, &["doctor"]);
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("cannot be read"), "{doctor:?}");
    std::fs::rename(&away, &store).expect("moved back");
    let expect = answer(&server, "base").await;
    assert_eq!(listed(&server).len(), 2);
    let doctor = server.lode_with(&environment, &["doctor"]);
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("has a store that can be read"), "{doctor:?}");
    // A name here that refers to a manifest there.
    done(&server, &["cp", "base", "second"]);
    done(&server, &["stop", "base"]);
    std::fs::rename(&store, &away).expect("moved");
    let (status, body) = crate::adopt::generate(&server, "second").await;
    assert!(status >= 400 && body["error"].as_str().is_some(), "{body}");
    assert!(listed(&server).contains(&"mine:latest".to_owned()));
    // The references of `second` are unknown, so nothing is deleted.
    let collected = run(&server, &["gc"]);
    assert!(!collected.success && collected.err.contains("deleted 0 blobs"), "{}", collected.err);
    answer(&server, "mine").await;
    std::fs::rename(&away, &store).expect("moved back");
    assert_eq!(answer(&server, "second").await, expect);
}

#[tokio::test]
async fn models_move_to_a_root_and_back() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path().join("slow");
    let environment = [("LODE_ROOTS", text(&root))];
    let (server, other) = (Server::start(&environment).await, Server::start(&environment).await);
    server.create("a", &tiny_model()).await;
    server.create("b", variant(1).path()).await;
    server.create("c", variant(2).path()).await;
    let expect = answer(&server, "a").await;
    fails(&server, &["move", "a", "--to", text(&root)], "is loaded");
    done(&server, &["stop", "a"]);
    fails(&server, &["move", "a", "--to", text(folder.path())], "expected one of LODE_ROOTS");
    done(&server, &["pin", "a"]);
    fails(&server, &["move", "a", "--to", text(&root), "--create"], "is pinned");
    done(&server, &["unpin", "a"]);
    fails(&server, &["move", "nothing", "--to", text(&root)], "not found");
    fails(&server, &["move", "a", "--to", text(&root)], "mount it, or give --create");
    let plan = document(&server, &["move", "a", "--to", text(&root), "--dry-run", "--create"]);
    assert_eq!((plan["models"][0]["name"].as_str(), plan["blobs"].as_u64()), (Some("a:latest"), Some(0)), "{plan}");
    let moved = document(&server, &["move", "a", "--to", text(&root), "--create"]);
    assert!(moved["blobs"].as_u64() > Some(5), "{moved}");
    assert_eq!(listed(&server).len(), 3);
    assert_eq!(listed(&other), ["a:latest"], "another machine finds it");
    assert_eq!((answer(&server, "a").await, answer(&other, "a").await), (expect.clone(), expect.clone()));
    fails(&server, &["move", "a", "--to", text(&root)], "is in the root");
    // By last use; a pinned model stays.
    done(&server, &["pin", "c"]);
    let moved = document(&server, &["move", "--unused", "0s", "--to", text(&root)]);
    assert_eq!(moved["models"].as_array().map(Vec::len), Some(1), "{moved}");
    let mut found = listed(&other);
    found.sort();
    assert_eq!(found, ["a:latest", "b:latest"]);
    done(&server, &["own", "a"]);
    done(&server, &["fsck"]);
    // A model of the root is never replaced by another of its name.
    server.create("b", variant(5).path()).await;
    let said = run(&server, &["move", "b", "--to", text(&root)]);
    assert!(!said.success && said.err.contains("has another model of this name"), "{}", said.err);
    assert_ne!(digest(&server, "b"), digest(&other, "b"));
    done(&server, &["rm", "b"]);
    // The root of one daemon may be the store of another, which then must move models itself.
    let holder = Server::prepared(&[], |home| {
        std::fs::remove_dir(home).expect("an empty folder");
        std::os::unix::fs::symlink(&root, home).expect("a link");
    })
    .await;
    done(&server, &["unpin", "c"]);
    fails(&server, &["move", "c", "--to", text(&root)], "is in use by process");
    assert_eq!(listed(&holder).len(), 2);
    answer(&server, "b").await;
}

#[tokio::test]
async fn an_earlier_version_moves_too() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path().join("slow");
    let server = Server::start(&[("LODE_ROOTS", text(&root))]).await;
    server.create("m", &tiny_model()).await;
    let earlier = digest(&server, "m");
    server.create("m", variant(1).path()).await;
    done(&server, &["move", "m", "--to", text(&root), "--create"]);
    let there = Server::prepared(&[], |home| {
        std::fs::remove_dir(home).expect("an empty folder");
        std::os::unix::fs::symlink(&root, home).expect("a link");
    })
    .await;
    done(&there, &["rollback", "m"]);
    assert_eq!(digest(&there, "m"), earlier);
    done(&there, &["fsck"]);
    answer(&there, "m").await;
}

/// The registry serves models of a root that came there after the index was filled.
#[tokio::test]
async fn a_registry_serves_models_of_a_root() {
    let folder = root_with_model().await;
    let store = folder.path().join("store");
    let server = Server::start(&[]).await;
    server.create("mine", variant(1).path()).await;
    done(&server, &["shutdown"]);
    let server = server.restart(&[("LODE_ROOTS", text(&store))]).await;
    let other = Server::start(&[]).await;
    let remote = format!("{}/library/base", server.address);
    done(&other, &["pull", "--insecure", &remote]);
    assert_eq!(digest(&other, &remote), digest(&server, "base"));
    answer(&other, &remote).await;
}

/// The writers of a root cannot make a daemon read files outside of it.
#[tokio::test]
async fn files_outside_of_a_root_are_not_read() {
    let sources = tempfile::tempdir().expect("a temporary folder");
    let source = sources.path().join("tiny");
    copy(&tiny_model(), &source);
    let writer = Server::start(&[]).await;
    done(&writer, &["adopt", text(&source), "--name", "m"]);
    done(&writer, &["shutdown"]);
    let reader = Server::start(&[("LODE_ROOTS", text(&writer.home()))]).await;
    let (status, body) = crate::adopt::generate(&reader, "m").await;
    assert!(status >= 400, "{body}");
    assert!(body["error"].as_str().is_some_and(|error| error.contains("is missing")), "{body}");
}

#[tokio::test]
async fn wrong_roots_are_refused() {
    let folder = root_with_model().await;
    let store = folder.path().join("store");
    let start = |roots: &str| {
        let output = Command::new(&*crate::server::LODE)
            .arg("serve")
            .env("LODE_HOME", &store)
            .env("LODE_HOST", format!("127.0.0.1:{}", crate::server::free_port()))
            .env("LODE_ROOTS", roots)
            .output()
            .expect("the program runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(start("models").contains("expected absolute paths"));
    assert!(start(text(&store)).contains("it is the store itself"));
    let newer = folder.path().join("newer");
    copy(&store, &newer);
    std::fs::write(newer.join("version"), "99\n").expect("a version");
    assert!(start(text(&newer)).contains("has the format version 99"));
}
