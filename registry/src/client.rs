//! The registry client: sends requests to one registry and reads the responses.
//!
//! A [`Host`] is a registry or a mirror of one. It has the settings ([`HostSettings`]), the logins
//! ([`Credentials`]) and the tokens for that registry; clones share them. [`Host::send`] sends a
//! [`Request`] and handles tokens, redirects, retries and limits, which are the same for all
//! requests. The caller decides what to request.
//!
//! # Invariants
//! - `Authorization` is sent only to the scheme, host and port that it was made for.
//! - A redirect never leads from TLS to plain HTTP, and never to an address nearer to this machine
//!   than the registry ([`RedirectPolicy`]).
//! - Every response has a limit in bytes and in time, and every retry loop ends.
//! - Secrets appear in no error, log or `Debug` output.
//!
//! # States of authorization, for each scope
//! unknown → (401 with a challenge) → header known, possibly with an expiry → (expiry or another
//! 401) → renewed. If a new header is refused too, the request fails with [`Error::Unauthorized`].
//!
//! # Concurrency
//! Any number of requests can run at once. Requests that need a token for the same scope wait for
//! one token request. Nothing runs in the background. Dropping a future cancels its request.
//!
//! The program must have installed a TLS provider
//! (`rustls::crypto::ring::default_provider().install_default()`).

mod authorization;
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
mod pace;
mod payload;
pub mod push;
mod redirect;
mod redirect_policy;
mod referrers;
mod remote;
mod retry;
mod scope;
mod settings;
mod source_ranking;
#[cfg(test)]
mod tests;
mod token;
mod wire;

pub use credential::{Chain, Credential, Credentials};
pub use docker_config::DockerConfig;
pub use error::{Error, cause};
pub use fetch::{Counter, FetchError, Fetcher};
pub use host::Host;
pub use pace::{Bandwidth, Pace, Urgency};
pub use payload::{MakeStream, Payload, Request};
pub use push::{PushError, Pushed, Pusher};
pub use redirect_policy::RedirectPolicy;
pub use remote::Remote;
pub use scope::{Action, Scope};
pub use settings::HostSettings;
