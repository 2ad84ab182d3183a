//! How the client speaks with one registry: one request and its answer.
//!
//! A [`Host`] is a registry (or a mirror of one). It knows how to reach it ([`HostSettings`]), who we are there
//! ([`Credentials`]) and which tokens it gave; clones share all that. [`Host::send`] sends a [`Request`] and deals with
//! everything that is the same for all requests: tokens, redirects, retries, limits. What a request is *for* is decided
//! by the caller.
//!
//! # Invariants
//! - `Authorization` goes to the scheme, host and port it was made for, and nowhere else.
//! - Nothing that began over TLS goes on without it, and nothing goes on nearer to this machine than it began ([`Border`]).
//! - Everything that is read has a limit, in bytes and in time; everything that is repeated has a last time.
//! - Secrets are in no error, no log and no `Debug`.
//!
//! # States of authorization, for each scope
//! nothing known → (401 with a challenge) → header known, perhaps until some time → (that time, or another 401) →
//! renewed. A header that is refused although it was just made is the end: [`Error::Unauthorized`].
//!
//! # Concurrency
//! Any number of requests at once. Those that need a token for the same scope wait for one token request. Nothing runs
//! in the background. What is dropped is cancelled.
//!
//! The program must have installed a TLS provider (`rustls::crypto::ring::default_provider().install_default()`).

mod authorization;
mod border;
pub mod catalog;
mod challenge;
mod connect;
mod credential;
mod docker_config;
mod error;
pub mod fetch;
mod host;
mod limiter;
mod limits;
mod payload;
pub mod push;
mod redirect;
mod remote;
mod retry;
mod scope;
mod settings;
#[cfg(test)]
mod tests;
mod token;
mod wire;

pub use border::Border;
pub use credential::{Chain, Credential, Credentials};
pub use docker_config::DockerConfig;
pub use error::{Error, cause};
pub use fetch::{Counter, FetchError, Fetcher};
pub use host::Host;
pub use payload::{MakeStream, Payload, Request};
pub use push::{PushError, Pushed, Pusher};
pub use remote::Remote;
pub use scope::{Action, Scope};
pub use settings::HostSettings;
