//! Identity providers: tokens of `OpenID` Connect
//! (<https://openid.net/specs/openid-connect-core-1_0.html>) as logins, for example those of CI jobs.
//!
//! The provider's keys are public, at the URL that its discovery document names (JWKS, RFC 7517).
//! They are fetched when a token needs them, and again after an hour or for an unknown key. If the
//! provider cannot be reached, keys are used for a day.
//!
//! A token is accepted if its signature, issuer, audience and times are right. Its claims then
//! decide what it may do: the grants of the provider whose patterns they match.

mod public_key;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::{Client, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{AccessError, Action};
use crate::RepositoryName;
use crate::server::{NamePattern, matches_repository};
use public_key::{PublicKey, SignatureAlgorithm};

/// Tolerated difference between the clocks of the provider and of this machine, in seconds.
const SKEW: u64 = 60;
/// Maximum length of a token in bytes.
const MAX_TOKEN: usize = 16 << 10;
/// Maximum length of a document of a provider in bytes.
const MAX_DOCUMENT: usize = 1 << 20;
/// How long keys are used before they are fetched again.
const FRESH: Duration = Duration::from_hours(1);
/// How long keys are used if the provider cannot be reached.
const STALE: Duration = Duration::from_hours(24);
/// Minimum time between two fetches, so that tokens with unknown keys do not flood the provider.
const REST: Duration = Duration::from_secs(10);
/// Timeout of a request to a provider.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A provider whose tokens are accepted as logins.
#[derive(Clone, Debug)]
pub struct IdentityProvider {
    /// The claim `iss`: the URL below which the discovery document is found.
    pub issuer: String,
    /// A value of the claim `aud`: the name of this registry in the provider's tokens.
    pub audience: String,
    /// The URL of the keys. `None`: the discovery document names it.
    pub keys_url: Option<Url>,
    /// The claim that names the user.
    pub user_claim: String,
    /// The permissions. A token has those of all matching grants.
    pub grants: Vec<ProviderGrant>,
}

/// Permissions of tokens with certain claims.
#[derive(Clone, Debug)]
pub struct ProviderGrant {
    /// Claims, and the patterns that they must match. An array matches if one of its values does.
    pub claims: Vec<(String, NamePattern)>,
    /// The repositories.
    pub repositories: Vec<NamePattern>,
    /// The allowed actions.
    pub actions: Vec<Action>,
}

/// The holder of a verified token.
#[derive(Clone, Debug)]
pub(super) struct ProvidedLogin {
    /// The user and the provider, for logs.
    pub(super) user: String,
    /// When the token expires, in seconds since 1970.
    pub(super) expires: u64,
    grants: Vec<ProviderGrant>,
}

impl ProvidedLogin {
    /// Whether all repositories may be read, and so the catalog.
    pub(super) fn may_list(&self) -> bool {
        let is_all = |pattern: &NamePattern| pattern.as_str() == "**";
        let lists =
            |grant: &ProviderGrant| grant.actions.contains(&Action::Pull) && grant.repositories.iter().any(is_all);
        self.grants.iter().any(lists)
    }

    /// Whether an action is granted.
    pub(super) fn may(&self, repository: &RepositoryName, action: Action) -> bool {
        let is_for = |grant: &ProviderGrant| {
            grant.actions.contains(&action) && matches_repository(&grant.repositories, repository)
        };
        self.grants.iter().any(is_for)
    }
}

/// Why a token is not accepted.
#[derive(Debug)]
pub(super) enum TokenProblem {
    /// The token is wrong; the text is the message for the client.
    Invalid(String),
    /// The keys of the provider are not known.
    Unavailable,
}

impl TokenProblem {
    fn invalid(reason: &str) -> Self {
        Self::Invalid(reason.to_owned())
    }
}

/// All providers of a server.
#[derive(Default)]
pub(super) struct Providers(Vec<Provider>);

struct Provider {
    settings: IdentityProvider,
    http: Client,
    known: Mutex<KnownKeys>,
    /// Held while keys are fetched.
    fetching: tokio::sync::Mutex<()>,
}

/// Keys with their ids.
type ProviderKeys = Arc<Vec<(Option<String>, PublicKey)>>;

#[derive(Default)]
struct KnownKeys {
    keys: ProviderKeys,
    fetched: Option<Instant>,
    attempted: Option<Instant>,
}

impl KnownKeys {
    /// The keys, if they are younger than `age` and include the one with this id.
    fn with(&self, id: Option<&str>, age: Duration) -> Option<ProviderKeys> {
        let is_young = self.fetched.is_some_and(|fetched| fetched.elapsed() < age);
        let has = match id {
            Some(id) => self.keys.iter().any(|(own, _)| own.as_deref() == Some(id)),
            None => !self.keys.is_empty(),
        };
        (is_young && has).then(|| self.keys.clone())
    }
}

#[derive(Deserialize)]
struct TokenHeader {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    crit: Option<Value>,
}

#[derive(Deserialize)]
struct Issuer {
    iss: String,
}

impl Providers {
    pub(super) fn new(settings: Vec<IdentityProvider>) -> Result<Self, AccessError> {
        let provider = |settings: IdentityProvider| {
            let problem = |reason: String| AccessError::Provider { issuer: settings.issuer.clone(), reason };
            let issuer = settings.issuer.parse().map_err(|e| problem(format!("it is not a URL: {e}")))?;
            for url in [Some(&issuer), settings.keys_url.as_ref()].into_iter().flatten() {
                if !is_confidential(url) {
                    return Err(problem(format!("`{url}` does not begin with `https://`")));
                }
            }
            let redirects = reqwest::redirect::Policy::none();
            let http = Client::builder().timeout(TIMEOUT).redirect(redirects).build();
            let http = http.map_err(|e| problem(content::text::error_with_causes(&e)))?;
            Ok(Provider { settings, http, known: Mutex::default(), fetching: tokio::sync::Mutex::default() })
        };
        settings.into_iter().map(provider).collect::<Result<_, _>>().map(Self)
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Verifies a token of a provider at the time `now`; `None` if the text is not one.
    pub(super) async fn verify(&self, text: &str, now: u64) -> Option<Result<ProvidedLogin, TokenProblem>> {
        if self.is_empty() || text.len() > MAX_TOKEN {
            return None;
        }
        let (signed, _) = text.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header: TokenHeader = decode(header)?;
        let issuer: Issuer = decode(claims)?;
        let provider = self.0.iter().find(|provider| provider.settings.issuer == issuer.iss)?;
        Some(provider.verify(text, &header, now).await)
    }
}

/// Plain HTTP is accepted for this machine only: the keys decide about every login.
fn is_confidential(url: &Url) -> bool {
    let is_local = |host: &str| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    url.scheme() == "https" || (url.scheme() == "http" && url.host_str().is_some_and(is_local))
}

impl Provider {
    async fn verify(&self, text: &str, header: &TokenHeader, now: u64) -> Result<ProvidedLogin, TokenProblem> {
        let malformed = || TokenProblem::invalid("the token of the identity provider is malformed");
        if header.crit.is_some() {
            return Err(TokenProblem::invalid("the token has extensions (`crit`) that are not known here"));
        }
        let algorithm = SignatureAlgorithm::parse(&header.alg).ok_or_else(|| {
            let shown: String = header.alg.chars().take(20).collect();
            let known = SignatureAlgorithm::ALL.join(", ");
            TokenProblem::Invalid(format!("the token's algorithm `{shown}` is not accepted; expected one of {known}"))
        })?;
        let (signed, tag) = text.rsplit_once('.').ok_or_else(malformed)?;
        let tag = URL_SAFE_NO_PAD.decode(tag).map_err(|_| malformed())?;
        let claims: Map<String, Value> =
            signed.split_once('.').and_then(|(_, text)| decode(text)).ok_or_else(malformed)?;
        let keys = self.keys(header.kid.as_deref()).await?;
        let is_right = |(id, key): &(Option<String>, PublicKey)| {
            (header.kid.is_none() || *id == header.kid) && key.verify(algorithm, signed.as_bytes(), &tag)
        };
        if !keys.iter().any(is_right) {
            return Err(TokenProblem::invalid("the token's signature is not one of the identity provider"));
        }
        self.login(&claims, now)
    }

    /// Checks the claims of a token whose signature is right.
    fn login(&self, claims: &Map<String, Value>, now: u64) -> Result<ProvidedLogin, TokenProblem> {
        let invalid = |reason: &str| Err(TokenProblem::invalid(reason));
        let settings = &self.settings;
        if claims.get("iss").and_then(Value::as_str) != Some(&settings.issuer) {
            return invalid("the token is of another identity provider");
        }
        let audiences = texts(claims.get("aud"));
        if !audiences.contains(&settings.audience) {
            let (found, expected) = (audiences.join("`, `"), &settings.audience);
            return invalid(&format!("the token's audience (`aud`) is `{found}`, expected `{expected}`"));
        }
        let Some(expires) = claims.get("exp").and_then(seconds) else { return invalid("the token has no `exp`") };
        if now >= expires.saturating_add(SKEW) {
            return invalid("the token has expired; fetch a new one");
        }
        if claims.get("nbf").and_then(seconds).is_some_and(|begin| now.saturating_add(SKEW) < begin) {
            return invalid("the token is not valid yet; check the clocks");
        }
        let user = texts(claims.get(&settings.user_claim)).into_iter().next();
        let Some(user) = user.filter(|user| !user.is_empty() && !user.contains(char::is_control)) else {
            return invalid(&format!("the token lacks the claim `{}`, which names the user", settings.user_claim));
        };
        let has = |(name, pattern): &(String, NamePattern)| {
            texts(claims.get(name)).iter().any(|value| pattern.matches(value))
        };
        let matching = settings.grants.iter().filter(|grant| grant.claims.iter().all(has));
        let grants: Vec<ProviderGrant> = matching.cloned().collect();
        if grants.is_empty() {
            return invalid("no grant of this registry matches the token's claims");
        }
        let host = settings.issuer.split("://").nth(1).unwrap_or(&settings.issuer);
        Ok(ProvidedLogin { user: format!("{user}@{host}"), expires, grants })
    }

    /// The keys, which include the one with this id if the provider has it.
    async fn keys(&self, id: Option<&str>) -> Result<ProviderKeys, TokenProblem> {
        if let Some(keys) = self.known().with(id, FRESH) {
            return Ok(keys);
        }
        let fetching = if let Ok(fetching) = self.fetching.try_lock() {
            fetching
        } else {
            // Another request fetches them. Older keys are good enough meanwhile.
            if let Some(keys) = self.known().with(id, STALE) {
                return Ok(keys);
            }
            self.fetching.lock().await
        };
        let is_due = self.known().attempted.is_none_or(|attempted| attempted.elapsed() >= REST);
        if is_due && self.known().with(id, FRESH).is_none() {
            let fetched = self.fetch().await;
            let mut known = self.known();
            known.attempted = Some(Instant::now());
            match fetched {
                Ok(keys) => {
                    known.keys = Arc::new(keys);
                    known.fetched = Some(Instant::now());
                }
                Err(reason) => tracing::warn!(issuer = self.settings.issuer, "its keys cannot be fetched: {reason}"),
            }
        }
        drop(fetching);
        let known = self.known();
        let is_usable = known.fetched.is_some_and(|fetched| fetched.elapsed() < STALE);
        if is_usable { Ok(known.keys.clone()) } else { Err(TokenProblem::Unavailable) }
    }

    fn known(&self) -> MutexGuard<'_, KnownKeys> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(&self) -> Result<Vec<(Option<String>, PublicKey)>, String> {
        #[derive(Deserialize)]
        struct Discovery {
            issuer: String,
            jwks_uri: String,
        }
        #[derive(Deserialize)]
        struct KeySet {
            keys: Vec<Value>,
        }
        let url = if let Some(url) = &self.settings.keys_url {
            url.clone()
        } else {
            let url = format!("{}/.well-known/openid-configuration", self.settings.issuer.trim_end_matches('/'));
            let found: Discovery = self.document(url.parse().map_err(|e| format!("`{url}`: {e}"))?).await?;
            if found.issuer != self.settings.issuer {
                return Err(format!("`{url}` is about the issuer `{}`", found.issuer));
            }
            let keys: Url = found.jwks_uri.parse().map_err(|e| format!("`{}`: {e}", found.jwks_uri))?;
            if !is_confidential(&keys) {
                return Err(format!("`{keys}` does not begin with `https://`"));
            }
            keys
        };
        let set: KeySet = self.document(url.clone()).await?;
        // Keys of other kinds are for other purposes.
        let keys: Vec<_> = set.keys.into_iter().filter_map(PublicKey::parse).collect();
        if keys.is_empty() { Err(format!("`{url}` has no key that is understood")) } else { Ok(keys) }
    }

    async fn document<T: DeserializeOwned>(&self, url: Url) -> Result<T, String> {
        let problem = |error: reqwest::Error| content::text::error_with_causes(&error);
        let mut response = self.http.get(url.clone()).send().await.map_err(problem)?;
        if !response.status().is_success() {
            return Err(format!("`{url}` answered {}", response.status()));
        }
        let mut bytes = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(problem)? {
            if bytes.len() + piece.len() > MAX_DOCUMENT {
                return Err(format!("`{url}` has more than {MAX_DOCUMENT} bytes"));
            }
            bytes.extend_from_slice(&piece);
        }
        serde_json::from_slice(&bytes).map_err(|e| format!("`{url}` cannot be read: {e}"))
    }
}

fn decode<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

/// The texts of a claim: one value, or an array.
fn texts(claim: Option<&Value>) -> Vec<String> {
    let one = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    match claim {
        Some(Value::Array(values)) => values.iter().filter_map(one).collect(),
        Some(value) => one(value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// A time of RFC 7519, which may have a fraction.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the value was checked")]
fn seconds(value: &Value) -> Option<u64> {
    let number = value.as_f64().filter(|number| *number >= 0.0 && *number < 1e15)?;
    Some(number as u64)
}

impl fmt::Debug for Providers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|provider| &provider.settings.issuer)).finish()
    }
}
