//! Access control: users, tokens, and links to single blobs.
//!
//! ```text
//! request ──▶ credentials ──Basic───▶ users (htpasswd, bcrypt) ─┬─▶ mode ──▶ Identity │ Refusal
//!                     └────Bearer──▶ token (signed) ────────────┘
//! ```
//!
//! There are no permissions for single repositories: the mode determines the permissions of all
//! users. Tokens of identity providers are different: their grants name repositories and actions
//! (`provider`). Clients send them as a `Bearer` token or as the password of any user name. A token
//! may grant less than its user has: only the scopes that were requested. If a user is removed from
//! the file, the next request is refused, even with a token. After a change of the password,
//! existing tokens stay valid until they expire. Basic authentication and tokens are always both
//! accepted; [`Challenge`] selects the one that is offered.
//!
//! In the modes [`Mode::Open`] and [`Mode::ReadOnly`] no login is needed, so credentials are
//! ignored.

mod challenge;
mod clock;
mod credentials;
mod error;
mod key;
mod link;
mod mode;
mod password;
mod provider;
mod refusal;
mod scope;
mod token;
mod token_endpoint;
mod users;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use content::Digest;

pub use challenge::Challenge;
pub use clock::Clock;
pub use error::AccessError;
pub use key::TokenKey;
pub use mode::{Mode, Rule};
pub use password::htpasswd_line;
pub use provider::{IdentityProvider, ProviderGrant};
pub use refusal::Refusal;
pub use token_endpoint::{ask_for_password, secret_as_token};

use crate::RepositoryName;
use challenge::TokenFault;
use credentials::{Credentials, Password};
use link::Linker;
use provider::{ProvidedLogin, Providers, TokenProblem};
use token::{Signer, TokenUser};
use users::UserFile;

/// The path of the token service. The challenge names it; the server must route it to
/// [`Access::token`].
pub const TOKEN_PATH: &str = "/v2/token";

/// The secret in a request, without checking it: the `Bearer` token, or the password of `Basic`.
pub fn secret(headers: &HeaderMap) -> Option<String> {
    match Credentials::of(headers) {
        Credentials::Bearer(secret) => Some(secret),
        Credentials::Basic { password, .. } => Some(password.0),
        Credentials::Absent | Credentials::Malformed(_) => None,
    }
}

/// The operation that a request needs permission for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Read.
    Pull,
    /// Add blobs, manifests and tags.
    Push,
    /// Remove blobs, manifests and tags.
    Delete,
}

impl Action {
    /// The name of the action in scopes and tokens.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Delete => "delete",
        }
    }

    /// Parses [`Action::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Pull, Self::Push, Self::Delete].into_iter().find(|action| action.as_str() == text)
    }
}

/// Options of access control.
#[derive(Clone, Debug)]
pub struct AccessOptions {
    /// The permissions of clients with and without a login.
    pub mode: Mode,
    /// The users. If [`Mode::needs_users`], users or identity providers are required.
    pub users: Option<UserSource>,
    /// Identity providers. By default there are none.
    pub providers: Vec<IdentityProvider>,
    /// The key that signs tokens and links. With a key from a file they stay valid after a restart.
    pub token_key: TokenKey,
    /// Lifetime of a token. The default is 15 minutes.
    pub token_life: Duration,
    /// Lifetime of a link to a blob. The default is 6 hours, because the whole blob is read through
    /// it.
    pub link_life: Duration,
    /// The kind of authentication that a refused request is offered. The default is tokens.
    pub challenge: Challenge,
    /// The name of the server in challenges and tokens. The default is `lode`.
    pub service: String,
    /// The clock for expiries.
    pub clock: Clock,
}

impl AccessOptions {
    /// Options with no users, and the defaults of the fields.
    pub fn new(mode: Mode, token_key: TokenKey) -> Self {
        Self {
            mode,
            users: None,
            providers: Vec::new(),
            token_key,
            token_life: Duration::from_mins(15),
            link_life: Duration::from_hours(6),
            challenge: Challenge::Bearer,
            service: "lode".to_owned(),
            clock: Clock::system(),
        }
    }
}

/// Where the users come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserSource {
    /// An htpasswd file, which is read again when it changes.
    File(PathBuf),
    /// The text of an htpasswd file.
    Text(String),
}

/// The sender of an admitted request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user; `None` if no login was needed.
    pub user: Option<String>,
    /// Whether the login may list all repositories. Tokens of identity providers are for the
    /// repositories of their grants.
    pub may_list: bool,
}

impl Identity {
    fn of(user: Option<String>) -> Self {
        Self { user, may_list: true }
    }
}

/// Decides which client may do which action. Clones share the state.
#[derive(Clone)]
pub struct Access(Arc<Inner>);

struct Inner {
    mode: Mode,
    users: Option<Arc<UserFile>>,
    providers: Providers,
    signer: Signer,
    linker: Linker,
    token_life: Duration,
    link_life: Duration,
    challenge: Challenge,
    service: String,
    clock: Clock,
}

/// The permission that a request needs, and the base URL that it used.
#[derive(Clone, Copy)]
struct AccessRequest<'a> {
    base_url: &'a str,
    /// `None` for requests outside of any repository, such as the base of the API.
    repository: Option<&'a RepositoryName>,
    action: Action,
}

impl Access {
    /// Allows every request.
    pub fn open() -> Self {
        Self::with_users(AccessOptions::new(Mode::Open, TokenKey::random()), None, Providers::default())
    }

    /// Reads the file of users and creates the access control.
    pub fn new(options: AccessOptions) -> Result<Self, AccessError> {
        let printable = |c: char| (c.is_ascii_graphic() || c == ' ') && !matches!(c, '"' | '\\');
        if !(1..=128).contains(&options.service.len()) || !options.service.chars().all(printable) {
            return Err(AccessError::Service(options.service.chars().take(128).collect()));
        }
        if options.mode.needs_users() && options.users.is_none() && options.providers.is_empty() {
            return Err(AccessError::NeedsUsers(options.mode));
        }
        let read = |source: &UserSource| match source {
            UserSource::File(path) => UserFile::open(path),
            UserSource::Text(text) => UserFile::from_text(text),
        };
        let users = options.users.as_ref().map(read).transpose()?;
        let providers = Providers::new(options.providers.clone())?;
        Ok(Self::with_users(options, users, providers))
    }

    fn with_users(options: AccessOptions, users: Option<UserFile>, providers: Providers) -> Self {
        Self(Arc::new(Inner {
            mode: options.mode,
            users: users.map(Arc::new),
            providers,
            signer: Signer::new(&options.token_key, &options.service),
            linker: Linker::new(&options.token_key),
            token_life: options.token_life,
            link_life: options.link_life,
            challenge: options.challenge,
            service: options.service,
            clock: options.clock,
        }))
    }

    /// Admits a request, or returns the reason for a refusal. `base_url` is scheme and host from
    /// the view of the client. `repository` is `None` for requests outside of any repository, such
    /// as the base of the API. It does not block.
    ///
    /// If pulling needs no login but pushing does, the base of the API still demands a login: many
    /// clients look only there to find out whether they need a token. Clients without a login get a
    /// token too.
    pub async fn check(
        &self,
        headers: &HeaderMap,
        base_url: &str,
        repository: Option<&RepositoryName>,
        action: Action,
    ) -> Result<Identity, Refusal> {
        let wanted = AccessRequest { base_url, repository, action };
        let rule = self.0.mode.rule(action);
        if rule == Rule::Nobody {
            let message = format!("this registry is read-only: {} is not allowed", action.as_str());
            return Err(Refusal::Denied { message });
        }
        if !self.0.mode.needs_users() {
            return Ok(Identity::of(None));
        }
        match Credentials::of(headers) {
            Credentials::Absent if rule == Rule::Anyone && repository.is_some() => Ok(Identity::of(None)),
            Credentials::Absent => {
                Err(self.unauthorized(wanted, TokenFault::Absent, "authentication is required: log in first"))
            }
            Credentials::Malformed(reason) => Err(self.unauthorized(wanted, TokenFault::Invalid, reason)),
            Credentials::Basic { user, password } => {
                if let Some(login) = self.provided(wanted, &password.0).await? {
                    return Self::check_provided(wanted, rule, &login);
                }
                if !self.authenticate(&user, &password).await? {
                    return Err(self.unauthorized(wanted, TokenFault::Absent, WRONG_PASSWORD));
                }
                Ok(Identity::of(Some(user)))
            }
            Credentials::Bearer(text) => match self.provided(wanted, &text).await? {
                Some(login) => Self::check_provided(wanted, rule, &login),
                None => self.check_token(wanted, rule, &text).await,
            },
        }
    }

    /// [`Access::check`] for reading one blob. It also admits requests with a link to the blob.
    /// `query` is the query of the request.
    pub async fn check_blob(
        &self,
        headers: &HeaderMap,
        base_url: &str,
        repository: &RepositoryName,
        digest: &Digest,
        query: Option<&str>,
    ) -> Result<Identity, Refusal> {
        let now = self.0.clock.seconds();
        if query.is_some_and(|query| self.0.linker.verify(repository, digest, query, now)) {
            return Ok(Identity::of(None));
        }
        self.check(headers, base_url, Some(repository), Action::Pull).await
    }

    /// The query that turns the URL of a blob into a link: it grants read access to this blob until
    /// it expires. Call this only for admitted requests.
    pub fn sign_blob(&self, repository: &RepositoryName, digest: &Digest) -> String {
        let expires = self.0.clock.seconds().saturating_add(self.0.link_life.as_secs());
        self.0.linker.sign(repository, digest, expires)
    }

    /// Returns the refusal that demands a login, of the configured kind. For callers that make
    /// their own decision; see [`Access::check`] for `base_url`.
    pub fn ask(&self, base_url: &str, message: &str) -> Refusal {
        let wanted = AccessRequest { base_url, repository: None, action: Action::Pull };
        self.unauthorized(wanted, TokenFault::Absent, message)
    }

    /// Whether pulling needs no login. Links are not needed in this case.
    pub fn anyone_may_pull(&self) -> bool {
        self.0.mode.rule(Action::Pull) == Rule::Anyone
    }

    /// Verifies a token of an identity provider; `None` if the text is not one.
    async fn provided(&self, wanted: AccessRequest<'_>, text: &str) -> Result<Option<ProvidedLogin>, Refusal> {
        match self.0.providers.verify(text, self.0.clock.seconds()).await {
            None => Ok(None),
            Some(Ok(login)) => Ok(Some(login)),
            Some(Err(problem)) => Err(match problem {
                TokenProblem::Invalid(reason) => self.unauthorized(wanted, TokenFault::Invalid, &reason),
                TokenProblem::Unavailable => keys_unavailable(),
            }),
        }
    }

    /// Whether the grants of an identity provider allow the request.
    fn check_provided(wanted: AccessRequest<'_>, rule: Rule, login: &ProvidedLogin) -> Result<Identity, Refusal> {
        let granted = wanted.repository.is_none_or(|name| login.may(name, wanted.action));
        if !granted && rule != Rule::Anyone {
            let name = wanted.repository.map(ToString::to_string).unwrap_or_default();
            let message = format!("`{}` has no grant to {} in `{name}`", login.user, wanted.action.as_str());
            return Err(Refusal::Denied { message });
        }
        Ok(Identity { user: Some(login.user.clone()), may_list: rule == Rule::Anyone || login.may_list() })
    }

    async fn check_token(&self, wanted: AccessRequest<'_>, rule: Rule, text: &str) -> Result<Identity, Refusal> {
        let token = self.0.signer.verify(text, self.0.clock.seconds());
        let token = token.map_err(|reason| self.unauthorized(wanted, TokenFault::Invalid, reason))?;
        // Grants of an identity provider are in the token, which expires soon.
        if let Some(TokenUser::Local(user)) = &token.user
            && !self.is_user(user).await
        {
            return Err(self.unauthorized(wanted, TokenFault::Invalid, "the user of the token no longer exists"));
        }
        // The mode may have changed since the token was issued.
        if rule == Rule::User && token.user.is_none() {
            return Err(self.unauthorized(wanted, TokenFault::Scope, "this needs a user: log in first"));
        }
        let granted = wanted.repository.is_none_or(|name| token.grants.contains(name, wanted.action));
        if !granted && rule != Rule::Anyone {
            let message = "the token is not for this; fetch one with the scope that this answer names";
            return Err(self.unauthorized(wanted, TokenFault::Scope, message));
        }
        let may_list = rule == Rule::Anyone || !matches!(token.user, Some(TokenUser::Provided(_)));
        Ok(Identity { user: token.user.map(TokenUser::into_name), may_list })
    }

    async fn authenticate(&self, user: &str, password: &Password) -> Result<bool, Refusal> {
        let Some(users) = &self.0.users else { return Ok(false) };
        users.authenticate(user, password).await.map_err(|_| Refusal::TooMany {
            retry_after: Duration::from_secs(2),
            message: "too many logins are pending; retry, or fetch a token and use it".to_owned(),
        })
    }

    async fn is_user(&self, user: &str) -> bool {
        match &self.0.users {
            Some(users) => users.current().await.contains(user),
            None => false,
        }
    }

    fn unauthorized(&self, wanted: AccessRequest<'_>, fault: TokenFault, message: &str) -> Refusal {
        let challenge = match self.0.challenge {
            Challenge::Basic => challenge::basic(),
            Challenge::Bearer => {
                let scope = wanted.repository.map(|name| (name, wanted.action));
                challenge::bearer(wanted.base_url, &self.0.service, scope, fault)
            }
        };
        Refusal::Unauthorized { challenge, message: message.to_owned() }
    }
}

fn keys_unavailable() -> Refusal {
    Refusal::Unavailable { message: "the keys of the identity provider are not available; retry".to_owned() }
}

/// The message is the same for unknown users and for wrong passwords.
const WRONG_PASSWORD: &str = "the name of the user or the password is wrong";

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("mode", &self.0.mode).finish_non_exhaustive()
    }
}
