//! The file of users, in the format of `htpasswd -B`.
//!
//! It has lines of `user:$2y$…`; empty lines and lines that begin with `#` are ignored. Each use
//! checks whether the file has changed, and reads it again if so. If it cannot be read again, the
//! users stay unchanged and a warning is logged.
//!
//! Hashing a password takes about a hundred times as long as the rest of a request. So correct
//! passwords are remembered until the file changes, few passwords are hashed at a time, and
//! requests beyond a limited queue are refused.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use content::Digest;
use ring::hmac;
use tokio::sync::Semaphore;

use super::AccessError;
use super::credentials::Password;
use super::password::{PasswordHash, check_password, is_user_name};

/// Maximum length of the file in bytes.
const MAX_FILE: u64 = 4 << 20;
/// Number of passwords that are hashed at a time.
const HASHED_AT_A_TIME: usize = 2;
const WAITING: usize = 64;
/// Maximum number of remembered passwords. Beyond it, all are forgotten.
const REMEMBERED: usize = 4096;
/// File times have a coarse resolution. If a file was modified less than this before it was read, a
/// later change may have the same time.
const UNSETTLED: Duration = Duration::from_secs(2);

/// Too many passwords wait to be checked.
#[derive(Debug)]
pub(super) struct Busy;

/// The users of one version of the file.
#[derive(Debug)]
pub(super) struct Users {
    hashes: HashMap<String, PasswordHash>,
    /// The hash for unknown users.
    nobody: PasswordHash,
    /// MACs of user names with correct passwords.
    remembered: Mutex<HashSet<[u8; 32]>>,
    /// A key for this version of the file and this process, so that the MACs are useless elsewhere.
    memory_key: hmac::Key,
}

impl Users {
    /// Parses the text of a file. An error has the number of the line.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut hashes = HashMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (user, hash) = line.split_once(':').ok_or_else(|| (number, "expected `user:hash`".to_owned()))?;
            if !is_user_name(user) {
                return Err((number, "the name of the user is empty, too long or has control characters".to_owned()));
            }
            let hash = PasswordHash::parse(hash).map_err(|reason| (number, reason))?;
            if hashes.insert(user.to_owned(), hash).is_some() {
                return Err((number, format!("`{user}` is there already; remove one of the lines")));
            }
        }
        let cost = hashes.values().map(PasswordHash::cost).max().unwrap_or(4);
        Ok(Self {
            hashes,
            nobody: PasswordHash::of_nobody(cost),
            remembered: Mutex::default(),
            memory_key: hmac::Key::new(hmac::HMAC_SHA256, &rand::random::<[u8; 32]>()),
        })
    }

    /// Whether the user exists.
    pub(super) fn contains(&self, user: &str) -> bool {
        self.hashes.contains_key(user)
    }

    /// Verifies the password. The time is the same if the user does not exist.
    fn verify(&self, user: &str, password: &Password) -> bool {
        let known = self.hashes.get(user);
        let right = known.unwrap_or(&self.nobody).verify(&password.0);
        let accepted = right && known.is_some();
        if accepted {
            let mut remembered = lock(&self.remembered);
            if remembered.len() >= REMEMBERED {
                remembered.clear();
            }
            remembered.insert(self.memory(user, password));
        }
        accepted
    }

    fn remembers(&self, user: &str, password: &Password) -> bool {
        lock(&self.remembered).contains(&self.memory(user, password))
    }

    /// The MAC of a user and a password. No name contains a zero byte, so the text is unambiguous.
    fn memory(&self, user: &str, password: &Password) -> [u8; 32] {
        let tag = hmac::sign(&self.memory_key, format!("{user}\0{}", password.0).as_bytes());
        tag.as_ref().try_into().expect("invariant: HMAC with SHA-256 has 32 bytes")
    }
}

/// Metadata that distinguishes two versions of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    changed: (i64, i64),
    inode: u64,
    length: u64,
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let file = path.metadata()?;
        Ok(Self {
            modified: file.modified()?,
            changed: (file.ctime(), file.ctime_nsec()),
            inode: file.ino(),
            length: file.len(),
        })
    }

    /// Whether a file that was read at `read`, and still has this stamp, is certainly unchanged.
    fn is_settled(&self, read: SystemTime) -> bool {
        read.duration_since(self.modified).is_ok_and(|age| age > UNSETTLED)
    }
}

/// The last version of the file that was read.
#[derive(Debug)]
struct Seen {
    stamp: Option<Stamp>,
    read: SystemTime,
    digest: Digest,
    users: Arc<Users>,
    /// The last warning, so that it is not repeated for each request.
    complaint: Option<String>,
}

/// The file of users, and its last known content.
#[derive(Debug)]
pub(super) struct UserFile {
    /// `None` if the users do not come from a file, and never change.
    path: Option<PathBuf>,
    seen: Mutex<Seen>,
    hashing: Arc<Semaphore>,
    queue: Arc<Semaphore>,
}

impl UserFile {
    /// Reads the file for the first time.
    pub(super) fn open(path: &Path) -> Result<Self, AccessError> {
        let read = SystemTime::now();
        let stamp = Stamp::of(path).map_err(|e| AccessError::io("read the users in", path, e))?;
        let (digest, users) = load(path)?;
        let seen = Seen { stamp: Some(stamp), read, digest, users: Arc::new(users), complaint: None };
        Ok(Self::with(Some(path.to_owned()), seen))
    }

    /// Reads users from a text in the format of the file.
    pub(super) fn from_text(text: &str) -> Result<Self, AccessError> {
        let users = Users::parse(text).map_err(|(line, reason)| AccessError::UserText { line, reason })?;
        let (read, digest) = (SystemTime::now(), Digest::of(text.as_bytes()));
        let seen = Seen { stamp: None, read, digest, users: Arc::new(users), complaint: None };
        Ok(Self::with(None, seen))
    }

    fn with(path: Option<PathBuf>, seen: Seen) -> Self {
        Self {
            path,
            seen: Mutex::new(seen),
            hashing: Arc::new(Semaphore::new(HASHED_AT_A_TIME)),
            queue: Arc::new(Semaphore::new(WAITING)),
        }
    }

    /// The current users of the file.
    pub(super) async fn current(self: &Arc<Self>) -> Arc<Users> {
        let file = Arc::clone(self);
        // This fails only while the program shuts down; the result does not matter then.
        let refreshed = tokio::task::spawn_blocking(move || file.refresh()).await;
        refreshed.unwrap_or_else(|_| Arc::clone(&lock(&self.seen).users))
    }

    /// Whether the password is the user's.
    pub(super) async fn authenticate(self: &Arc<Self>, user: &str, password: &Password) -> Result<bool, Busy> {
        if check_password(&password.0).is_err() {
            return Ok(false);
        }
        let users = self.current().await;
        if users.remembers(user, password) {
            return Ok(true);
        }
        let place = Arc::clone(&self.queue).try_acquire_owned().map_err(|_| Busy)?;
        let turn = Arc::clone(&self.hashing).acquire_owned().await.map_err(|_| Busy)?;
        // A concurrent request may have hashed the same password meanwhile.
        if users.remembers(user, password) {
            return Ok(true);
        }
        let (user, password) = (user.to_owned(), password.clone());
        let verified = tokio::task::spawn_blocking(move || {
            // The work continues if the client disconnects, so it keeps its permits.
            let _held = (place, turn);
            users.verify(&user, &password)
        });
        verified.await.map_err(|_| Busy)
    }

    fn refresh(&self) -> Arc<Users> {
        let mut seen = lock(&self.seen);
        let Some(path) = &self.path else { return Arc::clone(&seen.users) };
        let read = SystemTime::now();
        let stamp = Stamp::of(path).ok();
        if stamp.is_some_and(|now| Some(now) == seen.stamp && now.is_settled(seen.read)) {
            return Arc::clone(&seen.users);
        }
        match load(path) {
            Ok((digest, users)) => {
                if digest != seen.digest {
                    tracing::info!(path = %path.display(), users = users.hashes.len(), "the users have changed");
                    seen.users = Arc::new(users);
                    seen.digest = digest;
                }
                seen.complaint = None;
            }
            Err(error) => {
                let complaint = error.to_string();
                if seen.complaint.as_ref() != Some(&complaint) {
                    tracing::warn!("{complaint}; the users stay as they were");
                    seen.complaint = Some(complaint);
                }
            }
        }
        (seen.stamp, seen.read) = (stamp, read);
        Arc::clone(&seen.users)
    }
}

fn load(path: &Path) -> Result<(Digest, Users), AccessError> {
    let failed = |e| AccessError::io("read the users in", path, e);
    let wrong = |line, reason| AccessError::Users { path: path.to_owned(), line, reason };
    let mut text = String::new();
    File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text)).map_err(failed)?;
    if text.len() as u64 > MAX_FILE {
        return Err(wrong(0, format!("the file is longer than {MAX_FILE} bytes")));
    }
    let users = Users::parse(&text).map_err(|(line, reason)| wrong(line, reason))?;
    Ok((Digest::of(text.as_bytes()), users))
}

/// The data behind these locks is consistent at all times, so a poisoned lock is safe.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn line(user: &str, password: &str) -> String {
        format!("{user}:{}\n", bcrypt::hash(password, 4).expect("a hash"))
    }

    fn password(text: &str) -> Password {
        Password(text.to_owned())
    }

    fn file(text: &str) -> (tempfile::TempDir, Arc<UserFile>) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("users");
        fs::write(&path, text).expect("written");
        let file = UserFile::open(&path).expect("the file is read");
        (folder, Arc::new(file))
    }

    #[test]
    fn access_parses_htpasswd() {
        let text = format!("# who may\n\n{}\r\n  {}", line("anna", "a").trim(), line("béla", "b"));
        let users = Users::parse(&text).expect("two users");
        assert!(users.contains("anna") && users.contains("béla") && users.hashes.len() == 2);
        assert!(Users::parse("").expect("nobody").hashes.is_empty());
        for (bad, at, expect) in [
            ("anna".to_owned(), 1, "user:hash"),
            (format!("{}\n:x", line("anna", "a")), 3, "name"),
            ("# x\nanna:$apr1$x$y".to_owned(), 2, "only bcrypt"),
            (format!("{}{}", line("anna", "a"), line("anna", "b")), 2, "already"),
        ] {
            let (number, reason) = Users::parse(&bad).expect_err(&bad);
            assert!(number == at && reason.contains(expect), "line {number}: {reason}");
        }
        let (folder, _) = file("");
        let path = folder.path().join("users");
        fs::write(&path, "\nanna:plain").expect("written");
        let error = UserFile::open(&path).expect_err("not bcrypt").to_string();
        assert!(error.contains("line 2 of") && error.contains("users"), "{error}");
    }

    #[tokio::test]
    async fn access_remembers_passwords_that_were_right() {
        let (_folder, file) = file(&line("anna", "secret"));
        let users = file.current().await;
        assert!(file.authenticate("anna", &password("secret")).await.expect("checked"));
        assert!(users.remembers("anna", &password("secret")));
        for (user, wrong) in [("anna", "other"), ("anna", ""), ("nobody", "secret"), ("", "secret")] {
            assert!(!file.authenticate(user, &password(wrong)).await.expect("checked"), "{user}:{wrong}");
            assert!(!users.remembers(user, &password(wrong)), "{user}:{wrong}");
        }
        let long = "a".repeat(73);
        assert!(!file.authenticate("anna", &password(&long)).await.expect("refused unread"));
        // No password can be hashed now; remembered passwords still work.
        file.hashing.close();
        assert!(file.authenticate("anna", &password("secret")).await.expect("not hashed again"));
        assert!(file.authenticate("anna", &password("other")).await.is_err());
    }

    #[tokio::test]
    async fn access_refuses_what_waits_beyond_the_limit() {
        let (_folder, file) = file(&line("anna", "secret"));
        let all = Arc::clone(&file.queue).acquire_many_owned(WAITING as u32).await.expect("all places");
        assert!(file.authenticate("anna", &password("secret")).await.is_err());
        drop(all);
        assert!(file.authenticate("anna", &password("secret")).await.expect("checked"));
    }

    #[tokio::test]
    async fn access_reads_users_again() {
        let (folder, file) = file(&line("anna", "secret"));
        let path = folder.path().join("users");
        assert!(file.authenticate("anna", &password("secret")).await.expect("checked"));
        let before = file.current().await;
        fs::write(&path, line("anna", "newer.")).expect("written");
        assert!(!file.authenticate("anna", &password("secret")).await.expect("checked"), "the old one is forgotten");
        assert!(file.authenticate("anna", &password("newer.")).await.expect("checked"));
        assert!(!Arc::ptr_eq(&before, &file.current().await));
        let before = file.current().await;
        fs::write(&path, "anna:nonsense").expect("written");
        assert!(Arc::ptr_eq(&before, &file.current().await), "a bad file changes nothing");
        fs::remove_file(&path).expect("removed");
        assert!(Arc::ptr_eq(&before, &file.current().await), "nor does one that is gone");
        fs::write(&path, line("béla", "b")).expect("written");
        let after = file.current().await;
        assert!(!after.contains("anna") && after.contains("béla"));
    }
}
