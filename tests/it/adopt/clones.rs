//! Adoption on a file system that clones files: the store is independent of the sources.

use std::path::PathBuf;
use std::process::Command;

use super::{Sources, answer, bytes, text};
use crate::maintenance::{done, files};
use crate::server::Server;
use crate::support::{read, skip};

/// A file system in a file, mounted for a test.
struct Disk {
    folder: tempfile::TempDir,
}

impl Disk {
    /// Creates and mounts the file system, or reports the test as skipped.
    fn xfs(test: &str) -> Option<Self> {
        let disk = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        let image = disk.folder.path().join("image");
        std::fs::File::create(&image).and_then(|file| file.set_len(400 << 20)).expect("a sparse file");
        std::fs::create_dir(disk.path()).expect("a folder");
        let run = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output();
            output.map_err(|e| e.to_string()).and_then(|output| {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                if output.status.success() { Ok(()) } else { Err(said) }
            })
        };
        let made = run("mkfs.xfs", &["-q", "-m", "reflink=1", text(&image)])
            .and_then(|()| run("mount", &["-o", "loop", text(&image), text(&disk.path())]));
        match made {
            Ok(()) => Some(disk),
            Err(reason) => {
                skip(test, &format!("XFS cannot be mounted here: {}", reason.trim()));
                None
            }
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    /// Starts a daemon whose store is on this disk.
    async fn server(&self) -> Server {
        let store = self.path().join("store");
        std::fs::create_dir(&store).expect("a folder");
        Server::prepared(&[], |home| {
            std::fs::remove_dir(home).expect("an empty folder");
            std::os::unix::fs::symlink(&store, home).expect("a link");
        })
        .await
    }

    /// Bytes that the file system has free.
    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.path()).expect("facts of the file system");
        stat.f_bavail * stat.f_frsize
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}

fn clones(server: &Server) -> Vec<PathBuf> {
    files(&server.home().join("adopted"))
}

#[tokio::test]
async fn clones_are_independent_of_their_source() {
    let Some(disk) = Disk::xfs("adopt::clones::clones_are_independent_of_their_source") else { return };
    let sources = Sources::new().await;
    let server = disk.server().await;
    let file = disk.path().join("model.gguf");
    // So large that metadata of the file system do not matter.
    std::fs::copy(sources.gguf(), &file).expect("a copy");
    rustix::fs::sync();
    let before = disk.free();
    let said = server.lode(&["adopt", text(&file), "--name", "m"]);
    let told = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success() && told.contains("has a clone of the files"), "{told}");
    assert_eq!(clones(&server).len(), 1);
    assert!(read(&clones(&server)[0]) == read(&file));
    rustix::fs::sync();
    let taken = before.saturating_sub(disk.free());
    assert!(taken < bytes(&server.home().join("blobs")) + (4 << 20), "{taken} bytes were written");

    let expect = answer(&server, "m").await;
    std::fs::write(&file, b"other").expect("a write");
    assert_eq!(answer(&server, "m").await, expect, "the loaded model does not notice it");
    done(&server, &["stop", "m"]);
    std::fs::remove_file(&file).expect("removed");
    let server = server.restart(&[]).await;
    assert_eq!(answer(&server, "m").await, expect);
    done(&server, &["fsck"]);

    done(&server, &["cp", "m", "other"]);
    done(&server, &["rm", "m"]);
    done(&server, &["gc"]);
    assert_eq!(clones(&server).len(), 1, "another model refers to it");
    done(&server, &["rm", "other"]);
    done(&server, &["gc"]);
    assert_eq!(clones(&server), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_source_elsewhere_is_not_cloned() {
    let Some(disk) = Disk::xfs("adopt::clones::a_source_elsewhere_is_not_cloned") else { return };
    let sources = Sources::new().await;
    let server = disk.server().await;
    done(&server, &["adopt", text(&sources.gguf()), "--name", "m"]);
    assert_eq!(clones(&server), Vec::<PathBuf>::new());
    answer(&server, "m").await;
    check_unmounted(&sources).await;
}

/// A disk that is pulled out: the model is missing until it is back.
async fn check_unmounted(sources: &Sources) {
    let Some(disk) = Disk::xfs("adopt::clones::a_source_elsewhere_is_not_cloned") else { return };
    let server = Server::start(&[]).await;
    let file = disk.path().join("model.gguf");
    std::fs::copy(sources.gguf(), &file).expect("a copy");
    done(&server, &["adopt", text(&file), "--name", "m"]);
    let expect = answer(&server, "m").await;
    done(&server, &["stop", "m"]);
    let mount = |arguments: &[&str]| {
        assert!(Command::new(arguments[0]).args(&arguments[1..]).status().expect("it runs").success());
    };
    crate::support::until("the runner is gone", || async { !has_runner(server.pid()) }).await;
    mount(&["umount", text(&disk.path())]);
    let (status, body) = super::generate(&server, "m").await;
    assert_eq!(status, 500, "{body}");
    assert!(body["error"].as_str().is_some_and(|error| error.contains(text(&file))), "{body}");
    let image = disk.folder.path().join("image");
    mount(&["mount", "-o", "loop", text(&image), text(&disk.path())]);
    assert_eq!(answer(&server, "m").await, expect, "it is back, possibly under another device number");
    done(&server, &["fsck"]);
    done(&server, &["rm", "m"]);
}

/// Whether a process has a child.
fn has_runner(pid: u32) -> bool {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().any(|child| {
        let maps = std::fs::read_to_string(format!("/proc/{child}/maps")).unwrap_or_default();
        maps.contains("model.gguf")
    })
}
