//! TLS for the daemon: a listener that returns connections after their handshake.
//!
//! Handshakes run concurrently, each for at most [`HANDSHAKE_TIMEOUT`], so a client that stalls
//! delays no other client. There are at most [`MAX_HANDSHAKES`]; a further one aborts the oldest. A
//! failed handshake is only logged at debug level, because the client caused it.
mod certificates;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::serve::Listener;
use content::operation::Result;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use certificates::Certificates;

/// Timeout of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximal number of concurrent handshakes.
const MAX_HANDSHAKES: usize = 512;
/// How often the files are checked for changes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after the system failed to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The daemon's certificate and key, in PEM files that are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and its chain of issuers.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// A connection after its handshake; `None` if that failed.
type Handshake = Option<(TlsStream<TcpStream>, SocketAddr)>;

/// Accepts connections and performs handshakes. It owns their tasks, which end with it.
#[derive(Debug)]
pub(crate) struct TlsListener {
    tcp: TcpListener,
    certificates: Certificates,
    looked: Instant,
    handshakes: JoinSet<Handshake>,
    /// The oldest is first; some may be finished.
    order: VecDeque<AbortHandle>,
}

impl TlsListener {
    /// Reads the files. An error names the invalid file.
    pub(crate) fn bind(tcp: TcpListener, files: TlsFiles) -> Result<Self> {
        let certificates = Certificates::load(files)?;
        let order = VecDeque::with_capacity(MAX_HANDSHAKES);
        Ok(Self { tcp, certificates, looked: Instant::now(), handshakes: JoinSet::new(), order })
    }

    async fn begin(&mut self, stream: TcpStream, address: SocketAddr) {
        if self.looked.elapsed() >= RELOAD_INTERVAL {
            self.certificates.refresh().await;
            self.looked = Instant::now();
        }
        self.order.retain(|handshake| !handshake.is_finished());
        if self.order.len() >= MAX_HANDSHAKES
            && let Some(oldest) = self.order.pop_front()
        {
            tracing::debug!("too many handshakes; the oldest is cut off");
            oldest.abort();
        }
        let acceptor = TlsAcceptor::from(self.certificates.current());
        self.order.push_back(self.handshakes.spawn(handshake(acceptor, stream, address)));
    }
}

async fn handshake(acceptor: TlsAcceptor, stream: TcpStream, address: SocketAddr) -> Handshake {
    // Disables Nagle's algorithm: responses are written in parts, and delaying the last part would
    // cost a round trip.
    let _ = stream.set_nodelay(true);
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some((stream, address)),
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "a handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!(%address, "a handshake took too long");
            None
        }
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                Some(done) = self.handshakes.join_next() => {
                    // An error means that the handshake was aborted.
                    if let Ok(Some(connection)) = done {
                        return connection;
                    }
                }
                accepted = self.tcp.accept() => match accepted {
                    Ok((stream, address)) => self.begin(stream, address).await,
                    Err(error) if is_of_one_client(&error) => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept connections");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// Whether the error concerns only the connection that was about to be accepted.
fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use axum::Router;
    use axum::extract::ConnectInfo;
    use axum::routing::get;
    use axum::serve::ListenerExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::certificates::tests::{Pair, pair};
    use super::*;

    /// Starts a server that answers with the client's address.
    async fn serve(pair: &Pair) -> (SocketAddr, tokio::task::JoinHandle<()>) {
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let listener = TlsListener::bind(tcp, pair.files.clone()).expect("TLS");
        let address = listener.local_addr().expect("an address");
        let who = async |ConnectInfo(address): ConnectInfo<SocketAddr>| address.ip().to_string();
        let routes = Router::new().route("/", get(who)).into_make_service_with_connect_info::<SocketAddr>();
        let server = tokio::spawn(async move {
            axum::serve(listener.tap_io(|_| ()), routes).await.expect("serving goes on");
        });
        (address, server)
    }

    async fn ask(pair: &Pair, address: SocketAddr) -> reqwest::Result<String> {
        // The program itself installs the provider when it starts.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let pem = fs::read(&pair.files.certificate).expect("the certificate");
        let root = reqwest::Certificate::from_pem(&pem).expect("a certificate");
        let client = reqwest::Client::builder().no_proxy().tls_certs_only([root]).build().expect("a client");
        client.get(format!("https://localhost:{}/", address.port())).send().await?.text().await
    }

    #[tokio::test]
    async fn tls_serves_and_tells_the_address() {
        let pair = pair();
        let (address, server) = serve(&pair).await;
        assert_eq!(ask(&pair, address).await.expect("an answer"), "127.0.0.1");
        server.abort();
    }

    #[tokio::test]
    async fn tls_goes_on_after_bad_clients() {
        let pair = pair();
        let (address, server) = serve(&pair).await;
        let mut plain = TcpStream::connect(address).await.expect("a connection");
        plain.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("sent");
        let mut answer = Vec::new();
        // The server sends an alert and closes the connection, or only closes it.
        let _ = plain.read_to_end(&mut answer).await;
        assert!(!answer.starts_with(b"HTTP"));
        // Opens one silent connection more than there may be handshakes.
        let mut silent = Vec::new();
        for _ in 0..=MAX_HANDSHAKES {
            silent.push(TcpStream::connect(address).await.expect("a connection"));
        }
        assert_eq!(ask(&pair, address).await.expect("an answer meanwhile"), "127.0.0.1");
        assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap_or(0), 0, "the oldest was cut off");
        let stranger = super::certificates::tests::pair();
        assert!(ask(&stranger, address).await.is_err(), "who does not trust the certificate does not go on");
        assert_eq!(ask(&pair, address).await.expect("an answer after it"), "127.0.0.1");
        server.abort();
    }
}
