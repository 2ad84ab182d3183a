//! Loading models from an OCI image layout in a tar, written by `lode save` or another tool for OCI
//! artifacts.
//!
//! The tar is read once, from start to end, with its files in any order. Each blob is verified
//! against its digest while it is written. Models get their names at the very end, after each is
//! found complete. If anything is wrong, no model gets its name, and the blobs are deleted.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};

use archive::{Kind, Reader};
use content::operation::{Context, OperationError, Result};
use content::{Amount, Digest, Expected, IngestId};
use content::{bail, ensure};
use library::{IMPORT_INGESTS, Library, MAX_DOCUMENT, keep_parts};
use manifests::{Document, Index, Layer, MAX_MANIFEST, ModelConfig, ModelRef, annotations, media_types};
use store::{Guard, IngestFile};

use crate::error::Error;
use crate::image_layout::{INDEX_FILE, LAYOUT_FILE, digest_of};

/// Maximum size of the layout marker in bytes. A valid marker is one line.
const MAX_LAYOUT: u64 = 4096;

/// Bytes of an entry that are copied at a time.
const PIECE: u64 = 1 << 20;

/// The result of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Names of models and digests of their manifests.
    pub models: Vec<(ModelRef, Digest)>,
    /// Blobs that were new.
    pub new: Amount,
    /// Blobs that the store already had.
    pub shared: Amount,
}

/// Loads the models of an archive. `name` replaces the name of the model in an archive with one
/// model.
///
/// # Errors
/// [`Error::BadArchive`] if the archive is invalid, else errors of the store.
pub fn load(library: &Library, input: &mut dyn Read, name: Option<&ModelRef>) -> Result<Loaded> {
    let guard = library.guard();
    let loaded =
        Load { library, guard: &guard, index: None, layout: false, loaded: Loaded::default() }.run(input, name);
    drop(guard);
    if loaded.is_err() {
        // After a failure, no document refers to the loaded blobs.
        library.collect();
    }
    loaded
}

struct Load<'a> {
    library: &'a Library,
    guard: &'a Guard,
    index: Option<Vec<u8>>,
    layout: bool,
    loaded: Loaded,
}

impl Load<'_> {
    fn run(mut self, input: &mut dyn Read, name: Option<&ModelRef>) -> Result<Loaded> {
        let mut tar = Reader::new(input);
        while let Some(entry) = tar.next().map_err(Error::from)? {
            match entry.path.as_str() {
                _ if entry.kind == Kind::Directory => {}
                LAYOUT_FILE => {
                    document(&mut tar, LAYOUT_FILE, entry.size, MAX_LAYOUT)?;
                    self.layout = true;
                }
                INDEX_FILE => {
                    ensure!(self.index.is_none(), Error::BadArchive(format!("it has two files `{INDEX_FILE}`")));
                    self.index = Some(document(&mut tar, INDEX_FILE, entry.size, MAX_MANIFEST as u64)?);
                }
                path => match digest_of(path) {
                    Some(digest) => self.blob(&mut tar, &digest, entry.size)?,
                    None if path.starts_with("blobs/") => {
                        bail!(Error::BadArchive(format!("`{path}` is not named by a digest")))
                    }
                    // Other tools add further files.
                    None => tracing::debug!(path, "is not part of an image layout; ignored"),
                },
            }
        }
        ensure!(
            self.layout,
            Error::BadArchive(format!("it has no file `{LAYOUT_FILE}`, so it is no OCI image layout"))
        );
        let raw = self.index.take().ok_or_else(|| Error::BadArchive(format!("it has no file `{INDEX_FILE}`")))?;
        let index = Index::parse(&raw).map_err(|error| Error::BadArchive(format!("`{INDEX_FILE}`: {error}")))?;
        let models = names(&index, name)?;
        for (name, entry) in &models {
            self.check(name, entry, &index)?;
        }
        for (name, entry) in models {
            let key = name.tag_key().context("invariant: names without a tag were refused")?;
            self.library.names().set(&self.library.key_of(&key)?, entry.digest())?;
            tracing::info!(model = key, digest = %entry.digest(), "loaded");
            self.loaded.models.push((name, *entry.digest()));
        }
        Ok(self.loaded)
    }

    /// Stores a blob, unless the store already has it.
    fn blob(&mut self, tar: &mut Reader<&mut dyn Read>, digest: &Digest, size: u64) -> Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if self.guard.keep(digest)? == Some(size) {
            self.loaded.shared += Amount::of_blob(size);
            return Ok(());
        }
        // A unique id, because a pull of the same blob may be running.
        let id = IngestId::parse(&format!("{IMPORT_INGESTS}load-{}", NEXT.fetch_add(1, Ordering::Relaxed)))?;
        let mut ingest = self.library.blobs().start_ingest(&id, Expected::Blob { digest: *digest, size })?;
        if let Err(error) = copy(tar, size.max(1), &mut ingest) {
            // The first error is reported, not an error of the cleanup.
            let _ = ingest.cancel();
            return Err(error.context(format!("blob `{digest}`")));
        }
        ingest.commit().map_err(|error| match error {
            store::Error::Content(wrong @ (content::Error::WrongDigest { .. } | content::Error::WrongSize { .. })) => {
                OperationError::from(Error::BadArchive(wrong.to_string()))
            }
            other => other.into(),
        })?;
        self.loaded.new += Amount::of_blob(size);
        Ok(())
    }

    /// Checks that a model is complete in the store. Only complete models get a name.
    fn check(&self, name: &ModelRef, entry: &Layer, index: &Index) -> Result<()> {
        let library = self.library;
        let bad = |reason: String| Error::BadArchive(format!("model '{name}': {reason}"));
        let needed = || match index.annotations().get(annotations::SAVED_SINCE) {
            Some(base) => {
                format!("; it was saved with --since, for a store that has the model `{base}`: load that first")
            }
            None => String::new(),
        };
        let size = self.guard.keep(entry.digest())?;
        ensure!(
            size == Some(entry.size()),
            bad(format!("its manifest `{}` is not in the archive in that size{}", entry.digest(), needed()))
        );
        let manifest = library.manifest(entry.digest()).map_err(|error| bad(format!("{error:#}")))?;
        if let Some(need) = keep_parts(self.guard, &manifest)? {
            let (digest, layer) = (need.descriptor.digest, need.layer);
            bail!(bad(format!("blob `{digest}` of `{layer}` is neither in the archive nor here{}", needed())));
        }
        let config = library.blobs().read(&manifest.config().digest, MAX_DOCUMENT)?;
        ModelConfig::parse(&config).map_err(|error| bad(error.to_string()))?;
        // A model with unreadable tensors must not replace an existing model.
        library.catalogue(&manifest).map_err(|error| bad(format!("{error:#}")))?;
        library.describe(entry.digest(), &Document::Manifest(manifest));
        Ok(())
    }
}

/// Reads a small file of the archive.
fn document(tar: &mut Reader<&mut dyn Read>, path: &str, size: u64, limit: u64) -> Result<Vec<u8>> {
    ensure!(size <= limit, Error::BadArchive(format!("`{path}` has {size} bytes, {limit} at most are allowed")));
    let mut bytes = Vec::new();
    tar.read_to_end(&mut bytes).map_err(failure)?;
    Ok(bytes)
}

/// Appends an entry of `size` bytes to an ingest.
fn copy(tar: &mut Reader<&mut dyn Read>, size: u64, ingest: &mut IngestFile) -> Result<()> {
    let mut buffer = vec![0; size.min(PIECE) as usize];
    loop {
        match tar.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => ingest.append(&buffer[..count])?,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failure(error)),
        }
    }
}

/// Converts an error of the archive's reader. An archive that ends too early is invalid; other
/// errors, such as a broken connection, are not caused by the archive.
fn failure(error: std::io::Error) -> OperationError {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::BadArchive(error.to_string()).into(),
        _ => error.into(),
    }
}

/// Returns the manifests of an index by the names that the models get.
fn names<'a>(index: &'a Index, given: Option<&ModelRef>) -> Result<BTreeMap<ModelRef, &'a Layer>> {
    let entries = index.manifests();
    ensure!(!entries.is_empty(), Error::BadArchive(format!("`{INDEX_FILE}` lists no manifest")));
    ensure!(
        given.is_none() || entries.len() == 1,
        Error::BadArchive(format!("it has {} models, so one name cannot be given to it", entries.len()))
    );
    let mut names = BTreeMap::new();
    for entry in entries {
        let known = [media_types::MANIFEST, media_types::DOCKER_MANIFEST];
        ensure!(
            known.contains(entry.media_type()),
            Error::BadArchive(format!("`{}` is a `{}`, expected a manifest", entry.digest(), entry.media_type()))
        );
        let name = given.cloned().map_or_else(|| own_name(entry), Ok)?;
        if let Some(other) = names.insert(name.clone(), entry).filter(|other| other.digest() != entry.digest()) {
            bail!(Error::BadArchive(format!("both `{}` and `{}` are called '{name}'", other.digest(), entry.digest())));
        }
    }
    Ok(names)
}

/// Returns the name that an archive gives to a manifest. By convention, a bare word is a tag; its
/// repository is unknown.
fn own_name(entry: &Layer) -> Result<ModelRef> {
    let of = |key: &str| entry.annotations.get(key).filter(|name| name.contains(['/', ':']));
    let Some(name) = of(annotations::CONTAINER_NAME).or_else(|| of(annotations::REF_NAME)) else {
        let called = match entry.annotations.get(annotations::REF_NAME) {
            Some(word) => format!("only `{word}`"),
            None => "nothing".to_owned(),
        };
        bail!(Error::BadArchive(format!("it calls `{}` {called}; name the model with --name", entry.digest())));
    };
    let name: ModelRef = name.parse().map_err(|error: manifests::Error| Error::BadArchive(error.to_string()))?;
    ensure!(
        name.tag().is_some(),
        Error::BadArchive(format!("'{name}' has no tag; say what to call the model with --name"))
    );
    Ok(name)
}
