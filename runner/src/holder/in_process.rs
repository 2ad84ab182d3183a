//! A holder in this process, for tests and measurements. Its sessions, sockets and memory are those
//! of the real holder process.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use protocol::{Blob, Reserved};

use super::memory::SessionId;
use super::{Devices, Keep};
use crate::files::Files;
use crate::holder_client::HolderClient;
use crate::mapped::Blobs;

/// A holder in this process.
#[derive(Debug)]
pub(crate) struct InProcessHolder {
    devices: Arc<Devices>,
    sessions: AtomicU64,
}

impl InProcessHolder {
    pub(crate) fn new(keep: Keep) -> Self {
        Self { devices: Devices::new(keep), sessions: AtomicU64::new(0) }
    }

    /// Opens a session for a model of these files, which are mapped as `blobs`. Their paths are the
    /// names of the blobs.
    pub(crate) fn session(&self, device: &str, paths: &[PathBuf], blobs: &Blobs) -> Result<HolderClient> {
        Ok(HolderClient::new(self.socket(device, paths)?, blobs))
    }

    /// Returns the runner's end of a session's socket.
    pub(super) fn socket(&self, device: &str, paths: &[PathBuf]) -> Result<UnixStream> {
        let (mut plan, mut files) = (Vec::new(), Vec::new());
        for path in paths {
            plan.push(Blob { name: path.display().to_string(), size: std::fs::metadata(path)?.len(), unchanged: None });
            files.push(File::open(path)?.into());
        }
        let (runner, theirs) = UnixStream::pair()?;
        let id = SessionId(self.sessions.fetch_add(1, Ordering::Relaxed));
        let reserved = [Reserved { device: device.to_owned(), own: 0, weights: 0 }];
        self.devices.hold(id, (plan, Files::given(files)), &reserved, theirs)?;
        Ok(runner)
    }

    /// Returns the bytes of a device that are free or unused, after ended runners have released
    /// theirs.
    pub(super) fn free(&self, device: &str) -> Result<u64> {
        self.devices.settle();
        let memory = self.devices.memory(device)?;
        let memory = memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(memory.free()?.0)
    }
}

mod tests {
    use protocol::{ArrayCall, ArrayReply, BlobPart, FailureKind, passing};

    use super::*;

    const MIB: usize = 1 << 20;
    const DEVICE: &str = "emulated:16";

    fn files(folder: &std::path::Path, count: usize) -> Vec<PathBuf> {
        let file = |name: usize| {
            let path = folder.join(name.to_string());
            std::fs::write(&path, vec![name as u8; MIB]).expect("a file");
            path
        };
        (0..count).map(file).collect()
    }

    fn ask(socket: &UnixStream, blob: usize) -> ArrayReply {
        let call = ArrayCall::Array { device: DEVICE.to_owned(), blob, offset: 0, size: MIB as u64 };
        passing::send(socket, &call, &[]).expect("the holder listens");
        passing::receive(socket).expect("it answers").expect("it is there").0
    }

    fn finish(socket: &UnixStream) -> u64 {
        passing::send(socket, &ArrayCall::Finish, &[]).expect("the holder listens");
        match passing::receive(socket).expect("it answers").expect("it is there").0 {
            ArrayReply::Finished { copied } => copied,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_load_that_is_given_up_halfway_leaves_what_came() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = files(folder.path(), 8);
        let here = InProcessHolder::new(Keep::Bytes(0));
        let before = here.free(DEVICE).expect("a device");
        let socket = here.socket(DEVICE, &paths).expect("a session");
        let parts = (0..8).map(|blob| BlobPart { blob, offset: 0, size: MIB as u64 }).collect();
        passing::send(&socket, &ArrayCall::Coming { device: DEVICE.to_owned(), parts }, &[]).expect("it listens");
        for blob in 0..4 {
            assert!(matches!(ask(&socket, blob), ArrayReply::At { .. }));
        }
        drop(socket);
        assert_eq!(here.free(DEVICE).expect("a device"), before, "nobody uses anything");
        let socket = here.socket(DEVICE, &paths).expect("a session");
        (0..8).for_each(|blob| assert!(matches!(ask(&socket, blob), ArrayReply::At { .. })));
        assert_eq!(finish(&socket), 4 * MIB as u64, "the other half");
    }

    #[test]
    fn who_finds_no_room_is_told_and_harms_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = files(folder.path(), 20);
        let here = InProcessHolder::new(Keep::Percent(100));
        let first = here.socket(DEVICE, &paths[..12]).expect("a session");
        (0..12).for_each(|blob| assert!(matches!(ask(&first, blob), ArrayReply::At { .. })));
        assert_eq!(finish(&first), 12 * MIB as u64);
        let second = here.socket(DEVICE, &paths[8..]).expect("a session");
        let found: Vec<ArrayReply> = (0..12).map(|blob| ask(&second, blob)).collect();
        assert_eq!(found.iter().filter(|reply| matches!(reply, ArrayReply::At { .. })).count(), 8, "{found:?}");
        let ArrayReply::Failed { kind: FailureKind::OutOfMemory, error } = &found[8] else { panic!("{found:?}") };
        assert!(error.contains("not enough device memory for the model's weights"), "{error}");
        drop((first, second));
        // All arrays can be evicted once their sessions have ended.
        here.free(DEVICE).expect("a device");
        let third = here.socket(DEVICE, &paths[4..]).expect("a session");
        (0..16).for_each(|blob| assert!(matches!(ask(&third, blob), ArrayReply::At { .. }), "{blob}"));
        assert!(finish(&third) < 16 * MIB as u64, "some of it was there");
    }

    #[test]
    fn a_runner_that_asks_for_what_there_is_not_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = files(folder.path(), 1);
        let here = InProcessHolder::new(Keep::Percent(100));
        for (device, blob, offset, said) in
            [(DEVICE, 0, 1, "exceed blob"), (DEVICE, 9, 0, "names blob 9"), ("emulated:17", 0, 0, "reserved no memory")]
        {
            let socket = here.socket(DEVICE, &paths).expect("a session");
            let part = BlobPart { blob, offset, size: MIB as u64 };
            let calls = [
                ArrayCall::Coming { device: device.to_owned(), parts: vec![part.clone()] },
                ArrayCall::Array { device: device.to_owned(), blob, offset: part.offset, size: part.size },
            ];
            for call in &calls {
                passing::send(&socket, call, &[]).expect("the holder listens");
            }
            let reply = passing::receive(&socket).expect("it answers").expect("it is there").0;
            let ArrayReply::Failed { error, .. } = &reply else { panic!("{reply:?}") };
            assert!(error.contains(said), "{error}");
        }
    }
}
