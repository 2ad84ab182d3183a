//! A plain registry client. It follows no redirects, and every reply can name its request.

use content::{Algorithm, Digest, Hasher};
use reqwest::header::HeaderMap;
use reqwest::{Client, Method, RequestBuilder, Url};
use serde_json::Value;

use crate::server::{self, Server};
use crate::support::skip;

/// Environment variables of these tests' daemons.
const ENVIRONMENT: [(&str, &str); 0] = [];

/// The registry under test.
pub(super) struct Registry {
    /// The daemon; `None` if `LODE_TEST_REGISTRY` names the registry.
    server: Option<Server>,
    pub(super) base: Url,
    http: Client,
}

impl Registry {
    /// Returns a daemon with an empty store, or the registry that `LODE_TEST_REGISTRY` names.
    pub(super) async fn start() -> Self {
        match std::env::var("LODE_TEST_REGISTRY") {
            Ok(base) => Self { server: None, base: base.parse().expect("LODE_TEST_REGISTRY is a URL"), http: client() },
            Err(_) => Self::of(Server::start(&ENVIRONMENT).await),
        }
    }

    /// Returns a daemon with an empty store. If `LODE_TEST_REGISTRY` names another registry,
    /// reports the test as skipped and returns `None`.
    pub(super) async fn daemon(test: &str) -> Option<Self> {
        if std::env::var_os("LODE_TEST_REGISTRY").is_some() {
            skip(test, "it needs a daemon of its own, LODE_TEST_REGISTRY names another registry");
            return None;
        }
        Some(Self::of(Server::start(&ENVIRONMENT).await))
    }

    fn of(server: Server) -> Self {
        let base = server.url("/").parse().expect("a URL");
        Self { server: Some(server), base, http: client() }
    }

    /// Kills the daemon as `kill -9` does and starts another on the same store.
    pub(super) async fn restart(self) -> Self {
        self.restart_with(&[]).await
    }

    /// Restarts the daemon likewise, with more environment variables.
    pub(super) async fn restart_with(self, more: &[(&str, &str)]) -> Self {
        let environment = [ENVIRONMENT.as_slice(), more].concat();
        Self::of(self.server.expect("a daemon").restart(&environment).await)
    }

    /// Sends a request during which the daemon crashes, and waits for the daemon's end.
    pub(super) async fn send_to_death(&mut self, request: RequestBuilder) {
        // The connection breaks when the daemon dies.
        if let Ok(answer) = request.send().await {
            let _ = answer.bytes().await;
        }
        let server = self.server.as_mut().expect("a daemon");
        assert!(server.ended(std::time::Duration::from_mins(1)).await, "the daemon was to be killed");
    }

    /// The daemon.
    pub(super) fn server(&self) -> &Server {
        self.server.as_ref().expect("a daemon")
    }

    /// `HOST:PORT`.
    pub(super) fn address(&self) -> String {
        let host = self.base.host_str().expect("a host");
        format!("{host}:{}", self.base.port().expect("a port"))
    }

    /// Returns the URL of a path, which may contain a query.
    pub(super) fn url(&self, path: &str) -> Url {
        self.base.join(path).expect("a path")
    }

    /// Returns a request for a path.
    pub(super) fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, self.url(path))
    }

    /// Returns a request for a URL from an earlier reply. The port is replaced, because the
    /// registry may have restarted on another one since.
    pub(super) fn ask_at(&self, method: Method, place: &Url) -> RequestBuilder {
        let mut url = place.clone();
        url.set_port(self.base.port()).expect("a port");
        self.http.request(method, url)
    }

    pub(super) async fn get(&self, path: &str) -> Reply {
        reply(self.ask(Method::GET, path)).await
    }

    pub(super) async fn head(&self, path: &str) -> Reply {
        reply(self.ask(Method::HEAD, path)).await
    }

    pub(super) async fn delete(&self, path: &str) -> Reply {
        reply(self.ask(Method::DELETE, path)).await
    }

    pub(super) async fn post(&self, path: &str) -> Reply {
        reply(self.ask(Method::POST, path)).await
    }

    /// Puts a document with its type.
    pub(super) async fn put(&self, path: &str, media_type: &str, document: &[u8]) -> Reply {
        reply(self.ask(Method::PUT, path).header("Content-Type", media_type).body(document.to_vec())).await
    }
}

/// Returns a client that connects only to this machine and follows no redirects. Each request has
/// its own connection, because a server may close the connection after a reply that did not wait
/// for the whole body.
fn client() -> Client {
    let builder = server::http().redirect(reqwest::redirect::Policy::none()).pool_max_idle_per_host(0);
    builder.build().expect("a client")
}

/// Sends a request and reads the whole reply.
pub(super) async fn reply(request: RequestBuilder) -> Reply {
    let (client, request) = request.build_split();
    let request = request.expect("a request");
    let asked = format!("{} {}", request.method(), request.url());
    let response = client.execute(request).await.unwrap_or_else(|e| panic!("{asked}: no answer: {e}"));
    let (status, headers, url) = (response.status().as_u16(), response.headers().clone(), response.url().clone());
    let body =
        response.bytes().await.unwrap_or_else(|e| panic!("{asked}: {status}, the body breaks off: {e}")).to_vec();
    Reply { asked, url, status, headers, body }
}

/// A complete reply.
pub(super) struct Reply {
    /// Method and URL of the request.
    asked: String,
    url: Url,
    pub(super) status: u16,
    headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

impl Reply {
    /// Asserts the status.
    #[track_caller]
    pub(super) fn is(self, status: u16) -> Self {
        self.any_of(&[status])
    }

    /// Asserts the status where the specification leaves a choice.
    #[track_caller]
    pub(super) fn any_of(self, statuses: &[u16]) -> Self {
        assert!(statuses.contains(&self.status), "{self}: expected {statuses:?}");
        self
    }

    /// Asserts a header's value.
    #[track_caller]
    pub(super) fn has(self, name: &str, value: &str) -> Self {
        let found = self.find(name);
        assert_eq!(found, Some(value), "{self}: header {name}");
        self
    }

    /// Asserts the body.
    #[track_caller]
    pub(super) fn holds(self, body: &[u8]) -> Self {
        assert!(self.body == body, "{self}: expected a body of {} bytes, beginning {:?}", body.len(), shown(body));
        self
    }

    /// Returns a header, if it exists and is text.
    pub(super) fn find(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns a header that must exist.
    #[track_caller]
    pub(super) fn header(&self, name: &str) -> String {
        self.find(name).unwrap_or_else(|| panic!("{self}: no header {name}")).to_owned()
    }

    /// Returns all words of a list header, whether separated by commas or by repeated headers.
    pub(super) fn words(&self, name: &str) -> Vec<String> {
        let values = self.headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).map(|word| word.trim().to_owned()).collect()
    }

    /// Returns the target of `Location`, which may be relative.
    #[track_caller]
    pub(super) fn location(&self) -> Url {
        let text = self.header("Location");
        self.url.join(&text).unwrap_or_else(|e| panic!("{self}: Location {text:?}: {e}"))
    }

    /// Returns the URL of the next page from `Link`.
    #[track_caller]
    pub(super) fn next(&self) -> Option<Url> {
        let text = self.find("Link")?;
        let target = text.strip_prefix('<').and_then(|rest| rest.split_once('>'));
        let Some((target, parameters)) = target else { panic!("{self}: Link {text:?}") };
        assert!(parameters.replace(' ', "").contains(r#"rel="next""#), "{self}: Link {text:?}");
        Some(self.url.join(target).unwrap_or_else(|e| panic!("{self}: Link {text:?}: {e}")))
    }

    /// Returns the body as JSON.
    #[track_caller]
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{self}: not JSON: {e}"))
    }

    /// Asserts that the reply is a refusal in the specification's format, with one of these codes.
    #[track_caller]
    pub(super) fn refuses(self, codes: &[&str]) -> Self {
        assert!((400..500).contains(&self.status), "{self}: expected a refusal");
        let kind = self.header("Content-Type");
        assert!(kind.starts_with("application/json"), "{self}: Content-Type {kind}");
        let document = self.json();
        let errors = document["errors"].as_array().unwrap_or_else(|| panic!("{self}: no list of errors"));
        assert!(!errors.is_empty(), "{self}: an empty list of errors");
        for error in errors {
            let code = error["code"].as_str().unwrap_or_default();
            assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{self}: no message");
            assert!(codes.contains(&code), "{self}: expected one of {codes:?}");
        }
        self
    }
}

impl std::fmt::Display for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}, {:?}, {:?}", self.asked, self.status, self.headers, shown(&self.body))
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().take(300).collect()
}

/// Bytes with a digest, which may be wrong on purpose.
#[derive(Clone)]
pub(super) struct Blob {
    pub(super) digest: Digest,
    pub(super) bytes: Vec<u8>,
}

impl Blob {
    pub(super) fn new(algorithm: Algorithm, bytes: &[u8]) -> Self {
        Self { digest: digest(algorithm, bytes), bytes: bytes.to_vec() }
    }

    /// Returns pseudo-random bytes that depend only on the label.
    pub(super) fn sample(algorithm: Algorithm, label: &str, size: usize) -> Self {
        let mut bytes = Vec::with_capacity(size + 32);
        for block in 0_u32.. {
            if bytes.len() >= size {
                break;
            }
            bytes.extend_from_slice(Digest::of(format!("{label} {block}").as_bytes()).as_bytes());
        }
        bytes.truncate(size);
        Self::new(algorithm, &bytes)
    }

    /// Appends bytes and keeps the digest, which is wrong then.
    pub(super) fn spoiled(mut self) -> Self {
        self.bytes.extend_from_slice(b" and more");
        self
    }
}

/// Returns the digest of bytes.
pub(super) fn digest(algorithm: Algorithm, bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::new(algorithm);
    hasher.update(bytes);
    hasher.finish()
}

/// Adds a parameter to a URL's query.
pub(super) fn with_query(mut url: Url, name: &str, value: &str) -> Url {
    url.query_pairs_mut().append_pair(name, value);
    url
}
