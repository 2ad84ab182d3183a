//! The operations of the fault injection tests.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::Server;
use crate::support::{list, tiny_model, variant};

/// An operation of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Create,
    Adopt,
    Own,
    Move,
    Pull,
    Push,
    Remove,
    Collect,
    Copy,
    Quantize,
    Save,
    Load,
    Export,
    Repair,
}

/// The outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// The error message.
    Refused(String),
}

/// The message for a response that broke off.
const BROKE_OFF: &str = "the answer broke off";
/// A model of the daemon that no operation changes.
const KEPT: &str = "kept";

/// Creates the models that the operations need on both daemons.
pub(super) async fn prepare(server: &Server, peer: &Server) {
    server.create(KEPT, &tiny_model()).await;
    peer.create("theirs", variant(1).path()).await;
}

/// The request that adopts a model.
fn in_place(server: &Server) -> Value {
    let folder = server.home().with_file_name("source");
    if !folder.is_dir() {
        let source = variant(3);
        std::fs::create_dir(&folder).expect("a folder");
        for path in crate::support::entries(source.path()) {
            std::fs::copy(&path, folder.join(crate::support::name(&path))).expect("a copy");
        }
    }
    json!({"model": "m", "path": folder, "in_place": true, "stream": false})
}

/// The root of the daemon's store, which the faults do not concern.
pub(super) fn root(server: &Server) -> std::path::PathBuf {
    server.home().with_file_name("root")
}

/// Returns the reference of a model at the peer.
fn at(peer: &Server, name: &str) -> String {
    format!("{}/library/{name}", peer.address)
}

async fn outcome(sent: Result<reqwest::Response, reqwest::Error>) -> Outcome {
    let response = match sent {
        Ok(response) => response,
        Err(error) => panic!("the daemon does not answer: {error}"),
    };
    let good = response.status().is_success();
    let Ok(text) = response.text().await else { return Outcome::Refused(BROKE_OFF.to_owned()) };
    let last: Value = text.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    match last["error"].as_str() {
        Some(error) => Outcome::Refused(error.to_owned()),
        None if good => Outcome::Done,
        None => Outcome::Refused(text),
    }
}

async fn asked(server: &Server, method: Method, path: &str, body: &Value) -> Outcome {
    outcome(server.http.request(method, server.url(path)).json(body).send().await).await
}

/// Makes a request whose response is a stream with a `Content-Length`.
async fn streamed(server: &Server, path: &str, body: &Value) -> Outcome {
    let response = server.http.post(server.url(path)).json(body).send().await.expect("the daemon answers");
    let status = response.status();
    match response.bytes().await {
        Ok(_) if status.is_success() => Outcome::Done,
        Ok(bytes) => Outcome::Refused(String::from_utf8_lossy(&bytes).into_owned()),
        Err(_) => Outcome::Refused(BROKE_OFF.to_owned()),
    }
}

async fn names(server: &Server) -> Vec<String> {
    let tags = server.http.get(server.url("/api/tags")).send().await.expect("the daemon answers");
    let tags: Value = tags.json().await.expect("JSON");
    let names = list(&tags["models"]).iter().map(|model| model["name"].as_str().expect("a name").to_owned());
    names.map(|name| name.trim_end_matches(":latest").to_owned()).collect()
}

async fn remove(server: &Server, name: &str) {
    // The model may not exist.
    let _ = asked(server, Method::DELETE, "/api/delete", &json!({"model": name})).await;
}

/// Returns an archive of the peer's model.
async fn archive(peer: &Server) -> Vec<u8> {
    let answer = peer.post("/api/save", &json!({"models": ["theirs"]})).await;
    answer.bytes().await.expect("an archive").to_vec()
}

async fn runs(server: &Server, model: &str) {
    let answer = server.ask("/api/show", &json!({"model": model})).await;
    assert!(answer["details"]["format"].is_string(), "{answer}");
    let tar = server.post("/api/save", &json!({"models": [model]})).await;
    assert!(tar.status().is_success(), "all of `{model}` is to be there");
    tar.bytes().await.expect("a whole archive");
}

impl Operation {
    pub(super) const ALL: [Self; 14] = [
        Self::Create,
        Self::Adopt,
        Self::Own,
        Self::Move,
        Self::Pull,
        Self::Push,
        Self::Remove,
        Self::Collect,
        Self::Copy,
        Self::Quantize,
        Self::Save,
        Self::Load,
        Self::Export,
        Self::Repair,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Adopt => "adopt",
            Self::Own => "own",
            Self::Move => "move",
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Remove => "rm",
            Self::Collect => "gc",
            Self::Copy => "copy",
            Self::Quantize => "quantize",
            Self::Save => "save",
            Self::Load => "load",
            Self::Export => "export",
            Self::Repair => "repair",
        }
    }

    /// Prepares both daemons so that the operation has all of its work to do.
    pub(super) async fn reset(self, server: &Server, peer: &Server) {
        match self {
            Self::Create | Self::Adopt | Self::Copy | Self::Quantize => remove(server, "m").await,
            Self::Own => {
                remove(server, "m").await;
                server.ask("/api/create", &in_place(server)).await;
            }
            Self::Move => {
                // The root may not exist.
                let _ = std::fs::remove_dir_all(root(server));
                server.create("m", variant(2).path()).await;
            }
            Self::Pull => remove(server, &at(peer, "theirs")).await,
            Self::Push => {
                remove(peer, "pushed").await;
                let copy = json!({"source": KEPT, "destination": at(peer, "pushed")});
                server.post("/api/copy", &copy).await;
            }
            Self::Remove => {
                server.create("m", variant(2).path()).await;
            }
            Self::Collect => {
                server.create("m", variant(2).path()).await;
                // A crash before the collection leaves the store like this: the blobs exist without
                // the tag.
                std::fs::remove_file(tag(server)).expect("a tag");
            }
            Self::Load => remove(server, "theirs").await,
            Self::Save | Self::Export => {}
            Self::Repair => {
                let name = at(peer, "theirs");
                if !names(server).await.contains(&name) {
                    let pull = json!({"model": name, "insecure": true, "stream": false});
                    server.ask("/api/pull", &pull).await;
                }
                let shown = server.ask("/api/lode/history", &json!({"model": name})).await;
                damage(server, shown["versions"][0]["digest"].as_str().expect("a digest"));
            }
        }
    }

    pub(super) async fn act(self, server: &Server, peer: &Server) -> Outcome {
        match self {
            Self::Create => {
                let other = variant(3);
                asked(server, Method::POST, "/api/create", &json!({"model": "m", "path": other.path()})).await
            }
            Self::Adopt => asked(server, Method::POST, "/api/create", &in_place(server)).await,
            Self::Own => asked(server, Method::POST, "/api/lode/own", &json!({"model": "m"})).await,
            Self::Move => {
                let request = json!({"models": ["m"], "to": root(server), "create": true});
                reported(server, "/api/lode/move", &request, Value::as_str).await
            }
            Self::Pull => {
                let pull = json!({"model": at(peer, "theirs"), "insecure": true});
                asked(server, Method::POST, "/api/pull", &pull).await
            }
            Self::Push => {
                let push = json!({"model": at(peer, "pushed"), "insecure": true});
                asked(server, Method::POST, "/api/push", &push).await
            }
            Self::Remove => asked(server, Method::DELETE, "/api/delete", &json!({"model": "m"})).await,
            Self::Collect => asked(server, Method::POST, "/api/lode/gc", &json!({})).await,
            Self::Copy => asked(server, Method::POST, "/api/copy", &json!({"source": KEPT, "destination": "m"})).await,
            Self::Quantize => {
                let create = json!({"model": "m", "from": KEPT, "quantize": "q8_0"});
                asked(server, Method::POST, "/api/create", &create).await
            }
            Self::Save => streamed(server, "/api/save", &json!({"models": [KEPT]})).await,
            Self::Load => {
                outcome(server.http.post(server.url("/api/load")).body(archive(peer).await).send().await).await
            }
            Self::Export => streamed(server, "/api/export", &json!({"model": KEPT, "format": "safetensors"})).await,
            Self::Repair => repaired(server, peer).await,
        }
    }

    /// Asserts that the operation has taken effect.
    pub(super) async fn verify(self, server: &Server, peer: &Server) {
        match self {
            Self::Create | Self::Adopt | Self::Own | Self::Move | Self::Copy | Self::Quantize => {
                runs(server, "m").await;
            }
            Self::Pull | Self::Repair => runs(server, &at(peer, "theirs")).await,
            Self::Push => runs(peer, "pushed").await,
            Self::Remove => assert!(!names(server).await.contains(&"m".to_owned()), "it is still there"),
            Self::Load => runs(server, "theirs").await,
            Self::Collect | Self::Save | Self::Export => runs(server, KEPT).await,
        }
    }

    /// Whether an error names the cause. A response with a `Content-Length` can only break off.
    pub(super) fn is_clear(self, text: &str) -> bool {
        const SYSTEM: [&str; 6] = [
            "No space left on device",
            "Input/output error",
            "Read-only file system",
            "Too many open files",
            "Cannot allocate memory",
            "write zero",
        ];
        SYSTEM.iter().any(|said| text.contains(said))
            || (matches!(self, Self::Save | Self::Export) && text == BROKE_OFF)
    }

    /// Whether the operation succeeds again after it has taken effect.
    pub(super) fn can_be_repeated(self) -> bool {
        !matches!(self, Self::Remove | Self::Move)
    }

    /// Whether an error says that the operation had already taken effect.
    pub(super) fn was_done(self, outcome: &Outcome) -> bool {
        let said = |said: &str| matches!(outcome, Outcome::Refused(text) if text.contains(said));
        (self == Self::Remove && said("not found")) || (self == Self::Move && said("already"))
    }
}

/// Repairs a model. A report with failures counts as an error.
async fn repaired(server: &Server, peer: &Server) -> Outcome {
    let request = json!({"model": at(peer, "theirs")});
    reported(server, "/api/lode/repair", &request, |failed| failed["error"].as_str()).await
}

/// Makes a request whose last line is a report with failures, each of which has a text.
async fn reported(server: &Server, path: &str, request: &Value, text_of: fn(&Value) -> Option<&str>) -> Outcome {
    let response = server.http.post(server.url(path)).json(request).send().await;
    let response = response.expect("the daemon answers");
    let text = response.text().await.unwrap_or_default();
    let last: Value = text.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    match &last["report"]["failed"] {
        Value::Array(failed) if failed.is_empty() => Outcome::Done,
        Value::Array(failed) => Outcome::Refused(text_of(&failed[0]).unwrap_or_default().to_owned()),
        _ => Outcome::Refused(last["error"].as_str().unwrap_or(&text).to_owned()),
    }
}

/// Truncates a blob of a model.
fn damage(server: &Server, manifest: &str) {
    let raw = crate::stored::blob(&server.home(), manifest);
    let manifest: Value = serde_json::from_slice(&raw).expect("a manifest");
    let digest = manifest["layers"][0]["digest"].as_str().expect("a digest");
    let path = crate::stored::path(&server.home(), digest);
    let bytes = crate::support::read(&path);
    std::fs::remove_file(&path).expect("a blob");
    std::fs::write(&path, &bytes[..bytes.len() - 1]).expect("a damaged blob");
}

/// Returns the tag file of the model that the operation removes.
fn tag(server: &Server) -> std::path::PathBuf {
    let tags = crate::stored::tags(&server.home());
    let is_it = |path: &std::path::PathBuf| path.parent().is_some_and(|folder| folder.ends_with("m"));
    tags.into_iter().find(is_it).expect("the tag of `m`")
}
