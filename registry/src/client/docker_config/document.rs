//! The JSON of `config.json`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::helper;
use crate::client::{Credential, Error};

/// Maximum length of a file in bytes.
const LONGEST: u64 = 4 << 20;
/// Docker's name for Docker Hub.
const HUB: &str = "https://index.docker.io/v1/";
/// The keys of an entry that contain parts of a login.
const SECRETS: [&str; 5] = ["auth", "username", "password", "identitytoken", "registrytoken"];

/// The contents of a file. Unknown content is kept unchanged.
#[derive(Default)]
pub(super) struct ConfigFile {
    path: PathBuf,
    root: Map<String, Value>,
}

/// The place of a host's login.
pub(super) enum Keeper {
    File,
    /// A helper named for this host.
    Helper(String),
    /// A helper named for all hosts.
    DefaultHelper(String),
}

/// The server name of a host for helpers.
pub(super) fn server(host: &str) -> String {
    if canonical(host) == "docker.io" { HUB.to_owned() } else { host.to_owned() }
}

impl ConfigFile {
    /// Reads a file; `None` if it does not exist.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, Error> {
        let failed = |source| Error::File { operation: "read the logins in", path: path.to_owned(), source };
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let mut bytes = Vec::new();
        file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
        let malformed = |what: String| {
            Error::Settings(format!("`{}` {what}; correct it or remove it and log in again", path.display()))
        };
        if bytes.len() as u64 > LONGEST {
            return Err(malformed(format!("is longer than {LONGEST} bytes")));
        }
        if bytes.trim_ascii().is_empty() {
            return Ok(Some(Self { path: path.to_owned(), root: Map::new() }));
        }
        // The parser's error contains a position and no content.
        let root = serde_json::from_slice(&bytes)
            .map_err(|error| malformed(format!("is not a file of logins, a JSON object is expected: {error}")))?;
        Ok(Some(Self { path: path.to_owned(), root }))
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut text = format!("{:#}", Value::Object(self.root.clone())).into_bytes();
        text.push(b'\n');
        text
    }

    /// Returns the place of the login for `host`.
    pub(super) fn keeper(&self, host: &str) -> Result<Keeper, Error> {
        let named = |value: &Value| value.as_str().filter(|name| !name.is_empty()).map(str::to_owned);
        let own = self
            .root
            .get("credHelpers")
            .and_then(Value::as_object)
            .and_then(|helpers| matching(helpers, host).into_iter().find_map(|key| named(helpers.get(&key)?)));
        let (name, keeper): (String, fn(String) -> Keeper) = match (own, self.root.get("credsStore").and_then(named)) {
            (Some(name), _) => (name, Keeper::Helper),
            (None, Some(name)) => (name, Keeper::DefaultHelper),
            (None, None) => return Ok(Keeper::File),
        };
        helper::check_name(&name).map_err(|reason| Error::Settings(format!("`{}`: {reason}", self.path.display())))?;
        Ok(keeper(name))
    }

    /// Returns the login that the file itself contains.
    pub(super) fn find(&self, host: &str) -> Result<Option<Credential>, Error> {
        let Some(entries) = self.root.get("auths").and_then(Value::as_object) else { return Ok(None) };
        for key in matching(entries, host) {
            let Some(entry) = entries.get(&key).and_then(Value::as_object) else { continue };
            let found = credential(entry).map_err(|reason| {
                Error::Settings(format!(
                    "the login for `{key}` in `{}` {reason}; run `lode login {host}`",
                    self.path.display()
                ))
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Replaces all logins for `host` by this one.
    pub(super) fn set(&mut self, host: &str, credential: &Credential) -> Result<(), Error> {
        let (name, value) = match credential {
            Credential::Password { user, .. } if user.contains(':') => {
                return Err(Error::Settings(format!(
                    "the user `{user}` has a colon, which a file of logins cannot hold"
                )));
            }
            Credential::Password { user, password } => ("auth", STANDARD.encode(format!("{user}:{password}"))),
            Credential::IdentityToken(token) => ("identitytoken", token.clone()),
            Credential::Bearer(token) => ("registrytoken", token.clone()),
        };
        let mut entry = self.forget(host);
        entry.insert(name.to_owned(), value.into());
        self.put(host, entry);
        Ok(())
    }

    /// Marks that a helper has a login for `host`.
    pub(super) fn mark(&mut self, host: &str) {
        let entry = self.forget(host);
        self.put(host, entry);
    }

    /// Removes all entries for `host` and returns whether there were any.
    pub(super) fn remove(&mut self, host: &str) -> bool {
        let Some(entries) = self.root.get_mut("auths").and_then(Value::as_object_mut) else { return false };
        let keys = matching(entries, host);
        for key in &keys {
            entries.shift_remove(key);
        }
        !keys.is_empty()
    }

    /// Removes all entries for `host`, and returns the content of the first one without the login.
    fn forget(&mut self, host: &str) -> Map<String, Value> {
        let entries = self.root.get("auths").and_then(Value::as_object);
        let first =
            entries.and_then(|entries| entries.get(matching(entries, host).first()?)).and_then(Value::as_object);
        let mut rest = first.cloned().unwrap_or_default();
        rest.retain(|name, _| !SECRETS.contains(&name.as_str()));
        self.remove(host);
        rest
    }

    fn put(&mut self, host: &str, entry: Map<String, Value>) {
        let entries = self.root.entry("auths").or_insert_with(|| json!({}));
        if !entries.is_object() {
            *entries = json!({});
        }
        if let Some(entries) = entries.as_object_mut() {
            entries.insert(server(host), Value::Object(entry));
        }
    }
}

/// The keys that stand for `host`. An exact match comes first.
fn matching(entries: &Map<String, Value>, host: &str) -> Vec<String> {
    let wanted = canonical(host);
    let mut keys: Vec<String> = entries.keys().filter(|key| canonical(key) == wanted).cloned().collect();
    keys.sort_by_key(|key| key != host);
    keys
}

/// One spelling per host. Keys may contain schemes and paths from earlier versions of the protocol,
/// and Docker Hub has several names.
fn canonical(key: &str) -> String {
    let lower = key.to_ascii_lowercase();
    let bare = lower.strip_prefix("https://").or_else(|| lower.strip_prefix("http://")).unwrap_or(&lower);
    let bare = bare.trim_end_matches('/');
    let bare = bare.strip_suffix("/v1").or_else(|| bare.strip_suffix("/v2")).unwrap_or(bare);
    match bare {
        "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
        other => other.to_owned(),
    }
}

fn credential(entry: &Map<String, Value>) -> Result<Option<Credential>, &'static str> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(token) = text("registrytoken") {
        return Ok(Some(Credential::Bearer(token.to_owned())));
    }
    if let Some(token) = text("identitytoken") {
        return Ok(Some(Credential::IdentityToken(token.to_owned())));
    }
    if let Some(auth) = text("auth") {
        let bytes = STANDARD.decode(auth.trim()).map_err(|_| "has an `auth` that is not base64")?;
        let decoded = String::from_utf8(bytes).map_err(|_| "has an `auth` that is not text")?;
        let (user, password) = decoded.split_once(':').ok_or("has an `auth` that is not `user:password`")?;
        // Old versions of Docker padded passwords.
        let password = password.trim_end_matches('\0').to_owned();
        return Ok(Some(Credential::Password { user: user.to_owned(), password }));
    }
    let pair = text("username").zip(text("password"));
    Ok(pair.map(|(user, password)| Credential::Password { user: user.to_owned(), password: password.to_owned() }))
}
