//! A plain client of a registry: it follows no redirect, and every answer can say what was asked.

use content::{Algorithm, Digest, Hasher};
use reqwest::header::HeaderMap;
use reqwest::{Client, Method, RequestBuilder, Url};
use serde_json::Value;

use crate::server::{self, Server};
use crate::support::skip;

/// What daemons of these tests are started with.
const ENVIRONMENT: [(&str, &str); 0] = [];

/// The registry under test.
pub(super) struct Registry {
    /// The daemon; a registry that `LODE_TEST_REGISTRY` names has none.
    server: Option<Server>,
    pub(super) base: Url,
    http: Client,
}

impl Registry {
    /// A daemon with an empty store, or the registry that `LODE_TEST_REGISTRY` names.
    pub(super) async fn start() -> Self {
        match std::env::var("LODE_TEST_REGISTRY") {
            Ok(base) => Self { server: None, base: base.parse().expect("LODE_TEST_REGISTRY is a URL"), http: client() },
            Err(_) => Self::of(Server::start(&ENVIRONMENT).await),
        }
    }

    /// A daemon with an empty store; none, and a word about it, where `LODE_TEST_REGISTRY` names something else.
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

    /// The same, with variables in the environment of the new daemon.
    pub(super) async fn restart_with(self, more: &[(&str, &str)]) -> Self {
        let environment = [ENVIRONMENT.as_slice(), more].concat();
        Self::of(self.server.expect("a daemon").restart(&environment).await)
    }

    /// Sends a request that the daemon is to die of.
    pub(super) async fn send_to_death(&mut self, request: RequestBuilder) {
        // The connection breaks with the daemon.
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

    /// A path below the root, with its query.
    pub(super) fn url(&self, path: &str) -> Url {
        self.base.join(path).expect("a path")
    }

    /// A request for a path.
    pub(super) fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, self.url(path))
    }

    /// A request for what an answer pointed at. The registry may have been started anew since, on another port.
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

/// A client that speaks to this machine and follows no redirect. Each request has a connection of its own: a server
/// may close one after an answer that did not wait for the whole body.
fn client() -> Client {
    let builder = server::http().redirect(reqwest::redirect::Policy::none()).pool_max_idle_per_host(0);
    builder.build().expect("a client")
}

/// Sends a request and reads the whole answer.
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

/// A whole answer.
pub(super) struct Reply {
    /// Method and URL of the request.
    asked: String,
    url: Url,
    pub(super) status: u16,
    headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

impl Reply {
    /// Checks the status.
    #[track_caller]
    pub(super) fn is(self, status: u16) -> Self {
        self.any_of(&[status])
    }

    /// Checks the status where the specification leaves a choice.
    #[track_caller]
    pub(super) fn any_of(self, statuses: &[u16]) -> Self {
        assert!(statuses.contains(&self.status), "{self}: expected {statuses:?}");
        self
    }

    /// Checks a header's value.
    #[track_caller]
    pub(super) fn has(self, name: &str, value: &str) -> Self {
        let found = self.find(name);
        assert_eq!(found, Some(value), "{self}: header {name}");
        self
    }

    /// Checks the body.
    #[track_caller]
    pub(super) fn holds(self, body: &[u8]) -> Self {
        assert!(self.body == body, "{self}: expected a body of {} bytes, beginning {:?}", body.len(), shown(body));
        self
    }

    /// A header, if it is there and readable.
    pub(super) fn find(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// A header that must be there.
    #[track_caller]
    pub(super) fn header(&self, name: &str) -> String {
        self.find(name).unwrap_or_else(|| panic!("{self}: no header {name}")).to_owned()
    }

    /// All words of a header that lists some, by commas or by repetition.
    pub(super) fn words(&self, name: &str) -> Vec<String> {
        let values = self.headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).map(|word| word.trim().to_owned()).collect()
    }

    /// Where `Location` points; it may be relative.
    #[track_caller]
    pub(super) fn location(&self) -> Url {
        let text = self.header("Location");
        self.url.join(&text).unwrap_or_else(|e| panic!("{self}: Location {text:?}: {e}"))
    }

    /// Where `Link` says that the next page is.
    #[track_caller]
    pub(super) fn next(&self) -> Option<Url> {
        let text = self.find("Link")?;
        let target = text.strip_prefix('<').and_then(|rest| rest.split_once('>'));
        let Some((target, parameters)) = target else { panic!("{self}: Link {text:?}") };
        assert!(parameters.replace(' ', "").contains(r#"rel="next""#), "{self}: Link {text:?}");
        Some(self.url.join(target).unwrap_or_else(|e| panic!("{self}: Link {text:?}: {e}")))
    }

    /// The body as JSON.
    #[track_caller]
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{self}: not JSON: {e}"))
    }

    /// Checks that it is a refusal as the specification has them, with one of these codes.
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

/// Bytes with the name that they have, or are said to have.
#[derive(Clone)]
pub(super) struct Blob {
    pub(super) digest: Digest,
    pub(super) bytes: Vec<u8>,
}

impl Blob {
    pub(super) fn new(algorithm: Algorithm, bytes: &[u8]) -> Self {
        Self { digest: digest(algorithm, bytes), bytes: bytes.to_vec() }
    }

    /// Bytes without a pattern, the same each time, others for each label.
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

    /// The digest of these bytes with others after them.
    pub(super) fn spoiled(mut self) -> Self {
        self.bytes.extend_from_slice(b" and more");
        self
    }
}

/// The digest of bytes.
pub(super) fn digest(algorithm: Algorithm, bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::new(algorithm);
    hasher.update(bytes);
    hasher.finish()
}

/// A URL with another parameter in its query.
pub(super) fn with_query(mut url: Url, name: &str, value: &str) -> Url {
    url.query_pairs_mut().append_pair(name, value);
    url
}
