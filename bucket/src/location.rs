//! Where a bucket is, and how to reach it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, Checksum, S3ConditionalPut};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::ClientOptions;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{BackoffConfig, RetryConfig};
use url::Url;

use crate::Error;
use crate::objects::{Engine, Objects};
use crate::part_sizes::PartSizes;

/// How long a connection may be silent while the storage handles a request.
const SILENCE: Duration = Duration::from_mins(2);
const CONNECT: Duration = Duration::from_secs(5);
/// How long a failed request is tried again. Clients of the registry wait meanwhile.
const RETRIES: Duration = Duration::from_secs(30);

/// The kind of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StorageKind {
    S3,
    Google,
    Azure,
    Memory,
}

/// The location of a bucket: its URL, and the settings of its provider.
#[derive(Clone)]
pub struct Location {
    url: Url,
    kind: StorageKind,
    /// Settings by the names of environment variables in lower case, such as `aws_access_key_id`.
    options: BTreeMap<String, String>,
}

impl Location {
    /// Parses a URL: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or
    /// `memory://`. `options` are the environment variables of the provider's own tools
    /// (`AWS_…`, `GOOGLE_…`, `AZURE_…`).
    ///
    /// # Errors
    /// The URL is malformed, or of an unknown kind.
    pub fn parse(url: &str, options: impl IntoIterator<Item = (String, String)>) -> Result<Self, Error> {
        let wrong = |reason: &str| Error::Location { url: without_secrets(url), reason: reason.to_owned() };
        let parsed = Url::parse(url).map_err(|e| wrong(&e.to_string()))?;
        let kind = match parsed.scheme() {
            "s3" => StorageKind::S3,
            "gs" => StorageKind::Google,
            "az" => StorageKind::Azure,
            "memory" => StorageKind::Memory,
            other => return Err(wrong(&format!("`{other}` is not a kind of storage"))),
        };
        if kind != StorageKind::Memory && parsed.host_str().is_none_or(str::is_empty) {
            return Err(wrong("it names no bucket"));
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(wrong("credentials belong into the environment"));
        }
        let prefix = parsed.path().trim_matches('/');
        if Path::from(prefix).as_ref() != prefix {
            return Err(wrong("its prefix has characters or parts that keys of objects should not have"));
        }
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err(wrong("it has a query or a fragment"));
        }
        let options = options.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
        Ok(Self { url: parsed, kind, options })
    }

    /// Whether the content ends with the process.
    pub fn is_memory(&self) -> bool {
        self.kind == StorageKind::Memory
    }

    /// The URL of a storage with the interface of S3, if it is not Amazon's.
    fn endpoint(&self) -> Option<&str> {
        let names = ["aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint"];
        names.iter().find_map(|name| self.options.get(*name)).map(String::as_str)
    }

    pub(crate) fn connect(&self) -> Result<(Objects, PartSizes), Error> {
        let unusable = |e: object_store::Error| Error::Unusable { storage: self.to_string(), reason: e.to_string() };
        let (engine, signer): (Arc<dyn Engine>, Option<Arc<dyn Signer>>) = match self.kind {
            StorageKind::Memory => (Arc::new(InMemory::new()), None),
            StorageKind::S3 => shared(self.s3().build().map_err(unusable)?),
            StorageKind::Google => shared(self.google().build().map_err(unusable)?),
            StorageKind::Azure => shared(self.azure().build().map_err(unusable)?),
        };
        let endpoint = self.endpoint().unwrap_or_default();
        let sizes = if endpoint.contains(".r2.cloudflarestorage.com") { PartSizes::Equal } else { PartSizes::Growing };
        Ok((Objects::new(engine, signer, self.url.path()), sizes))
    }

    /// Settings that the provider does not know, such as those of other tools, are ignored.
    fn s3(&self) -> AmazonS3Builder {
        let start = AmazonS3Builder::new()
            .with_url(self.url.as_str())
            .with_client_options(client())
            .with_retry(retry())
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_checksum_algorithm(Checksum::SHA256);
        let plain = self.endpoint();
        let start =
            if plain.is_some_and(|url| url.starts_with("http://")) { start.with_allow_http(true) } else { start };
        self.options.iter().fold(start, |builder, (name, value)| match name.parse() {
            Ok(key) if name.starts_with("aws_") => builder.with_config(key, value),
            _ => builder,
        })
    }

    fn google(&self) -> GoogleCloudStorageBuilder {
        let start = GoogleCloudStorageBuilder::new()
            .with_url(self.url.as_str())
            .with_client_options(client())
            .with_retry(retry());
        self.options.iter().fold(start, |builder, (name, value)| match name.parse() {
            Ok(key) if name.starts_with("google_") => builder.with_config(key, value),
            _ => builder,
        })
    }

    fn azure(&self) -> MicrosoftAzureBuilder {
        let start =
            MicrosoftAzureBuilder::new().with_url(self.url.as_str()).with_client_options(client()).with_retry(retry());
        self.options.iter().fold(start, |builder, (name, value)| match name.parse() {
            Ok(key) if name.starts_with("azure_") => builder.with_config(key, value),
            _ => builder,
        })
    }
}

fn shared<T: Engine + Signer>(store: T) -> (Arc<dyn Engine>, Option<Arc<dyn Signer>>) {
    let store = Arc::new(store);
    (store.clone(), Some(store))
}

/// Requests have no time limit as a whole, because blobs are large.
fn client() -> ClientOptions {
    ClientOptions::new()
        .with_timeout_disabled()
        .with_read_timeout(SILENCE)
        .with_connect_timeout(CONNECT)
        .with_user_agent(http::HeaderValue::from_static(concat!("lode/", env!("CARGO_PKG_VERSION"))))
}

fn retry() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 10, retry_timeout: RETRIES }
}

/// A URL without a user and a password.
fn without_secrets(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://…@{rest}"),
        _ => url.to_owned(),
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str())
    }
}

/// The options contain secrets.
impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Location").field("url", &self.url.as_str()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked() {
        for good in ["s3://models", "s3://models/a/b", "gs://x/", "az://container/prefix", "memory://"] {
            assert!(Location::parse(good, []).is_ok(), "{good}");
        }
        for (bad, reason) in [
            ("models", "relative URL"),
            ("file:///tmp", "`file`"),
            ("s3://", "no bucket"),
            ("s3://user:secret@models/x", "environment"),
            ("s3://models?region=x", "query"),
            ("s3://models/a//b", "prefix"),
            ("s3://models/my%20x", "prefix"),
        ] {
            let error = Location::parse(bad, []).expect_err(bad).to_string();
            assert!(error.contains(reason) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn settings_come_from_the_environment() {
        // An error means that another test has installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let options = [("AWS_ENDPOINT_URL", "http://127.0.0.1:1"), ("AWS_REGION", "here"), ("HOME", "/root")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let location = Location::parse("s3://models/prefix", options).expect("a location");
        let (objects, sizes) = location.connect().expect("settings");
        assert!(format!("{objects:?}").contains("models") && sizes == PartSizes::Growing, "{objects:?}");
        let r2 = [("AWS_ENDPOINT_URL".to_owned(), "https://a.r2.cloudflarestorage.com".to_owned())];
        let location = Location::parse("s3://models", r2).expect("a location");
        assert_eq!(location.connect().expect("settings").1, PartSizes::Equal);
    }
}
