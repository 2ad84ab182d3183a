//! Tests with real connections to a small router.

use std::time::Duration;

use axum::routing::{get, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::*;

/// A limit of four connections.
fn few(times: Times) -> ConnectionLimits {
    ConnectionLimits { most: 4, of_peer: 4, times }
}

async fn serving(limits: ConnectionLimits) -> (SocketAddr, watch::Sender<bool>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let slow = async || {
        tokio::time::sleep(Duration::from_millis(300)).await;
        "slow"
    };
    let routes = Router::new()
        .route("/", get("hello"))
        .route("/slow", get(slow))
        .route("/length", post(|body: axum::body::Bytes| async move { body.len().to_string() }));
    let (stop, stopped) = watch::channel(false);
    (address, stop, tokio::spawn(serve(listener, routes, limits, stopped)))
}

async fn ask(stream: &mut TcpStream, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut buffer = [0; 1024];
    let count = stream.read(&mut buffer).await.expect("an answer");
    String::from_utf8_lossy(&buffer[..count]).into_owned()
}

#[tokio::test]
async fn clients_that_do_nothing_do_not_keep_others_out() {
    let (address, _stop, server) = serving(few(Times::default())).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        // An incomplete request, which cannot be answered.
        stream.write_all(b"GET / HTTP/1.1\r\n").await.expect("sent");
        silent.push(stream);
    }
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    assert!(ask(&mut stream, "/").await.ends_with("hello"));
    assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap_or(0), 0, "the oldest was cut off");
    server.abort();
}

#[tokio::test]
async fn answers_are_given_before_the_end() {
    let (address, stop, server) = serving(few(Times::default())).await;
    let mut idle = TcpStream::connect(address).await.expect("a connection");
    assert!(ask(&mut idle, "/").await.ends_with("hello"));
    let mut slow = TcpStream::connect(address).await.expect("a connection");
    slow.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("sent");
    // Waits until the slow request has arrived.
    assert!(ask(&mut idle, "/").await.ends_with("hello"));
    stop.send(true).expect("somebody listens");
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.ends_with("slow"), "{answer}");
    server.await.expect("it ends by itself");
    assert_eq!(idle.read(&mut [0; 1]).await.unwrap_or(0), 0, "an idle connection is closed");
}

#[tokio::test]
async fn a_body_that_stops_is_not_waited_for() {
    let times = Times { stall: Duration::from_millis(50), ..Times::default() };
    let (address, _stop, server) = serving(few(times)).await;
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(b"POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf").await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an end");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    server.abort();
}

#[tokio::test]
async fn headers_have_to_come_and_requests_need_not() {
    let short = Duration::from_millis(100);
    let times = Times { headers: short, tick: Duration::from_millis(10), ..Times::default() };
    let (address, _stop, server) = serving(few(times)).await;
    let mut idle = TcpStream::connect(address).await.expect("a connection");
    assert!(ask(&mut idle, "/").await.ends_with("hello"));
    let mut half = TcpStream::connect(address).await.expect("a connection");
    half.write_all(b"GET / HTTP/1.1\r\nhost").await.expect("sent");
    let begin = std::time::Instant::now();
    assert_eq!(half.read(&mut [0; 1]).await.unwrap_or(0), 0, "half of a request is not waited for");
    assert!(begin.elapsed() >= short);
    assert!(ask(&mut idle, "/").await.ends_with("hello"), "a connection between requests stays");
    server.abort();
}
