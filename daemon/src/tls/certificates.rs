//! The daemon's certificate and key, reloaded from their files.
//!
//! The files are compared by their bytes, so it does not matter how or when they are replaced. If
//! the new pair is invalid, for example because only one file has been replaced so far, the old
//! pair stays in use and a warning is logged.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use content::operation::{Context, Result, Unclassified};
use content::{bail, ensure};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsFiles;

/// The largest file; certificate chains have a few KiB.
const MAX_FILE: u64 = 1 << 20;

/// The pair for new connections.
pub(super) struct Certificates {
    files: TlsFiles,
    current: Arc<ServerConfig>,
    /// The last contents that were read, or the error.
    seen: Result<Pems, String>,
}

/// The contents of both files. There is no `Debug`, since it would reveal the key.
#[derive(Clone, PartialEq, Eq)]
struct Pems {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Certificates {
    /// Reads the files for the first time.
    pub(super) fn load(files: TlsFiles) -> Result<Self> {
        let pems = Pems::read(&files)?;
        let current = Arc::new(pems.configure(&files)?);
        Ok(Self { files, current, seen: Ok(pems) })
    }

    /// Returns the configuration for a new connection.
    pub(super) fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current)
    }

    /// Reads the files again.
    pub(super) async fn refresh(&mut self) {
        let files = self.files.clone();
        // Fails only when the program ends.
        let Ok(read) = tokio::task::spawn_blocking(move || Pems::read(&files)).await else { return };
        let read = read.map_err(|error| format!("{error:#}"));
        if read == self.seen {
            return;
        }
        let configured = match &read {
            Ok(pems) => pems.configure(&self.files).map_err(|error| format!("{error:#}")),
            Err(error) => Err(error.clone()),
        };
        match configured {
            Ok(config) => {
                tracing::info!(certificate = %self.files.certificate.display(), "serving with a new certificate");
                self.current = Arc::new(config);
            }
            Err(error) => tracing::warn!("{error}; the certificate and key in use stay"),
        }
        self.seen = read;
    }
}

impl Pems {
    fn read(files: &TlsFiles) -> Result<Self> {
        Ok(Self { certificate: read(&files.certificate)?, key: read(&files.key)? })
    }

    fn configure(&self, files: &TlsFiles) -> Result<ServerConfig> {
        let (certificate, key) = (files.certificate.display(), files.key.display());
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&self.certificate)
            .collect::<Result<_, _>>()
            .internal()
            .with_context(|| format!("`{certificate}` is not a certificate in a PEM file"))?;
        if chain.is_empty() {
            bail!("`{certificate}` has no certificate; expected `-----BEGIN CERTIFICATE-----`");
        }
        let private = PrivateKeyDer::from_pem_slice(&self.key).internal().with_context(|| {
            format!("`{key}` has no private key; expected `-----BEGIN PRIVATE KEY-----`, not encrypted")
        })?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .internal()?
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .internal()
            .with_context(|| format!("the certificate `{certificate}` and the key `{key}` cannot be used together"))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes));
    read.with_context(|| format!("cannot read `{}`", path.display()))?;
    ensure!(bytes.len() as u64 <= MAX_FILE, "`{}` is longer than {MAX_FILE} bytes", path.display());
    Ok(bytes)
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").field("files", &self.files).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::*;

    /// A self-signed certificate for `localhost`.
    pub(in crate::tls) struct Pair {
        pub(in crate::tls) files: TlsFiles,
        _folder: tempfile::TempDir,
    }

    impl Pair {
        /// Overwrites the files.
        fn replace(&self, certificate: &[u8], key: &[u8]) {
            fs::write(&self.files.certificate, certificate).expect("written");
            fs::write(&self.files.key, key).expect("written");
        }
    }

    pub(in crate::tls) fn pair() -> Pair {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let folder = tempfile::tempdir().expect("a folder");
        let files = TlsFiles { certificate: folder.path().join("cert.pem"), key: folder.path().join("key.pem") };
        let pair = Pair { files, _folder: folder };
        pair.replace(made.cert.pem().as_bytes(), made.signing_key.serialize_pem().as_bytes());
        pair
    }

    fn bytes(pair: &Pair) -> (Vec<u8>, Vec<u8>) {
        (fs::read(&pair.files.certificate).expect("read"), fs::read(&pair.files.key).expect("read"))
    }

    #[tokio::test]
    async fn tls_files_are_read_again() {
        let (pair, other) = (pair(), pair());
        let mut certificates = Certificates::load(pair.files.clone()).expect("a good pair");
        let first = certificates.current();
        certificates.refresh().await;
        assert!(Arc::ptr_eq(&first, &certificates.current()), "nothing has changed");
        let (certificate, key) = bytes(&other);
        let (_, old_key) = bytes(&pair);
        for (bad_certificate, bad_key) in [
            (&certificate[..], &old_key[..]),
            (b"nonsense", &key),
            (&certificate, b"nonsense"),
            (&certificate[..certificate.len() / 2], &key),
        ] {
            pair.replace(bad_certificate, bad_key);
            certificates.refresh().await;
            assert!(Arc::ptr_eq(&first, &certificates.current()), "a bad pair changes nothing");
        }
        fs::remove_file(&pair.files.key).expect("removed");
        certificates.refresh().await;
        assert!(Arc::ptr_eq(&first, &certificates.current()), "nor does one that is gone");
        pair.replace(&certificate, &key);
        certificates.refresh().await;
        assert!(!Arc::ptr_eq(&first, &certificates.current()), "a good pair is taken");
    }

    #[test]
    fn tls_errors_name_the_file() {
        let check = |change: &dyn Fn(&Pair), expect: &[&str]| {
            let pair = pair();
            change(&pair);
            let error = Certificates::load(pair.files.clone()).expect_err("a bad pair");
            let error = format!("{error:#}");
            assert!(expect.iter().all(|text| error.contains(text)), "{error}");
        };
        check(&|pair| pair.replace(b"", &bytes(pair).1), &["cert.pem", "no certificate"]);
        check(&|pair| pair.replace(&bytes(pair).0, b""), &["key.pem", "no private key"]);
        check(
            &|pair| pair.replace(&bytes(pair).0, &bytes(&super::tests::pair()).1),
            &["cert.pem", "key.pem", "together"],
        );
        check(&|pair| fs::remove_file(&pair.files.key).expect("removed"), &["cannot read", "key.pem"]);
        check(&|pair| pair.replace(&vec![b'x'; MAX_FILE as usize + 1], b""), &["cert.pem", "longer"]);
    }
}
