//! A load balancer that sends each connection to the next replica, and cuts some off.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, copy, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// Number of bytes after which a connection is cut off: in the middle of a body.
const CUT: u64 = 20_000;

#[derive(Default)]
struct Shared {
    replicas: Mutex<Vec<String>>,
    next: AtomicUsize,
    cut_each: AtomicUsize,
}

/// A load balancer in this process.
pub(super) struct Balancer {
    pub(super) address: String,
    shared: Arc<Shared>,
}

impl Balancer {
    pub(super) async fn over(replicas: Vec<String>) -> Self {
        let shared = Arc::new(Shared { replicas: Mutex::new(replicas), ..Shared::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound").to_string();
        let own = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(own.clone(), client));
            }
        });
        Self { address, shared }
    }

    /// Replaces the replicas.
    pub(super) fn set(&self, replicas: Vec<String>) {
        *self.shared.replicas.lock().unwrap_or_else(PoisonError::into_inner) = replicas;
    }

    /// Cuts off every connection with a multiple of this number; 0 for none.
    pub(super) fn cut_each(&self, number: usize) {
        self.shared.cut_each.store(number, Ordering::SeqCst);
    }
}

async fn pass(shared: Arc<Shared>, mut client: TcpStream) {
    let number = shared.next.fetch_add(1, Ordering::SeqCst);
    let target = {
        let replicas = shared.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        replicas[number % replicas.len()].clone()
    };
    let each = shared.cut_each.load(Ordering::SeqCst);
    // A replica that was killed refuses connections; the client sees its own one closed.
    let Ok(mut replica) = TcpStream::connect(target).await else { return };
    if each > 0 && number % each == each - 1 {
        let ((requests, mut responses), (mut answers, mut target)) = (client.split(), replica.split());
        let mut requests = requests.take(CUT);
        tokio::select! {
            _ = copy(&mut requests, &mut target) => {}
            _ = copy(&mut answers, &mut responses) => {}
        }
    } else {
        let _ = copy_bidirectional(&mut client, &mut replica).await;
    }
}
