//! Remote servers that direct the client to addresses that only this machine can reach (server-side
//! request forgery).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::server::Server;
use crate::service::Service;
use crate::support::{own_address, skip, tiny_model};

/// The means by which a server directs the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lead {
    Redirect,
    Realm,
    /// The `Location` for the upload of a blob.
    Upload,
}

/// Directs every request to `place`.
#[derive(Clone)]
struct Leading {
    lead: Lead,
    place: String,
}

async fn lead(State(leading): State<Leading>, request: Request) -> Response {
    let Leading { lead, place } = leading;
    match lead {
        Lead::Redirect => (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, place)]).into_response(),
        Lead::Realm => {
            let challenge = format!("Bearer realm=\"{place}\",service=\"test\"");
            (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response()
        }
        Lead::Upload if request.method() == Method::POST => {
            (StatusCode::ACCEPTED, [(header::LOCATION, place)]).into_response()
        }
        // The registry has no blobs yet.
        Lead::Upload => StatusCode::NOT_FOUND.into_response(),
    }
}

#[tokio::test]
async fn nobody_elsewhere_leads_to_this_machine() {
    let Some(elsewhere) = own_address() else {
        return skip("nobody_elsewhere_leads_to_this_machine", "this machine has no address but loopback");
    };
    let knocks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&knocks);
    let door = Service::start(Router::new().fallback(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready("what only this machine may see")
    }));
    let (_, port) = door.address.rsplit_once(':').expect("an address with a port");
    for name in ["127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]", "2130706433"] {
        for led in [Lead::Redirect, Lead::Realm, Lead::Upload] {
            let place = format!("http://{name}:{port}/secret");
            let leading = Router::new().fallback(lead).with_state(Leading { lead: led, place });
            let registry = Service::start_at(elsewhere, leading);
            let server = Server::start(&[("HF_ENDPOINT", &format!("http://{}", registry.address))]).await;
            let model = format!("{}/library/tiny", registry.address);
            let mut calls = vec![("/api/pull", model.clone()), ("/api/push", model.clone())];
            if led == Lead::Upload {
                calls.remove(0);
            } else if led == Lead::Redirect {
                calls.push(("/api/pull", "hf.co/someone/tiny".to_owned()));
            }
            server.create("tiny", &tiny_model()).await;
            server.ask("/api/copy", &json!({"source": "tiny", "destination": model})).await;
            for (path, model) in calls {
                let what = format!("{path} {model}, {led:?} to {name}");
                let asked = json!({"model": model, "insecure": true, "stream": false});
                let (status, answer) = server.call(path, &asked).await;
                let error = answer["error"].as_str().unwrap_or_else(|| panic!("{what}: {status} {answer}"));
                assert!(error.contains("is on this machine or its link"), "{what}: {error}");
            }
        }
    }
    assert_eq!(knocks.load(Ordering::Relaxed), 0, "somebody knocked");
}
