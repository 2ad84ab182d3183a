//! Exports: the plan of the files of a model, and the tar that carries them.

mod whole_files;

use std::io::Write;
use std::sync::Arc;

use archive::Writer;
use content::Digest;
use content::operation::{Context, Result, Unclassified};
use export::{ExportPlan, FolderOptions, StoredModel};
use formats::Dtype;
use import::{OpenBlob, Origin};
use library::{FileDigests, Library, MAX_DOCUMENT, Model};
use manifests::{ModelRef, media_types};
use store::Hold;

use crate::error::Error;

/// Default for the maximum bytes of tensors in one file, as Hugging Face's libraries write them.
const SHARD_SIZE: u64 = 5_000_000_000;

/// The format of an export and its options.
#[derive(Clone, Copy, Debug)]
pub struct ExportSpec {
    /// Format of the files.
    pub format: ExportFormat,
    /// The type that floats are converted to; `None` keeps their types.
    pub dtype: Option<FloatType>,
    /// Maximum bytes of tensors in one file.
    pub shard_size: Option<u64>,
    /// Whether the export continues if information is lost.
    pub lossy: bool,
}

/// A type that an export converts floats to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatType {
    /// IEEE 754, 32 bits.
    F32,
    /// IEEE 754, 16 bits.
    F16,
    /// The upper half of an F32.
    Bf16,
}

impl From<FloatType> for Dtype {
    fn from(float: FloatType) -> Self {
        match float {
            FloatType::F32 => Self::F32,
            FloatType::F16 => Self::F16,
            FloatType::Bf16 => Self::Bf16,
        }
    }
}

/// Format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFormat {
    /// The files that it was imported from, bit for bit.
    Origin,
    /// A folder in the format of Hugging Face's libraries.
    Safetensors,
    /// A folder in the format of MLX.
    Mlx,
    /// One GGUF file.
    Gguf,
}

/// An export that is ready to be written. All its blobs exist, and are kept while it lives.
pub struct Export {
    library: Library,
    manifest: Digest,
    plan: ExportPlan,
    open: Arc<OpenBlob>,
    /// File digests that were recorded so far; `write` records new ones for the next export.
    recorded: Option<FileDigests>,
    _hold: Hold,
}

impl Export {
    /// Plans the files of the export.
    ///
    /// # Errors
    /// [`Error::CannotExport`], the model does not exist, or a part of it is missing.
    pub fn plan(library: &Library, reference: &ModelRef, spec: &ExportSpec) -> Result<Self> {
        refuse_options(spec)?;
        let (model, hold) = library.find_held(reference)?;
        library.ensure_whole(&model)?;
        let open = library.opener();
        let manifest = *model.manifest.digest();
        let (mut plan, recorded) = match (whole_files::plan(&model, spec)?, spec.format) {
            (Some(plan), _) => (plan, None),
            (None, ExportFormat::Origin) => {
                (origin_plan(library, &model, &open)?, Some(library.file_digests(&manifest)))
            }
            (None, ExportFormat::Safetensors | ExportFormat::Mlx | ExportFormat::Gguf) => {
                (converted(library, &model, spec, &open)?, None)
            }
        };
        refuse_losses(&plan, spec)?;
        let known = recorded.iter().flatten();
        for (name, digest) in known {
            let files = plan.files.iter_mut().filter(|file| file.sha256.is_none() && file.name() == name);
            files.for_each(|file| file.sha256 = Some(*digest));
        }
        Ok(Self { library: library.clone(), manifest, plan, open, recorded, _hold: hold })
    }

    /// Returns the size of the whole tar in bytes.
    pub fn size(&self) -> u64 {
        let members = self.plan.files.iter().map(|file| archive::member_size(file.name(), file.size()));
        members.fold(archive::END_SIZE, u64::saturating_add)
    }

    /// Writes the tar. The files are hashed while they are written, so an error may occur at the
    /// very end.
    ///
    /// # Errors
    /// Data cannot be read or written.
    pub fn write(&self, output: &mut dyn Write) -> Result<()> {
        let mut tar = Writer::new(output);
        let mut found = FileDigests::new();
        for file in &self.plan.files {
            tar.member(file.name(), file.size())?;
            let digest = export::write_file(file, &*self.open, &mut tar)?;
            if file.sha256.is_none() {
                found.insert(file.name().to_owned(), digest);
            }
        }
        if let Some(recorded) = self.recorded.as_ref().filter(|_| !found.is_empty()) {
            found.extend(recorded.clone());
            self.library.record_file_digests(&self.manifest, &found)?;
        }
        tar.finish()?;
        Ok(())
    }
}

fn origin_plan(library: &Library, model: &Model, open: &Arc<OpenBlob>) -> Result<ExportPlan> {
    Ok(export::origin_plan(&origin(library, model)?, model.manifest.layers(), open)?)
}

/// Reads the origin document of a model.
fn origin(library: &Library, model: &Model) -> Result<Origin> {
    let Some(layer) = model.manifest.layers_of(media_types::ORIGIN).next() else {
        let name = &model.name;
        return Err(Error::CannotExport(format!(
            "model '{name}' was not imported from files, so there are none to give back; try `--format safetensors`"
        ))
        .into());
    };
    let raw = library.blobs().read(layer.digest(), MAX_DOCUMENT)?;
    serde_json::from_slice(&raw)
        .internal()
        .with_context(|| format!("the origin document `{}` is not readable", layer.digest()))
}

/// Plans files in a format other than the imported one.
fn converted(library: &Library, model: &Model, spec: &ExportSpec, open: &Arc<OpenBlob>) -> Result<ExportPlan> {
    let tensors = library.catalogue(&model.manifest)?;
    let name: ModelRef = model.name.parse()?;
    let name = name.repository().rsplit('/').next().unwrap_or_default().to_owned();
    let architecture = model.parsed_facts.known().map(|described| &described.architecture);
    let layers = model.manifest.layers();
    let stored = StoredModel { name: &name, architecture, tensors: &tensors, layers, open };
    let shard_size = spec.shard_size.unwrap_or(SHARD_SIZE);
    match spec.format {
        ExportFormat::Safetensors => {
            Ok(export::safetensors_plan(&stored, FolderOptions { dtype: spec.dtype.map(Dtype::from), shard_size })?)
        }
        ExportFormat::Mlx => Ok(export::mlx_plan(&stored, shard_size)?),
        ExportFormat::Gguf => Ok(export::gguf_plan(&stored, spec.dtype.map(Dtype::from))?),
        ExportFormat::Origin => origin_plan(library, model, open),
    }
}

/// Refuses options that would have no effect, because the caller expects one.
fn refuse_options(spec: &ExportSpec) -> Result<(), Error> {
    let folder = matches!(spec.format, ExportFormat::Safetensors | ExportFormat::Mlx);
    let floats = matches!(spec.format, ExportFormat::Safetensors | ExportFormat::Gguf);
    let refuse = |option: &str, formats: &str| Err(Error::CannotExport(format!("`{option}` is for {formats} only")));
    match spec {
        ExportSpec { dtype: Some(_), .. } if !floats => refuse("--dtype", "`--format safetensors` and `gguf`"),
        ExportSpec { shard_size: Some(0), .. } => {
            Err(Error::CannotExport("`--shard-size` is 0, expected at least 1 byte".to_owned()))
        }
        ExportSpec { shard_size: Some(_), .. } if !folder => refuse("--shard-size", "`--format safetensors` and `mlx`"),
        _ => Ok(()),
    }
}

fn refuse_losses(plan: &ExportPlan, spec: &ExportSpec) -> Result<(), Error> {
    if spec.lossy || plan.losses.is_empty() {
        return Ok(());
    }
    let losses = plan.losses.join("; ");
    Err(Error::CannotExport(format!("the export would lose information: {losses}; pass `--lossy` to export anyway")))
}
