//! Parser of the header `WWW-Authenticate`.
//!
//! Registries, proxies and token services use all variants of the grammar and some invalid forms:
//! several challenges in one header or in several headers, quoted and bare values, commas within
//! bare values. The parser skips text that it does not understand. It never fails, and reads each
//! byte a bounded number of times.

use reqwest::Url;
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};

/// Maximum length of a header that is read.
const LONGEST: usize = 16 * 1024;
/// Maximum number of challenges, and of parameters of one.
const MOST: usize = 32;

/// One challenge: a scheme for authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    /// The scheme, in lower case.
    pub(super) scheme: String,
    /// Names in lower case and values without quotes, in their order.
    pub(super) parameters: Vec<(String, String)>,
}

/// The authentication that a registry demands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AuthScheme {
    /// User and password in each request.
    Basic,
    /// A token from a token service.
    Bearer {
        /// The URL of the token service.
        realm: Url,
        /// The name of the registry at the token service.
        service: Option<String>,
        /// The scope that the registry demands.
        scope: Option<String>,
    },
}

impl Challenge {
    /// The first value of a parameter.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

impl AuthScheme {
    /// Chooses the best challenge that is supported. A token is better than a password.
    ///
    /// # Errors
    /// The reason why there is none, for display.
    pub(super) fn choose(challenges: &[Challenge]) -> Result<Self, String> {
        let of = |scheme: &'static str| challenges.iter().filter(move |challenge| challenge.scheme == scheme);
        for bearer in of("bearer") {
            let owned = |name| bearer.get(name).filter(|value| !value.is_empty()).map(str::to_owned);
            if let Some(realm) = bearer.get("realm").and_then(|realm| Url::parse(realm).ok()) {
                return Ok(Self::Bearer { realm, service: owned("service"), scope: owned("scope") });
            }
        }
        if of("basic").next().is_some() {
            return Ok(Self::Basic);
        }
        if of("bearer").next().is_some() {
            return Err("it wants a token, but the `realm` that it names is not a URL".to_owned());
        }
        let short = |challenge: &Challenge| challenge.scheme.chars().take(40).collect::<String>();
        let names: Vec<String> = challenges.iter().map(short).take(4).collect();
        Err(match names[..] {
            [] => "it does not say how to log in".to_owned(),
            _ => format!("it wants `{}`; `bearer` and `basic` are supported", names.join("`, `")),
        })
    }
}

/// Parses all challenges of a response.
pub(super) fn read(headers: &HeaderMap) -> Vec<Challenge> {
    let mut found = Vec::new();
    for value in headers.get_all(WWW_AUTHENTICATE).iter().take(MOST) {
        let bytes = value.as_bytes();
        Reader { bytes: &bytes[..bytes.len().min(LONGEST)], at: 0 }.challenges(&mut found);
    }
    found
}

/// A parser with its position in a header.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The value of a parameter. A bare value may continue after a comma.
struct Value {
    text: String,
    bare: bool,
}

impl Reader<'_> {
    fn challenges(&mut self, found: &mut Vec<Challenge>) {
        while found.len() < MOST {
            self.skip(b" \t,");
            let Some(scheme) = self.word() else {
                if self.at >= self.bytes.len() {
                    return;
                }
                // This byte does not begin a challenge.
                self.at += 1;
                continue;
            };
            let parameters = self.parameters();
            found.push(Challenge { scheme: scheme.to_ascii_lowercase(), parameters });
        }
    }

    /// Parses parameters up to the next challenge.
    fn parameters(&mut self) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = Vec::new();
        let mut bare = false;
        loop {
            self.skip(b" \t,");
            let before = self.at;
            let Some(name) = self.word() else { return found };
            self.skip(b" \t");
            if self.peek() != Some(b'=') {
                // A part of a list in a bare value (`scope=repository:x:pull,push`), or the next
                // challenge.
                if let Some((_, value)) = found.last_mut().filter(|_| bare && self.ends_item() && !is_scheme(&name)) {
                    value.push(',');
                    value.push_str(&name);
                    continue;
                }
                self.at = before;
                return found;
            }
            self.at += 1;
            let value = self.value();
            bare = value.bare;
            if found.len() < MOST {
                found.push((name.to_ascii_lowercase(), value.text));
            }
        }
    }

    fn value(&mut self) -> Value {
        self.skip(b" \t");
        if self.peek() != Some(b'"') {
            let start = self.at;
            while self.peek().is_some_and(|byte| !matches!(byte, b' ' | b'\t' | b',')) {
                self.at += 1;
            }
            return Value { text: text(&self.bytes[start..self.at]), bare: true };
        }
        self.at += 1;
        let mut bytes = Vec::new();
        while let Some(byte) = self.next() {
            match byte {
                b'"' => break,
                b'\\' => bytes.extend(self.next()),
                other => bytes.push(other),
            }
        }
        Value { text: text(&bytes), bare: false }
    }

    /// A name of a scheme or a parameter.
    fn word(&mut self) -> Option<String> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)) {
            self.at += 1;
        }
        (self.at > start).then(|| text(&self.bytes[start..self.at]))
    }

    fn ends_item(&self) -> bool {
        self.peek().is_none_or(|byte| byte == b',')
    }

    fn skip(&mut self, bytes: &[u8]) {
        while self.peek().is_some_and(|byte| bytes.contains(&byte)) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }
}

/// Whether the word is a scheme that may have no parameters.
fn is_scheme(word: &str) -> bool {
    ["basic", "bearer", "negotiate", "ntlm", "kerberos"].iter().any(|scheme| word.eq_ignore_ascii_case(scheme))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng as _, SeedableRng as _};
    use reqwest::header::HeaderValue;

    use super::*;

    fn headers(values: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(WWW_AUTHENTICATE, HeaderValue::from_bytes(value).expect("a header may have these bytes"));
        }
        headers
    }

    /// `scheme name=value name=value; scheme …`
    fn shown(headers: &HeaderMap) -> String {
        let one = |challenge: &Challenge| {
            let parameters = challenge.parameters.iter().map(|(name, value)| format!(" {name}={value}"));
            challenge.scheme.clone() + &parameters.collect::<String>()
        };
        read(headers).iter().map(one).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn reads_what_registries_write() {
        let cases: [(&[&str], &str); 14] = [
            (
                &[
                    r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull""#,
                ],
                "bearer realm=https://auth.docker.io/token service=registry.docker.io scope=repository:a/b:pull",
            ),
            (&[r#"Basic realm="https://x.dkr.ecr/",service="ecr""#], "basic realm=https://x.dkr.ecr/ service=ecr"),
            (&[r#"bEaReR REALM="https://a/t" , Service = "s""#], "bearer realm=https://a/t service=s"),
            (&["Bearer realm=https://a/t?x=1,service=s"], "bearer realm=https://a/t?x=1 service=s"),
            (&[r#"Basic realm="r", Bearer realm="https://a/t""#], "basic realm=r; bearer realm=https://a/t"),
            (&[r#"Basic realm="r""#, r#"Bearer realm="https://a/t""#], "basic realm=r; bearer realm=https://a/t"),
            (&["Negotiate, Basic realm=r"], "negotiate; basic realm=r"),
            (&["Negotiate YWJj==, Basic realm=r"], "negotiate ywjj==; basic realm=r"),
            (
                &[r#"Bearer realm="https://a/t",scope="repository:a:pull,push repository:b:pull""#],
                "bearer realm=https://a/t scope=repository:a:pull,push repository:b:pull",
            ),
            (
                &["Bearer realm=https://a/t,scope=repository:a:pull,push,service=s"],
                "bearer realm=https://a/t scope=repository:a:pull,push service=s",
            ),
            (&[r#"Bearer realm="a \"quoted\" \\ one""#], r#"bearer realm=a "quoted" \ one"#),
            (&[r#"Bearer realm="https://a/t" service="s""#], "bearer realm=https://a/t service=s"),
            (&["Basic"], "basic"),
            (&["Basic realm=r,Basic"], "basic realm=r; basic"),
        ];
        for (values, expect) in cases {
            let bytes: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
            assert_eq!(shown(&headers(&bytes)), expect, "{values:?}");
        }
    }

    #[test]
    fn survives_what_nobody_should_write() {
        let long = format!("Bearer realm=\"{}", "x".repeat(100_000));
        let many = "Bearer a=b,".repeat(20_000);
        let commas = ",".repeat(100_000);
        let hostile: [&[u8]; 12] = [
            b"",
            b",,,, ,",
            b"=",
            b"\"",
            b"Bearer realm=\"",
            b"Bearer realm=\"\\",
            b"Bearer realm",
            b"Bearer =x, =y",
            b"\xff\xfe Bearer realm=\"\xff\"",
            long.as_bytes(),
            many.as_bytes(),
            commas.as_bytes(),
        ];
        for value in hostile {
            let found = read(&headers(&[value]));
            assert!(found.len() <= MOST && found.iter().all(|challenge| challenge.parameters.len() <= MOST));
            // Whatever was parsed, choosing returns an error at worst and does not panic.
            let _ = AuthScheme::choose(&found);
        }
    }

    #[test]
    fn survives_noise() {
        let mut noise = StdRng::seed_from_u64(1);
        for _ in 0..20_000 {
            let length = noise.random_range(0..60);
            let alphabet = b"Bearer Basic realm=\"\"\"\\,,,===   \t:/\xff";
            let value: Vec<u8> = (0..length).map(|_| alphabet[noise.random_range(0..alphabet.len())]).collect();
            let _ = AuthScheme::choose(&read(&headers(&[&value])));
        }
    }

    #[test]
    fn prefers_tokens_that_can_be_had() {
        let choose = |value: &str| AuthScheme::choose(&read(&headers(&[value.as_bytes()])));
        assert_eq!(choose("Bearer realm=nonsense, Basic realm=r"), Ok(AuthScheme::Basic));
        let Ok(AuthScheme::Bearer { realm, service, scope }) =
            choose(r#"Basic, Bearer realm="https://a/t",service="""#)
        else {
            panic!("a token is better than a password");
        };
        assert_eq!((realm.as_str(), service, scope), ("https://a/t", None, None));
        assert!(choose("Bearer").expect_err("no realm").contains("realm"));
        assert!(choose("Digest realm=x").expect_err("not supported").contains("digest"));
        assert!(choose("").is_err());
    }
}
