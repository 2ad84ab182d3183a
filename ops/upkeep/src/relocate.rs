//! Moves models from the store to one of its roots: a copy there, then the name leaves the store.
//!
//! The root is opened as a store of its own meanwhile, with its lock. The model has its name in the
//! root before it loses it here, so it can be found at every moment. The versions that the store
//! keeps of it move too. A model of the same name that the root has is never replaced.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use content::operation::{Context, Result};
use content::{Amount, Descriptor, Digest, Observer, bail, ensure, text};
use library::{Library, ensure_wanted, shown};
use manifests::ModelRef;
use store::{Options, Store, TagEntry};

/// Selection of the models to move.
#[derive(Clone, Debug)]
pub struct RelocateOptions {
    /// The root to move to: one of the store's.
    pub root: PathBuf,
    /// These models; if it is empty, all that were not used for `unused`.
    pub models: Vec<ModelRef>,
    /// Time without a use. Pinned models stay.
    pub unused: Option<Duration>,
    /// The current time.
    pub now: SystemTime,
    /// Manifests of loaded models, which stay.
    pub loaded: HashSet<Digest>,
    /// Whether a folder without a store becomes one. It may be one that is not mounted.
    pub makes_store: bool,
}

/// The models to move.
#[derive(Clone, Debug)]
pub struct RelocatePlan {
    root: PathBuf,
    /// The models, in the order in which they move.
    pub models: Vec<RelocatedModel>,
}

/// The result of a move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relocated {
    /// Blobs that were copied to the root; it had the others.
    pub copied: Amount,
    /// Names of the models that moved.
    pub models: Vec<String>,
    /// Why further models stay.
    pub failed: Vec<String>,
}

/// A model to move.
#[derive(Clone, Debug)]
pub struct RelocatedModel {
    tag: TagEntry,
    /// Name of the model, as users write it.
    pub name: String,
    /// When it was last used.
    pub used: SystemTime,
    /// Bytes of its blobs.
    pub bytes: u64,
}

/// Finds the models to move.
///
/// # Errors
/// The root is not one of the store's, a model is not in the store or loaded, or the store cannot
/// be read.
pub fn plan_relocation(library: &Library, options: &RelocateOptions) -> Result<RelocatePlan> {
    let real = options.root.canonicalize().unwrap_or_else(|_| options.root.clone());
    let roots = library.roots();
    let root = roots.iter().find(|root| **root == real);
    let root = root.with_context(|| match roots.as_slice() {
        [] => format!("`{}` is not a root; the daemon was started without LODE_ROOTS", options.root.display()),
        roots => {
            let names: Vec<_> = roots.iter().map(|root| format!("`{}`", root.display())).collect();
            format!("`{}` is not a root, expected one of LODE_ROOTS: {}", options.root.display(), names.join(", "))
        }
    })?;
    let mut tags = Vec::new();
    for model in &options.models {
        let tag = library.find_tag(model)?;
        let Some(tag) = tag else { return Err(library::Error::NotFound(model.to_string()).into()) };
        if let Some(root) = library.names().root_of(&tag.name) {
            bail!("`{model}` is in the root `{}` already", root.display());
        }
        ensure!(!options.loaded.contains(&tag.digest), "`{model}` is loaded; `lode stop {model}` first");
        ensure!(!library.names().is_pinned(&tag.name)?, "`{model}` is pinned; `lode unpin {model}` first");
        tags.push(tag);
    }
    if let Some(limit) = options.unused.filter(|_| options.models.is_empty()) {
        for tag in library.names().list_here() {
            let is_old = options.now.duration_since(library.last_used(&tag)?).is_ok_and(|age| age >= limit);
            if is_old && !library.names().is_pinned(&tag.name)? && !options.loaded.contains(&tag.digest) {
                tags.push(tag);
            }
        }
    }
    let absent = || format!("`{}` has no store; mount it, or give --create to make a store there", root.display());
    ensure!(options.makes_store || Store::looks_like_root(root).with_context(absent)?, "{}", absent());
    let model = |tag: TagEntry| -> Result<RelocatedModel> {
        // A model that cannot be read is reported when it should move.
        let needs = library.needs(&tag.digest).unwrap_or_default();
        let bytes = needs.iter().map(|need| need.descriptor.size).sum();
        let name = shown(&tag.name).unwrap_or_else(|_| tag.name.clone());
        Ok(RelocatedModel { name, used: library.last_used(&tag)?, bytes, tag })
    };
    Ok(RelocatePlan { root: (*root).to_owned(), models: tags.into_iter().map(model).collect::<Result<_>>()? })
}

impl RelocatePlan {
    /// Moves the models. A model that cannot move stays, and does not stop the others.
    ///
    /// # Errors
    /// The root cannot be written or is in use by another process, or the caller has canceled.
    /// Models that were moved by then stay in the root.
    pub fn execute(&self, library: &Library, observer: &dyn Observer) -> Result<Relocated> {
        let failed = || format!("cannot move models to `{}`", self.root.display());
        let root = Store::open(&self.root, Options::default()).with_context(failed)?;
        root.ensure_writable().with_context(failed)?;
        let mut relocated = Relocated::default();
        for model in &self.models {
            ensure_wanted(observer)?;
            observer.status(format!("moving {}", model.name));
            match move_one(library, &root, model, observer) {
                Ok(copied) => {
                    relocated.copied += copied;
                    relocated.models.push(model.name.clone());
                }
                Err(error) => relocated.failed.push(format!("`{}` stays: {error:#}", model.name)),
            }
        }
        ensure_wanted(observer)?;
        drop(root);
        library.forget_contents();
        library.collect();
        Ok(relocated)
    }
}

/// Moves a model with its kept versions. Returns the blobs that were copied.
fn move_one(library: &Library, root: &Store, model: &RelocatedModel, observer: &dyn Observer) -> Result<Amount> {
    let RelocatedModel { tag, bytes: total, .. } = model;
    if let Some(there) = root.names().get(&tag.name)?.filter(|there| there.digest != tag.digest) {
        bail!(
            "`{}` has another model of this name, `{}`; remove or rename one of them",
            root.home().display(),
            there.digest
        );
    }
    let guard = root.guard();
    let (mut copied, mut done) = (Amount::default(), 0);
    let versions = library.names().kept_versions(&tag.name)?;
    for version in versions.iter().chain([&tag.digest]) {
        for need in library.needs(version)? {
            ensure_wanted(observer)?;
            let blob = need.descriptor;
            // Only a file of the root counts: this process cannot ask its tier.
            if root.blobs().size_on_disk(&blob.digest)? == Some(blob.size) {
                guard.keep(&blob.digest)?;
            } else {
                copy(library, root, &blob)?;
                copied += Amount::of_blob(blob.size);
            }
            done += blob.size;
            observer.bytes(done.min(*total), *total);
        }
    }
    // Not before all blobs are there: a move that breaks off leaves no name in the root.
    for version in versions.iter().chain([&tag.digest]) {
        root.names().set(&tag.name, version)?;
    }
    ensure!(library.remove_unchanged(tag)?, "its name was given to another model meanwhile; the root has a copy");
    Ok(copied)
}

/// Copies a blob, verified on the way.
fn copy(library: &Library, root: &Store, blob: &Descriptor) -> Result<()> {
    let free = root.free_space()?;
    ensure!(
        free > blob.size,
        "blob `{}` needs {}, `{}` has {} free; free space there or choose another root",
        blob.digest,
        text::size(blob.size),
        root.home().display(),
        text::size(free)
    );
    Ok(root.blobs().copy_from(&blob.digest, &library.blobs().open(&blob.digest)?)?)
}
