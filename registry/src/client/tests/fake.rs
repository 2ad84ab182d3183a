//! A server with scripted responses that records its requests.

use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request as Incoming;
use axum::response::Response as Answer;
use reqwest::{Method, Url};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client::limits::HostLimits;
use crate::client::{Action, Credential, Credentials, Error, Host, HostSettings, Payload, Request, Scope};

/// A running server; dropping this value ends it.
pub(super) struct Fake {
    pub(super) address: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

/// A recorded request.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) headers: reqwest::header::HeaderMap,
    pub(super) body: bytes::Bytes,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("tests send ASCII"))
    }

    pub(super) fn authorization(&self) -> &str {
        self.header("authorization")
    }

    /// The values of a query parameter.
    pub(super) fn parameters(&self, name: &str) -> Vec<String> {
        let url = Url::parse(&format!("http://x/?{}", self.query)).expect("a query");
        url.query_pairs().filter(|(found, _)| found == name).map(|(_, value)| value.into_owned()).collect()
    }
}

impl Fake {
    /// Serves on a free port. `answer` gets each request, and the number of requests before it.
    pub(super) async fn serve(answer: impl Fn(&Seen, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (answer, list) = (Arc::new(answer), seen.clone());
        let handle = move |request: Incoming| {
            let (answer, list) = (answer.clone(), list.clone());
            async move {
                let request = read(request).await;
                let before = {
                    let mut list = list.lock().expect("no test panics while it holds this");
                    list.push(request.clone());
                    list.len() - 1
                };
                answer(&request, before)
            }
        };
        let router = Router::new().fallback(handle);
        let task = tokio::spawn(async move { axum::serve(listener, router).await.expect("serving") });
        Self { address, seen, task }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no test panics while it holds this").clone()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read(request: Incoming) -> Seen {
    let (head, body) = request.into_parts();
    Seen {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: head.headers,
        body: to_bytes(body, 64 << 20).await.unwrap_or_default(),
    }
}

/// A response with headers and a body.
pub(super) fn answer(status: u16, headers: &[(&str, &str)], body: impl Into<Body>) -> Answer {
    let mut builder = Answer::builder().status(status);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(body.into()).expect("a test's answer is well-formed")
}

/// A login for every host.
pub(super) struct Everywhere(pub(super) Option<Credential>);

impl Credentials for Everywhere {
    fn find(&self, _host: &str) -> Result<Option<Credential>, Error> {
        Ok(self.0.clone())
    }
}

pub(super) fn password() -> Credential {
    Credential::Password { user: "me".to_owned(), password: "secret".to_owned() }
}

/// Limits with immediate retries and short timeouts.
pub(super) fn impatient() -> HostLimits {
    HostLimits {
        head: Duration::from_secs(20),
        put_head: Duration::from_secs(20),
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(2),
        ..HostLimits::default()
    }
}

pub(super) fn host(address: &str, credential: Option<Credential>) -> Host {
    host_with(address, credential, impatient())
}

pub(super) fn host_with(address: &str, credential: Option<Credential>, limits: HostLimits) -> Host {
    install_provider();
    let credentials = Arc::new(Everywhere(credential));
    Host::with_limits(address, HostSettings::for_host(address), credentials, limits).expect("a host")
}

pub(super) fn install_provider() {
    // Another test may have done it.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

pub(super) fn pull() -> &'static Scope {
    static PULL: LazyLock<Scope> =
        LazyLock::new(|| Scope { repository: "a/b".to_owned(), actions: Action::Pull, mount_from: None });
    &PULL
}

pub(super) fn request(method: Method, url: Url, scope: &Scope, payload: Payload) -> Request<'_> {
    Request { method, url, headers: reqwest::header::HeaderMap::new(), scope, payload }
}

/// Gets `path` with the scope [`pull`].
pub(super) async fn get(host: &Host, path: &str) -> Result<reqwest::Response, Error> {
    host.send(request(Method::GET, host.url(path), pull(), Payload::None)).await
}
