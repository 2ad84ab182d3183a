//! Who may do what: users, tokens, and links to single blobs.
//!
//! ```text
//! request ──▶ credentials ──Basic───▶ users (htpasswd, bcrypt) ─┐
//!                     └────Bearer──▶ token (signed) ────────────┴─▶ mode: anyone, a user, nobody ──▶ Identity | Refusal
//! ```
//!
//! There are no rights per repository: users may do what the mode lets users do. A token may do less than its user: only
//! what it was asked for, in the repositories it was asked for. A user who is removed from the file is refused at once,
//! also with a token; a password that is changed leaves tokens good until they are over. Both ways of proving who one is
//! are always accepted; [`Challenge`] is the one that is offered.
//!
//! In the modes [`Mode::Open`] and [`Mode::ReadOnly`] nobody has to be known, so nobody is asked, and credentials are not
//! looked at.

mod challenge;
mod clock;
mod credentials;
mod error;
mod key;
mod link;
mod password;
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
pub use password::htpasswd_line;
pub use refusal::Refusal;
pub use token_endpoint::{ask_for_password, secret_as_token};

use crate::RepositoryName;
use challenge::TokenFault;
use credentials::{Credentials, Password};
use link::Linker;
use token::Signer;
use users::UserFile;

/// Where tokens are fetched. The challenge names it; the server has to send it to [`Access::token`].
pub const TOKEN_PATH: &str = "/v2/token";

/// The secret that a request carries, whoever's it is: what stands behind `Bearer`, or the password of `Basic`.
pub fn secret(headers: &HeaderMap) -> Option<String> {
    match Credentials::of(headers) {
        Credentials::Bearer(secret) => Some(secret),
        Credentials::Basic { password, .. } => Some(password.0),
        Credentials::Absent | Credentials::Malformed(_) => None,
    }
}

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Read.
    Pull,
    /// Add blobs, manifests and tags.
    Push,
    /// Remove them.
    Delete,
}

impl Action {
    /// The word in scopes and tokens.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Delete => "delete",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Pull, Self::Push, Self::Delete].into_iter().find(|action| action.as_str() == text)
    }
}

/// How much strangers may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everybody may do everything.
    Open,
    /// Everybody may pull, nobody may do more.
    ReadOnly,
    /// Everybody may pull; users may push and delete.
    AnonymousPull,
    /// Users may do everything, others nothing.
    Private,
}

/// Who may do one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Whoever asks.
    Anyone,
    /// Who is in the file of users.
    User,
    /// Nobody.
    Nobody,
}

impl Mode {
    const ALL: [Self; 4] = [Self::Open, Self::ReadOnly, Self::AnonymousPull, Self::Private];

    /// Reads what a configuration says.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }

    /// The word in a configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::ReadOnly => "read-only",
            Self::AnonymousPull => "anonymous-pull",
            Self::Private => "private",
        }
    }

    /// Whether there is something that only users may do.
    pub fn needs_users(self) -> bool {
        matches!(self, Self::AnonymousPull | Self::Private)
    }

    /// Who may do that.
    pub fn rule(self, action: Action) -> Rule {
        match (self, action) {
            (Self::Open, _) | (Self::ReadOnly | Self::AnonymousPull, Action::Pull) => Rule::Anyone,
            (Self::ReadOnly, Action::Push | Action::Delete) => Rule::Nobody,
            (Self::AnonymousPull, Action::Push | Action::Delete) | (Self::Private, _) => Rule::User,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How access is to be.
#[derive(Clone, Debug)]
pub struct AccessOptions {
    /// How much strangers may do.
    pub mode: Mode,
    /// The htpasswd file with the users; needed where [`Mode::needs_users`].
    pub users: Option<PathBuf>,
    /// What tokens and links are signed with. One from a file keeps them good over a restart.
    pub token_key: TokenKey,
    /// How long a token is good; 15 minutes.
    pub token_life: Duration,
    /// How long a link to a blob is good; 6 hours, as the whole blob is read from it.
    pub link_life: Duration,
    /// Which way of proving who one is a refused request is offered; tokens.
    pub challenge: Challenge,
    /// What the server calls itself in challenges and tokens; `lode`.
    pub service: String,
    /// The time.
    pub clock: Clock,
}

impl AccessOptions {
    /// No users, and what the fields say otherwise.
    pub fn new(mode: Mode, token_key: TokenKey) -> Self {
        Self {
            mode,
            users: None,
            token_key,
            token_life: Duration::from_mins(15),
            link_life: Duration::from_hours(6),
            challenge: Challenge::Bearer,
            service: "lode".to_owned(),
            clock: Clock::system(),
        }
    }
}

/// Who sent a request that is let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user; `None` where nobody had to say.
    pub user: Option<String>,
}

/// Decides who may do what. Clones share everything.
#[derive(Clone)]
pub struct Access(Arc<Inner>);

struct Inner {
    mode: Mode,
    users: Option<Arc<UserFile>>,
    signer: Signer,
    linker: Linker,
    token_life: Duration,
    link_life: Duration,
    challenge: Challenge,
    service: String,
    clock: Clock,
}

/// What a request asks for, and where it came in.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    base_url: &'a str,
    /// `None` is the base of the API and what else belongs to no repository.
    repository: Option<&'a RepositoryName>,
    action: Action,
}

impl Access {
    /// Everybody may do everything.
    pub fn open() -> Self {
        Self::with_users(AccessOptions::new(Mode::Open, TokenKey::random()), None)
    }

    /// Reads the users and sets everything up.
    pub fn new(options: AccessOptions) -> Result<Self, AccessError> {
        let printable = |c: char| (c.is_ascii_graphic() || c == ' ') && !matches!(c, '"' | '\\');
        if !(1..=128).contains(&options.service.len()) || !options.service.chars().all(printable) {
            return Err(AccessError::Service(options.service.chars().take(128).collect()));
        }
        if options.mode.needs_users() && options.users.is_none() {
            return Err(AccessError::NeedsUsers(options.mode));
        }
        let users = options.users.as_deref().map(UserFile::open).transpose()?;
        Ok(Self::with_users(options, users))
    }

    fn with_users(options: AccessOptions, users: Option<UserFile>) -> Self {
        Self(Arc::new(Inner {
            mode: options.mode,
            users: users.map(Arc::new),
            signer: Signer::new(&options.token_key, &options.service),
            linker: Linker::new(&options.token_key),
            token_life: options.token_life,
            link_life: options.link_life,
            challenge: options.challenge,
            service: options.service,
            clock: options.clock,
        }))
    }

    /// Lets a request through or says why not. `base_url` is scheme and host as the client sees them;
    /// `repository` is `None` for the base of the API and what else belongs to no repository. Does not block.
    ///
    /// Where strangers may pull but not push, the base of the API still asks who one is: many clients look only there
    /// whether they will need a token later. Strangers get one too.
    pub async fn check(
        &self,
        headers: &HeaderMap,
        base_url: &str,
        repository: Option<&RepositoryName>,
        action: Action,
    ) -> Result<Identity, Refusal> {
        let wanted = Wanted { base_url, repository, action };
        let rule = self.0.mode.rule(action);
        if rule == Rule::Nobody {
            let message = format!("this registry is read-only: nobody may {} here", action.as_str());
            return Err(Refusal::Denied { message });
        }
        if !self.0.mode.needs_users() {
            return Ok(Identity { user: None });
        }
        match Credentials::of(headers) {
            Credentials::Absent if rule == Rule::Anyone && repository.is_some() => Ok(Identity { user: None }),
            Credentials::Absent => Err(self.unauthorized(wanted, TokenFault::Absent, "say who you are: log in first")),
            Credentials::Malformed(reason) => Err(self.unauthorized(wanted, TokenFault::Invalid, reason)),
            Credentials::Basic { user, password } => {
                if !self.authenticate(&user, &password).await? {
                    return Err(self.unauthorized(wanted, TokenFault::Absent, WRONG_PASSWORD));
                }
                Ok(Identity { user: Some(user) })
            }
            Credentials::Bearer(text) => self.check_token(wanted, rule, &text).await,
        }
    }

    /// Like [`Access::check`] for reading one blob, and also lets through who has a link to it. `query` is the
    /// request's.
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
            return Ok(Identity { user: None });
        }
        self.check(headers, base_url, Some(repository), Action::Pull).await
    }

    /// The query that makes the address of a blob a link: who has it may read this blob for a while. Only for requests
    /// that were let through.
    pub fn sign_blob(&self, repository: &RepositoryName, digest: &Digest) -> String {
        let expires = self.0.clock.seconds().saturating_add(self.0.link_life.as_secs());
        self.0.linker.sign(repository, digest, expires)
    }

    /// Asks who somebody is, in the way that is offered. For whoever decides elsewhere; `base_url` as in [`Access::check`].
    pub fn ask(&self, base_url: &str, message: &str) -> Refusal {
        let wanted = Wanted { base_url, repository: None, action: Action::Pull };
        self.unauthorized(wanted, TokenFault::Absent, message)
    }

    /// Whether strangers may read; links are not needed then.
    pub fn anyone_may_pull(&self) -> bool {
        self.0.mode.rule(Action::Pull) == Rule::Anyone
    }

    async fn check_token(&self, wanted: Wanted<'_>, rule: Rule, text: &str) -> Result<Identity, Refusal> {
        let token = self.0.signer.verify(text, self.0.clock.seconds());
        let token = token.map_err(|reason| self.unauthorized(wanted, TokenFault::Invalid, reason))?;
        if let Some(user) = &token.user
            && !self.is_user(user).await
        {
            return Err(self.unauthorized(wanted, TokenFault::Invalid, "the token's user is not there any more"));
        }
        // The mode may have changed since the token was given.
        if rule == Rule::User && token.user.is_none() {
            return Err(self.unauthorized(wanted, TokenFault::Scope, "this needs a user: log in first"));
        }
        let granted = wanted.repository.is_none_or(|name| token.grants.contains(name, wanted.action));
        if !granted && rule != Rule::Anyone {
            let message = "the token is not for this; fetch one with the scope that this answer names";
            return Err(self.unauthorized(wanted, TokenFault::Scope, message));
        }
        Ok(Identity { user: token.user })
    }

    async fn authenticate(&self, user: &str, password: &Password) -> Result<bool, Refusal> {
        let Some(users) = &self.0.users else { return Ok(false) };
        users.authenticate(user, password).await.map_err(|_| Refusal::TooMany {
            retry_after: Duration::from_secs(2),
            message: "too many passwords wait for being checked; try again, or fetch a token and use that".to_owned(),
        })
    }

    async fn is_user(&self, user: &str) -> bool {
        match &self.0.users {
            Some(users) => users.current().await.contains(user),
            None => false,
        }
    }

    fn unauthorized(&self, wanted: Wanted<'_>, fault: TokenFault, message: &str) -> Refusal {
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

/// The same for users who are there and those who are not.
const WRONG_PASSWORD: &str = "the name of the user or the password is wrong";

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("mode", &self.0.mode).finish_non_exhaustive()
    }
}
