//! Public keys of identity providers (JWK, RFC 7517), and the signatures that they verify.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature;
use serde::Deserialize;
use serde_json::Value;

/// The algorithms of RFC 7518 and 8037 that are accepted: those with public keys.
#[derive(Clone, Copy)]
pub(super) struct SignatureAlgorithm(&'static str);

impl SignatureAlgorithm {
    pub(super) const ALL: [&'static str; 9] =
        ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];

    /// Parses the name of an algorithm.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|name| *name == text).map(Self)
    }
}

/// A key of a provider.
pub(super) enum PublicKey {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point.
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl PublicKey {
    /// Parses a key of a JWKS, with its id. `None` for keys that verify no signatures.
    pub(super) fn parse(key: Value) -> Option<(Option<String>, Self)> {
        #[derive(Deserialize)]
        struct Jwk {
            kty: String,
            #[serde(default)]
            kid: Option<String>,
            #[serde(default, rename = "use")]
            purpose: Option<String>,
            #[serde(default)]
            crv: Option<String>,
            #[serde(flatten)]
            numbers: HashMap<String, Value>,
        }
        let key: Jwk = serde_json::from_value(key).ok()?;
        if key.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let number = |name: &str| URL_SAFE_NO_PAD.decode(key.numbers.get(name)?.as_str()?).ok();
        let point = |length: usize| {
            let (x, y) = (number("x")?, number("y")?);
            (x.len() == length && y.len() == length).then(|| [&[4], &x[..], &y].concat())
        };
        let parsed = match (key.kty.as_str(), key.crv.as_deref()) {
            ("RSA", _) => Self::Rsa { n: number("n")?, e: number("e")? },
            ("EC", Some("P-256")) => Self::P256(point(32)?),
            ("EC", Some("P-384")) => Self::P384(point(48)?),
            ("OKP", Some("Ed25519")) => Self::Ed25519(number("x")?),
            _ => return None,
        };
        Some((key.kid, parsed))
    }

    /// Whether the signature is right. An algorithm of another kind of key never is.
    pub(super) fn verify(&self, algorithm: SignatureAlgorithm, signed: &[u8], tag: &[u8]) -> bool {
        let verified = match (self, algorithm.0) {
            (Self::Rsa { n, e }, name) => {
                let parameters = match name {
                    "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
                    "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
                    "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                signature::RsaPublicKeyComponents { n, e }.verify(parameters, signed, tag)
            }
            (Self::P256(point), "ES256") => {
                signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point).verify(signed, tag)
            }
            (Self::P384(point), "ES384") => {
                signature::UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, point).verify(signed, tag)
            }
            (Self::Ed25519(key), "EdDSA") => {
                signature::UnparsedPublicKey::new(&signature::ED25519, key).verify(signed, tag)
            }
            _ => return false,
        };
        verified.is_ok()
    }
}
