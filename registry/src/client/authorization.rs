//! `Authorization` headers: obtained after a challenge, cached for each scope, renewed when refused
//! or expired.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::header::HeaderValue;

use super::Error;
use super::challenge::{AuthScheme, Challenge};
use super::credential::{Credential, Credentials};
use super::scope::Scope;
use super::token::{self, TokenRequest};
use super::wire::Wire;

/// Maximum number of cached scopes. When it is reached, the cache is emptied.
const MOST_SCOPES: usize = 1024;
/// A token is renewed at most this long before it expires.
const MARGIN: Duration = Duration::from_secs(10);

/// The authorization state of one registry, for each scope.
pub(super) struct Authorizer {
    credentials: Arc<dyn Credentials>,
    slots: Mutex<HashMap<Scope, Arc<TokenSlot>>>,
}

/// The lock is held during a token request, so that other requests for the same token wait for it.
type TokenSlot = tokio::sync::Mutex<Known>;

#[derive(Default)]
struct Known {
    demand: Option<AuthScheme>,
    grant: Option<Arc<Grant>>,
}

/// An `Authorization` header, with its time and expiry.
pub(super) struct Grant {
    pub(super) header: HeaderValue,
    obtained: Instant,
    expires: Option<Instant>,
}

/// A request that was answered with 401.
pub(super) struct UnauthorizedResponse<'a> {
    pub(super) scope: &'a Scope,
    /// The header that was sent.
    pub(super) used: Option<Arc<Grant>>,
    /// The time of the first attempt.
    pub(super) began: Instant,
    /// The challenges of the response.
    pub(super) challenges: Vec<Challenge>,
    /// The message of the response, for display.
    pub(super) summary: String,
}

impl Grant {
    fn is_valid(&self) -> bool {
        self.expires.is_none_or(|end| Instant::now() < end)
    }
}

impl Authorizer {
    pub(super) fn new(credentials: Arc<dyn Credentials>) -> Self {
        Self { credentials, slots: Mutex::default() }
    }

    /// Returns the header for a first attempt: the last one that worked, renewed if it has expired.
    /// `None` if no challenge was received yet.
    pub(super) async fn current(&self, wire: &Wire, scope: &Scope) -> Result<Option<Arc<Grant>>, Error> {
        let slot = self.slot(scope);
        let mut known = slot.lock().await;
        if known.grant.as_ref().is_some_and(|grant| !grant.is_valid())
            && let Some(demand) = known.demand.clone()
        {
            known.grant = Some(self.obtain(wire, scope, &demand).await?);
        }
        Ok(known.grant.clone())
    }

    /// Obtains a new header after a refusal. [`Authorizer::current`] returns it afterwards.
    ///
    /// # Errors
    /// [`Error::Unauthorized`] if the refused header was new and still valid.
    pub(super) async fn refused(&self, wire: &Wire, refused: UnauthorizedResponse<'_>) -> Result<(), Error> {
        let slot = self.slot(refused.scope);
        let mut known = slot.lock().await;
        if let Some(grant) = known.grant.as_ref().filter(|grant| grant.is_valid())
            && !refused.used.as_ref().is_some_and(|used| Arc::ptr_eq(used, grant))
        {
            // Another request was refused too and has already obtained a new header.
            return Ok(());
        }
        if refused.used.as_ref().is_some_and(|used| used.obtained >= refused.began && used.is_valid()) {
            return Err(Error::unauthorized(&wire.name, no_more(&refused)));
        }
        let demand = AuthScheme::choose(&refused.challenges).map_err(|why| Error::unauthorized(&wire.name, why))?;
        known.grant = Some(self.obtain(wire, refused.scope, &demand).await?);
        known.demand = Some(demand);
        Ok(())
    }

    async fn obtain(&self, wire: &Wire, scope: &Scope, demand: &AuthScheme) -> Result<Arc<Grant>, Error> {
        let credential = self.credential(&wire.name).await?;
        let refuse = |reason: &str| Error::unauthorized(&wire.name, reason);
        let (header, lifetime) = match (demand, &credential) {
            (AuthScheme::Basic, Some(Credential::Password { user, password })) => (token::basic(user, password), None),
            (AuthScheme::Basic, Some(_)) => {
                return Err(refuse("it wants a user and a password, and the stored login is a token"));
            }
            (AuthScheme::Basic, None) => return Err(refuse("it requires a user and a password; no login is stored")),
            (AuthScheme::Bearer { .. }, Some(Credential::Bearer(token))) => {
                let header = token::bearer(token).map_err(|_| refuse("the stored token is malformed"))?;
                (header, None)
            }
            (AuthScheme::Bearer { realm, service, scope: theirs }, credential) => {
                let scopes = scope.words_with(theirs.as_deref());
                let wanted = TokenRequest { realm, service: service.as_deref(), scopes };
                let token = token::request(wire, &wanted, credential.as_ref()).await?;
                (token.header, Some(token.lifetime))
            }
        };
        let obtained = Instant::now();
        let expires = lifetime.map(|lifetime| obtained + lifetime.saturating_sub(MARGIN.min(lifetime / 4)));
        Ok(Arc::new(Grant { header, obtained, expires }))
    }

    async fn credential(&self, host: &str) -> Result<Option<Credential>, Error> {
        let (credentials, host) = (self.credentials.clone(), host.to_owned());
        match tokio::task::spawn_blocking(move || credentials.find(&host)).await {
            Ok(found) => found,
            Err(_) => Err(Error::Settings("the search for a login broke off; try again".to_owned())),
        }
    }

    fn slot(&self, scope: &Scope) -> Arc<TokenSlot> {
        // The map is consistent after any panic.
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= MOST_SCOPES && !slots.contains_key(scope) {
            slots.clear();
        }
        slots.entry(scope.clone()).or_default().clone()
    }
}

/// The reason why a new header was refused.
fn no_more(refused: &UnauthorizedResponse<'_>) -> String {
    let parameter = |name| refused.challenges.iter().find_map(|challenge| challenge.get(name));
    let error: Option<String> =
        parameter("error").map(|text| text.chars().filter(|c| !c.is_control()).take(100).collect());
    match error {
        Some(error) => format!("it refuses what it asked for ({error}): {}", refused.summary),
        None => format!("it refuses the token that it requested: {}", refused.summary),
    }
}
