//! The bytes of the wrong responses.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;

use super::faults::Fault;
use super::server::{Asked, CrossedServer, Step};
use super::subjects::{Model, Subject};

/// The number of zeros in the decompression bomb.
const BOMB: usize = 512 << 20;
/// The number of redirects in a chain.
const CHAIN: u32 = 30;

/// A case in the form that the server runs.
pub(super) struct Script {
    pub(super) key: String,
    pub(super) subject: Subject,
    pub(super) fault: Option<Fault>,
    pub(super) resources: HashMap<String, Bytes>,
    pub(super) target: String,
    storage: SocketAddr,
    canary: SocketAddr,
    /// The number of requests for the target so far.
    turns: AtomicUsize,
}

/// A correct response, or one with small changes.
#[derive(Clone)]
struct Reply {
    version: &'static str,
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
}

impl Script {
    pub(super) fn new(server: &CrossedServer, key: &str, subject: Subject, fault: Option<Fault>, model: Model) -> Self {
        Self {
            key: key.to_owned(),
            subject,
            fault,
            resources: model.resources,
            target: model.target,
            storage: server.storage,
            canary: server.canary,
            turns: AtomicUsize::new(0),
        }
    }

    pub(super) fn turns(&self) -> usize {
        self.turns.load(Ordering::Relaxed)
    }

    /// Returns the response to a request.
    pub(super) fn play(&self, asked: &Asked) -> Vec<Step> {
        let is_elsewhere = asked.query.contains("elsewhere");
        let is_guarded = self.subject == Subject::Token && !asked.resource.is_empty();
        if is_guarded && !asked.authorized && !is_elsewhere {
            return self.challenge(asked).steps();
        }
        let Some(whole) = self.resources.get(&asked.resource) else { return Reply::error("404 Not Found").steps() };
        let healthy = Reply::healthy(whole, asked.range);
        match self.fault.filter(|_| asked.resource == self.target && !is_elsewhere) {
            Some(fault) => self.wrong(fault, asked, whole, healthy),
            None => healthy.steps(),
        }
    }

    fn wrong(&self, fault: Fault, asked: &Asked, whole: &Bytes, healthy: Reply) -> Vec<Step> {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        // A client requests the second half of a blob only after the connection broke in the
        // middle.
        let breaks_off = self.subject.is_blob() && turn == 0;
        match fault {
            Fault::ClosedOnce | Fault::ClosedInMidBodyOnce | Fault::ErrorOnce | Fault::UnavailableOnce if turn > 0 => {
                healthy.steps()
            }
            Fault::AllForAPart | Fault::WrongContentRange | Fault::ChallengeInMidBlob | Fault::ChallengeForEver
                if breaks_off =>
            {
                healthy.half()
            }
            Fault::AllForAPart => Reply::new("200 OK", whole.clone()).steps(),
            Fault::ChallengeInMidBlob | Fault::ChallengeForEver if turn == 0 => healthy.steps(),
            Fault::ChallengeInMidBlob if asked.authorized => healthy.steps(),
            Fault::ChallengeInMidBlob | Fault::ChallengeForEver => self.challenge(asked).steps(),
            Fault::ChallengeNearer => {
                let realm = format!("Bearer realm=\"http://{}/token\",service=\"crossed\"", self.canary);
                Reply::error("401 Unauthorized").with("WWW-Authenticate", realm).steps()
            }
            Fault::RedirectLoop
            | Fault::RedirectChain
            | Fault::RedirectToAFile
            | Fault::RedirectToAnotherScheme
            | Fault::RedirectNowhere
            | Fault::RedirectNearer
            | Fault::RedirectToLocalhost
            | Fault::RedirectToANumber
            | Fault::RedirectNearerOverTls
            | Fault::RedirectElsewhere => self.redirect(fault, asked).map_or_else(|| healthy.steps(), Reply::steps),
            _ => broken(fault, healthy),
        }
    }

    fn challenge(&self, asked: &Asked) -> Reply {
        let realm = format!("Bearer realm=\"http://{}/token/{}\",service=\"crossed\"", asked.at, self.key);
        Reply::error("401 Unauthorized").with("WWW-Authenticate", realm)
    }

    /// Returns the redirect, or `None` at the end of a chain.
    fn redirect(&self, fault: Fault, asked: &Asked) -> Option<Reply> {
        let (path, canary) = (&asked.path, self.canary);
        let port = canary.port();
        let hop: u32 = asked.query.strip_prefix("hop=").and_then(|hop| hop.parse().ok()).unwrap_or(0);
        let to = match fault {
            Fault::RedirectChain if hop >= CHAIN => return None,
            Fault::RedirectChain => format!("{path}?hop={}", hop + 1),
            Fault::RedirectToAFile => "file:///etc/hostname".to_owned(),
            Fault::RedirectToAnotherScheme => format!("ftp://{canary}{path}"),
            Fault::RedirectNearer => format!("http://{canary}{path}"),
            Fault::RedirectToLocalhost => format!("http://localhost:{port}{path}"),
            Fault::RedirectToANumber => format!("http://2130706433:{port}{path}"),
            Fault::RedirectNearerOverTls => format!("https://{canary}{path}"),
            Fault::RedirectElsewhere => format!("http://{}{path}?elsewhere=1", self.storage),
            _ => path.clone(),
        };
        let redirect = Reply::new("307 Temporary Redirect", Bytes::new());
        Some(if fault == Fault::RedirectNowhere { redirect } else { redirect.with("Location", to) })
    }
}

/// Returns responses that derive from the correct one alone.
fn broken(fault: Fault, healthy: Reply) -> Vec<Step> {
    let length = healthy.body.len();
    match fault {
        Fault::ClosedBeforeTheAnswer | Fault::ClosedOnce => Vec::new(),
        Fault::ClosedInTheHeaders => vec![Step::Send(Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Ty"))],
        Fault::ClosedInMidBody | Fault::ClosedInMidBodyOnce => healthy.half(),
        Fault::Silence => healthy.half().into_iter().chain([Step::Silence]).collect(),
        Fault::LengthTooLong => healthy.with("Content-Length", (length + 10).to_string()).steps(),
        Fault::LengthTooShort => healthy.with("Content-Length", (length - 10).to_string()).steps(),
        Fault::Endless => {
            let head = Reply::new("200 OK", Bytes::new()).without("Content-Length").head();
            vec![Step::Send(head), Step::Repeat(Bytes::from(vec![0; 64 << 10]))]
        }
        Fault::WrongBytes => {
            let mut bytes = healthy.body.to_vec();
            bytes[length - 1] ^= 1;
            healthy.body(bytes).steps()
        }
        Fault::Longer => {
            let bytes = [&healthy.body[..], &[b'x'; 100]].concat();
            healthy.body(bytes).steps()
        }
        Fault::Shorter => {
            let bytes = healthy.body[..length / 2].to_vec();
            healthy.body(bytes).steps()
        }
        Fault::WrongType => healthy.with("Content-Type", "text/html".to_owned()).steps(),
        Fault::Empty => Reply::new("200 OK", Bytes::new()).steps(),
        Fault::NoContent => Reply::new("204 No Content", Bytes::new()).without("Content-Length").steps(),
        Fault::PartUnasked => {
            let range = format!("bytes 0-{}/{length}", length - 1);
            Reply { status: "206 Partial Content", ..healthy }.with("Content-Range", range).steps()
        }
        Fault::WrongContentRange => healthy.shifted().steps(),
        Fault::NotSatisfiable => Reply::error("416 Range Not Satisfiable").steps(),
        Fault::Unauthorized => Reply::error("401 Unauthorized").steps(),
        Fault::Forbidden => Reply::error("403 Forbidden").steps(),
        Fault::NotFound => Reply::error("404 Not Found").steps(),
        Fault::TooManyForADay => Reply::error("429 Too Many Requests").with("Retry-After", "86400".to_owned()).steps(),
        Fault::ErrorOnce => Reply::error("500 Internal Server Error").steps(),
        Fault::UnavailableOnce | Fault::Unavailable => Reply::error("503 Service Unavailable").steps(),
        Fault::Drip => vec![Step::Send(healthy.head()), Step::Drip(healthy.body)],
        Fault::HugeHeader => healthy.with("X-Huge", "x".repeat(1 << 20)).steps(),
        Fault::ManyHeaders => (0..10_000).fold(healthy, |reply, _| reply.and("X-Many", "x")).steps(),
        Fault::NotHttp => vec![Step::Send(Bytes::from_static(b"SSH-2.0-OpenSSH_9.6\r\n"))],
        Fault::GarbageForChunks => {
            let head = healthy.without("Content-Length").with("Transfer-Encoding", "chunked".to_owned()).head();
            vec![Step::Send(head), Step::Send(Bytes::from_static(b"zz\r\nnot a chunk\r\n-5\r\n\r\n"))]
        }
        Fault::CompressedBomb => {
            let head = healthy.without("Content-Length").with("Content-Encoding", "gzip".to_owned()).head();
            vec![Step::Send(head), Step::Send(bomb())]
        }
        Fault::Http10 => Reply { version: "HTTP/1.0", ..healthy }.without("Content-Length").steps(),
        Fault::Page => Reply::new("200 OK", Bytes::from_static(b"<html><body>Welcome</body></html>")).steps(),
        // `Script::wrong` handles all other faults.
        _ => unreachable!("{fault:?} is not answered here"),
    }
}

impl Reply {
    fn new(status: &'static str, body: Bytes) -> Self {
        let headers = vec![("Content-Length", body.len().to_string()), ("Connection", "close".to_owned())];
        Self { version: "HTTP/1.1", status, headers, body }
    }

    fn error(status: &'static str) -> Self {
        let body = br#"{"errors":[{"code":"UNKNOWN","message":"as the test wants it"}]}"#;
        Self::new(status, Bytes::from_static(body))
    }

    /// Returns the whole content, or the requested range.
    fn healthy(whole: &Bytes, range: Option<(usize, usize)>) -> Self {
        let Some((first, last)) = range else { return Self::new("200 OK", whole.clone()) };
        let end = last.saturating_add(1).min(whole.len());
        if first >= end {
            return Self::error("416 Range Not Satisfiable");
        }
        let range = format!("bytes {first}-{}/{}", end - 1, whole.len());
        Self::new("206 Partial Content", whole.slice(first..end)).with("Content-Range", range)
    }

    fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(own, _)| *own != name);
        self
    }

    /// Replaces a header.
    fn with(self, name: &'static str, value: String) -> Self {
        let mut reply = self.without(name);
        reply.headers.push((name, value));
        reply
    }

    /// Adds a header, also if one of that name exists.
    fn and(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// Replaces the body, and adjusts the length.
    fn body(self, bytes: Vec<u8>) -> Self {
        let reply = self.with("Content-Length", bytes.len().to_string());
        Self { body: bytes.into(), ..reply }
    }

    /// Changes the first offset in `Content-Range` to a wrong one.
    fn shifted(self) -> Self {
        let range = self.headers.iter().find(|(name, _)| *name == "Content-Range").map(|(_, range)| range);
        let wrong = range.map_or_else(|| "bytes 1-2/3".to_owned(), |range| range.replacen("bytes ", "bytes 1", 1));
        self.with("Content-Range", wrong)
    }

    fn head(&self) -> Bytes {
        let headers = self.headers.iter().flat_map(|(name, value)| [*name, ": ", value.as_str(), "\r\n"]);
        let headers: String = headers.collect();
        format!("{} {}\r\n{headers}\r\n", self.version, self.status).into()
    }

    fn steps(self) -> Vec<Step> {
        vec![Step::Send(self.head()), Step::Send(self.body)]
    }

    /// Returns the head, and half of the announced body.
    fn half(self) -> Vec<Step> {
        vec![Step::Send(self.head()), Step::Send(self.body.slice(..self.body.len() / 2))]
    }
}

/// Returns zeros as a gzip member, generated once.
fn bomb() -> Bytes {
    static MADE: LazyLock<Bytes> = LazyLock::new(compressed_zeros);
    MADE.clone()
}

/// Returns a deflate block with fixed codes: a zero, then copies of it, 258 bytes in each 13 bits.
/// The checksum is missing, because no client reads that far.
fn compressed_zeros() -> Bytes {
    let mut bytes = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let (mut pending, mut count) = (0_u32, 0);
    // The bits of: last block, fixed codes; the literal 0. Codes are stored from their highest bit,
    // all other fields from their lowest.
    let begin = [1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0].into_iter();
    let copy = [1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0];
    let end = [0; 7].into_iter();
    for bit in begin.chain(std::iter::repeat_n(copy, BOMB / 258).flatten()).chain(end) {
        pending |= bit << count;
        count += 1;
        if count == 8 {
            bytes.push(u8::try_from(pending).expect("8 bits"));
            (pending, count) = (0, 0);
        }
    }
    bytes.push(u8::try_from(pending).expect("less than 8 bits"));
    bytes.into()
}
