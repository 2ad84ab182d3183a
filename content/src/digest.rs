//! Digests: the names of blobs.

use std::fmt;
use std::str::FromStr;

use sha2::Digest as _;
use sha2::digest::common::hazmat::SerializableState;

/// A hash function that may name blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// SHA-256. Lode uses it for the blobs that it writes.
    Sha256,
    /// SHA-512. Lode accepts it in documents and blobs from other tools.
    Sha512,
}

impl Algorithm {
    /// The name that precedes the colon of a digest.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    /// Length of the hash in bytes.
    pub fn length(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }
}

/// The name of a blob: `sha256:` or `sha512:` and the lower-case hex of its hash.
///
/// Each digest has one spelling. Upper-case hex is refused and not converted to lower case, as the
/// OCI specification requires.
///
/// # Examples
///
/// ```
/// use lode_content::Digest;
///
/// let digest = Digest::of(b"hello");
/// assert!(digest.to_string().starts_with("sha256:2cf24dba5fb0"));
/// assert_eq!(digest.to_string().parse(), Ok(digest));
/// assert!("sha256:2CF24DBA".parse::<Digest>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest {
    algorithm: Algorithm,
    /// The hash, in the first `algorithm.length()` bytes; the other bytes are zero.
    hash: [u8; 64],
}

/// Reasons why a text is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseDigestError {
    /// There is no colon.
    #[error("`{0}` is not a digest: expected `sha256:` and 64 hex digits")]
    NoColon(String),
    /// The algorithm is not one of [`Algorithm`].
    #[error("digest algorithm `{0}` is not supported; expected `sha256` or `sha512`")]
    Algorithm(String),
    /// The hex part has the wrong length or characters outside of `0-9a-f`.
    #[error("digest `{text}` is malformed: expected {expected} lower-case hex digits after the colon")]
    Hex {
        /// The whole text.
        text: String,
        /// Number of hex digits that the algorithm requires.
        expected: usize,
    },
}

impl Digest {
    /// Hashes `bytes` with SHA-256.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(bytes);
        hasher.finish()
    }

    /// The hash function.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The hash as lower-case hex, without the algorithm.
    pub fn hex(&self) -> String {
        hex(self.as_bytes())
    }

    /// The first twelve hex digits, a short form for display.
    pub fn short(&self) -> String {
        hex(&self.hash[..6])
    }

    /// The hash itself: 32 or 64 bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.hash[..self.algorithm.length()]
    }

    /// The first 64 bits, for large sets that may take two digests for each other. Among 10 million
    /// digests that happens at all with a chance of one in 300,000.
    pub fn fingerprint(&self) -> u64 {
        u64::from_le_bytes(*self.as_bytes().first_chunk().expect("invariant: a digest has 32 bytes or more"))
    }

    /// The digest of which [`Digest::as_bytes`] returned these bytes; `None` if their number is
    /// wrong.
    pub fn from_bytes(algorithm: Algorithm, bytes: &[u8]) -> Option<Self> {
        (bytes.len() == algorithm.length()).then(|| Self::from_hash(algorithm, bytes))
    }

    fn from_hash(algorithm: Algorithm, bytes: &[u8]) -> Self {
        let mut hash = [0; 64];
        hash[..bytes.len()].copy_from_slice(bytes);
        Self { algorithm, hash }
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || text.chars().take(160).collect::<String>();
        let (name, digits) = text.split_once(':').ok_or_else(|| ParseDigestError::NoColon(shown()))?;
        let algorithm = match name {
            "sha256" => Algorithm::Sha256,
            "sha512" => Algorithm::Sha512,
            _ => return Err(ParseDigestError::Algorithm(name.chars().take(40).collect())),
        };
        let malformed = || ParseDigestError::Hex { text: shown(), expected: algorithm.length() * 2 };
        let digits = digits.as_bytes();
        if digits.len() != algorithm.length() * 2 {
            return Err(malformed());
        }
        let mut hash = [0; 64];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            let (high, low) = (nibble(pair[0]), nibble(pair[1]));
            *byte = high.zip(low).map(|(h, l)| h << 4 | l).ok_or_else(malformed)?;
        }
        Ok(Self { algorithm, hash })
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Incremental hash state.
#[derive(Clone)]
pub struct Hasher(HashState);

#[derive(Clone)]
enum HashState {
    Sha256(sha2::Sha256),
    Sha512(Box<sha2::Sha512>),
}

impl Hasher {
    /// Starts a hash over zero bytes.
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Sha256 => HashState::Sha256(sha2::Sha256::new()),
            Algorithm::Sha512 => HashState::Sha512(Box::new(sha2::Sha512::new())),
        })
    }

    /// Appends `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            HashState::Sha256(state) => state.update(bytes),
            HashState::Sha512(state) => state.update(bytes),
        }
    }

    /// The state as bytes, for [`Hasher::resume`].
    pub fn state(&self) -> Vec<u8> {
        match &self.0 {
            HashState::Sha256(state) => state.serialize().to_vec(),
            HashState::Sha512(state) => state.serialize().to_vec(),
        }
    }

    /// Continues from a state, perhaps of another process; `None` if the bytes are not one.
    ///
    /// # Examples
    ///
    /// ```
    /// use lode_content::{Algorithm, Digest, Hasher};
    ///
    /// let mut first = Hasher::new(Algorithm::Sha256);
    /// first.update(b"hello ");
    /// let mut second = Hasher::resume(Algorithm::Sha256, &first.state()).expect("a state");
    /// second.update(b"world");
    /// assert_eq!(second.finish(), Digest::of(b"hello world"));
    /// ```
    pub fn resume(algorithm: Algorithm, state: &[u8]) -> Option<Self> {
        Some(Self(match algorithm {
            Algorithm::Sha256 => HashState::Sha256(sha2::Sha256::deserialize(state.try_into().ok()?).ok()?),
            Algorithm::Sha512 => HashState::Sha512(Box::new(sha2::Sha512::deserialize(state.try_into().ok()?).ok()?)),
        }))
    }

    /// The digest of all bytes so far.
    pub fn finish(self) -> Digest {
        match self.0 {
            HashState::Sha256(state) => Digest::from_hash(Algorithm::Sha256, &state.finalize()),
            HashState::Sha512(state) => Digest::from_hash(Algorithm::Sha512, &state.finalize()),
        }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_hashes() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        let mut hasher = Hasher::new(Algorithm::Sha512);
        hasher.update(b"a");
        hasher.update(b"bc");
        assert!(hasher.finish().to_string().starts_with("sha512:ddaf35a193617abacc417349ae204131"));
    }

    #[test]
    fn one_spelling() {
        let text = Digest::of(b"x").to_string();
        assert_eq!(text.parse::<Digest>().expect("own output parses").to_string(), text);
        for bad in [
            "",
            "sha256",
            "sha256:",
            "md5:d41d8cd98f00b204e9800998ecf8427e",
            "SHA256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "sha256:E3B0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b85",
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b8555",
            "sha256:../../../../etc/passwd",
            "sha512:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad} was accepted");
        }
    }
}
