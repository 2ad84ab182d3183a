//! `SeaweedFS`, an object storage on this machine.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use crate::server::free_port;
use crate::support::skip;

const IDENTITIES: &str = r#"{"identities": [{"name": "lode", "credentials": [{"accessKey": "lode", "secretKey": "secret"}],
    "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}"#;

/// A storage with the bucket `models`.
pub(crate) struct Seaweed {
    child: Child,
    s3: String,
    filer: String,
    _folder: tempfile::TempDir,
}

/// The storage of all tests that run at the moment. It ends with the last of them.
static SHARED: Mutex<Weak<Seaweed>> = Mutex::const_new(Weak::new());

impl Seaweed {
    /// Returns a storage, or reports the test as skipped if the program is missing.
    pub(crate) async fn start(test: &str) -> Option<Arc<Self>> {
        let mut shared = SHARED.lock().await;
        if let Some(running) = shared.upgrade() {
            return Some(running);
        }
        let started = Arc::new(Self::start_program(test).await?);
        *shared = Arc::downgrade(&started);
        Some(started)
    }

    async fn start_program(test: &str) -> Option<Self> {
        let Some(program) = std::env::var_os("LODE_TEST_WEED").map(PathBuf::from) else {
            skip(test, "LODE_TEST_WEED names no SeaweedFS; scripts/test installs it");
            return None;
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("s3.json"), IDENTITIES).expect("written");
        let [master, volume, filer, s3] = std::array::from_fn(|_| free_ports());
        let path = folder.path().display();
        let child = Command::new(program)
            .args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-filer", "-s3"])
            .args(["-master.volumeSizeLimitMB=64", "-volume.max=40", "-s3.port.iceberg=0", "-s3.port.lance=0"])
            .args([format!("-dir={path}"), format!("-s3.config={path}/s3.json")])
            .args([format!("-master.port={master}"), format!("-volume.port={volume}")])
            .args([format!("-filer.port={filer}"), format!("-s3.port={s3}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("SeaweedFS starts");
        let address = |port: u16| format!("http://127.0.0.1:{port}");
        let seaweed = Self { child, s3: address(s3), filer: address(filer), _folder: folder };
        seaweed.make_bucket().await;
        Some(seaweed)
    }

    /// A bucket is a folder of the filer.
    async fn make_bucket(&self) {
        let http = super::client();
        let begin = Instant::now();
        let is_made = async || {
            let made = http.post(format!("{}/buckets/models/", self.filer)).send().await;
            made.is_ok_and(|answer| answer.status().is_success() || answer.status() == 409)
                && http.get(&self.s3).send().await.is_ok()
        };
        while !is_made().await {
            assert!(begin.elapsed() < Duration::from_mins(1), "SeaweedFS does not answer");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The variables of a replica over this storage.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let own = [
            ("AWS_ACCESS_KEY_ID", "lode"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", &self.s3),
        ];
        own.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }

    /// Names and sizes of the objects below a folder of the bucket. An empty folder is not one.
    pub(crate) async fn objects(&self, folder: &str) -> Vec<(String, u64)> {
        let (mut objects, mut folders) = (Vec::new(), vec![format!("/buckets/models/{folder}")]);
        while let Some(folder) = folders.pop() {
            let url = format!("{}{folder}/?limit=100000", self.filer);
            let answer = super::client().get(url).header("Accept", "application/json").send().await;
            let answer = answer.expect("an answer");
            if answer.status() == 404 {
                continue;
            }
            let listed: serde_json::Value = answer.json().await.expect("JSON");
            for entry in listed["Entries"].as_array().into_iter().flatten() {
                let path = entry["FullPath"].as_str().expect("a path").to_owned();
                // The mode of Go: the highest bit is that of folders.
                if entry["Mode"].as_u64().expect("a mode") >> 31 == 1 {
                    folders.push(path);
                } else {
                    objects.push((path, entry["FileSize"].as_u64().expect("a size")));
                }
            }
        }
        objects
    }
}

/// A free port below 55536: `SeaweedFS` listens on the port and on the one 10,000 above it.
fn free_ports() -> u16 {
    loop {
        let port = free_port();
        if port < 55_536 && std::net::TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok() {
            return port;
        }
    }
}

impl Drop for Seaweed {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
