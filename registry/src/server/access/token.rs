//! Tokens: JSON Web Tokens (RFC 7519), signed with HMAC-SHA-256.
//!
//! Only the server reads them. It accepts one algorithm and one key, and reads the header only to
//! refuse others. So no token can choose how it is verified.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde::{Deserialize, Serialize};

use super::Action;
use super::key::TokenKey;
use super::scope::Grants;
use crate::RepositoryName;

/// Tolerated difference between the clocks of servers that share a key, in seconds.
const SKEW: u64 = 60;
/// Maximum length of a token in bytes.
const MAX_TOKEN: usize = 16 << 10;
const ALGORITHM: &str = "HS256";

/// The content of a verified token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccessToken {
    /// The user; `None` for a client without a login.
    pub(super) user: Option<TokenUser>,
    /// The permissions.
    pub(super) grants: Grants,
}

/// The user of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TokenUser {
    /// A user of the file of users. The user must still exist when the token is used.
    Local(String),
    /// A user of an identity provider.
    Provided(String),
}

impl TokenUser {
    pub(super) fn into_name(self) -> String {
        match self {
            Self::Local(name) | Self::Provided(name) => name,
        }
    }
}

/// Signs and verifies tokens.
#[derive(Debug)]
pub(super) struct Signer {
    key: hmac::Key,
    key_id: String,
    service: String,
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    typ: String,
    kid: String,
    /// Critical extensions. None are supported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crit: Option<serde_json::Value>,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    iss: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sub: Option<String>,
    /// Whether `sub` is a user of an identity provider.
    #[serde(default)]
    provided: bool,
    aud: String,
    exp: u64,
    nbf: u64,
    iat: u64,
    jti: String,
    access: Vec<TokenGrant>,
}

#[derive(Serialize, Deserialize)]
struct TokenGrant {
    #[serde(rename = "type")]
    kind: String,
    name: String,
    actions: Vec<String>,
}

impl Signer {
    /// Creates a signer for one service. Tokens of other services with the same key are refused.
    pub(super) fn new(key: &TokenKey, service: &str) -> Self {
        Self { key: key.derive("lode registry token"), key_id: key.id(), service: service.to_owned() }
    }

    /// Signs a token that is valid from `now` for `life` seconds.
    pub(super) fn sign(&self, token: &AccessToken, now: u64, life: u64) -> String {
        let entry = |(name, actions): (&RepositoryName, &std::collections::BTreeSet<Action>)| TokenGrant {
            kind: "repository".to_owned(),
            name: name.to_string(),
            actions: actions.iter().map(|action| action.as_str().to_owned()).collect(),
        };
        let claims = Claims {
            iss: self.service.clone(),
            sub: token.user.clone().map(TokenUser::into_name),
            provided: matches!(token.user, Some(TokenUser::Provided(_))),
            aud: self.service.clone(),
            exp: now.saturating_add(life),
            nbf: now,
            iat: now,
            jti: URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>()),
            access: token.grants.iter().map(entry).collect(),
        };
        let header = Header { alg: ALGORITHM.to_owned(), typ: "JWT".to_owned(), kid: self.key_id.clone(), crit: None };
        let mut text = format!("{}.{}", encode(&header), encode(&claims));
        let tag = hmac::sign(&self.key, text.as_bytes());
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(tag.as_ref(), &mut text);
        text
    }

    /// Parses and verifies a token at the time `now`. The error is the message for the client.
    pub(super) fn verify(&self, text: &str, now: u64) -> Result<AccessToken, &'static str> {
        const MALFORMED: &str = "the token is malformed";
        if text.len() > MAX_TOKEN {
            return Err(MALFORMED);
        }
        let (signed, tag) = text.rsplit_once('.').ok_or(MALFORMED)?;
        let (header, claims) = signed.split_once('.').ok_or(MALFORMED)?;
        let header: Header = decode(header).ok_or(MALFORMED)?;
        if header.alg != ALGORITHM || header.crit.is_some() {
            return Err("the token is signed in a way that is not accepted");
        }
        if header.kid != self.key_id {
            return Err("the token is signed with another key; fetch a new one");
        }
        let tag = URL_SAFE_NO_PAD.decode(tag).map_err(|_| MALFORMED)?;
        hmac::verify(&self.key, signed.as_bytes(), &tag).map_err(|_| "the token's signature is wrong")?;
        let claims: Claims = decode(claims).ok_or(MALFORMED)?;
        if claims.aud != self.service || claims.iss != self.service {
            return Err("the token is for another service");
        }
        if now >= claims.exp.saturating_add(SKEW) {
            return Err("the token has expired; fetch a new one");
        }
        if now.saturating_add(SKEW) < claims.nbf {
            return Err("the token is not valid yet; check the clocks");
        }
        let mut grants = Grants::default();
        for entry in claims.access.iter().filter(|entry| entry.kind == "repository") {
            let name = RepositoryName::parse(&entry.name).map_err(|_| MALFORMED)?;
            grants.add(name, entry.actions.iter().filter_map(|action| Action::parse(action))).map_err(|_| MALFORMED)?;
        }
        let kind = if claims.provided { TokenUser::Provided } else { TokenUser::Local };
        Ok(AccessToken { user: claims.sub.map(kind), grants })
    }
}

fn encode(value: &impl Serialize) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(value).expect("invariant: strings and numbers are JSON"))
}

fn decode<T: serde::de::DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn token() -> AccessToken {
        let grants = Grants::parse(["repository:a/b:pull,push repository:c:pull"]).expect("two");
        AccessToken { user: Some(TokenUser::Local("anna".to_owned())), grants }
    }

    #[test]
    fn access_tokens_come_back_as_they_were() {
        let key = TokenKey::random();
        let signer = Signer::new(&key, "lode");
        let text = signer.sign(&token(), NOW, 300);
        assert_eq!(signer.verify(&text, NOW), Ok(token()));
        let provided = AccessToken { user: Some(TokenUser::Provided("anna".to_owned())), ..token() };
        assert_eq!(signer.verify(&signer.sign(&provided, NOW, 300), NOW), Ok(provided));
        let nobody = AccessToken { user: None, grants: Grants::default() };
        assert_eq!(signer.verify(&signer.sign(&nobody, NOW, 300), NOW), Ok(nobody));
        for (now, good) in [
            (NOW - 60, true),
            (NOW - 61, false),
            (NOW + 300, true),
            (NOW + 359, true),
            (NOW + 360, false),
            (0, false),
            (u64::MAX, false),
        ] {
            assert_eq!(signer.verify(&text, now).is_ok(), good, "{now}");
        }
        assert!(Signer::new(&key, "other").verify(&text, NOW).is_err(), "another service");
        let stranger = Signer::new(&TokenKey::random(), "lode").sign(&token(), NOW, 300);
        assert!(signer.verify(&stranger, NOW).is_err(), "another key");
    }

    #[test]
    fn access_tokens_that_were_tampered_with_are_refused() {
        let signer = Signer::new(&TokenKey::random(), "lode");
        let text = signer.sign(&token(), NOW, 300);
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(bytes).expect("ASCII");
            assert!(signer.verify(&changed, NOW).is_err(), "changed at {at}");
        }
        let parts: Vec<&str> = text.split('.').collect();
        let header = |alg: &str, more: &str| {
            URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"{alg}","typ":"JWT","kid":"{}"{more}}}"#, signer.key_id))
        };
        for alg in ["none", "None", "HS384", "RS256", ""] {
            let unsigned = format!("{}.{}.", header(alg, ""), parts[1]);
            assert!(signer.verify(&unsigned, NOW).is_err(), "{alg}");
            let kept = format!("{}.{}.{}", header(alg, ""), parts[1], parts[2]);
            assert!(signer.verify(&kept, NOW).is_err(), "{alg}");
            let signed = format!("{}.{}", header(alg, ""), parts[1]);
            let tag = URL_SAFE_NO_PAD.encode(hmac::sign(&signer.key, signed.as_bytes()));
            assert!(signer.verify(&format!("{signed}.{tag}"), NOW).is_err(), "{alg} with our own signature");
        }
        let critical = format!("{}.{}", header("HS256", r#","crit":["x"]"#), parts[1]);
        let tag = URL_SAFE_NO_PAD.encode(hmac::sign(&signer.key, critical.as_bytes()));
        assert!(signer.verify(&format!("{critical}.{tag}"), NOW).is_err());
        let long = "a".repeat(MAX_TOKEN + 1);
        for bad in ["", ".", "..", "a.b.c", "é.é.é", &text[..text.len() - 1], &format!("{text}."), &long] {
            assert!(signer.verify(bad, NOW).is_err(), "{bad:.40}");
        }
    }
}
