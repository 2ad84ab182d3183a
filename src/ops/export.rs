//! Exports: what files a model becomes, and the tar that they travel in.

mod whole_files;

use std::io::Write;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use api::lode::{ExportDtype, ExportFormat, ExportRequest};
use archive::Writer;
use content::Digest;
use export::{ExportPlan, FolderOptions, StoredModel};
use formats::Dtype;
use import::{OpenBlob, Origin};
use manifests::{ModelRef, media_types};
use store::Guard;

use super::file_digests::{self, FileDigests};
use super::library::MAX_DOCUMENT;
use super::pull_foreign::opener;
use super::{Library, Model};

/// The most bytes of tensors in one file where nothing is said: what Hugging Face's libraries write.
const SHARD_SIZE: u64 = 5_000_000_000;

/// What was asked for cannot be given.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CannotExport(pub(super) String);

/// An export that can be written: everything in it is there, and stays while this lives.
pub(crate) struct Export {
    library: Library,
    manifest: Digest,
    plan: ExportPlan,
    open: Arc<OpenBlob>,
    /// Where what the files hash to is kept for the next export.
    recorded: Option<FileDigests>,
    _guard: Guard,
}

impl Export {
    /// Decides which files there will be.
    pub(crate) fn plan(library: &Library, reference: &ModelRef, request: &ExportRequest) -> Result<Self> {
        refuse_options(request)?;
        let guard = library.store.guard();
        let model = library.find(reference)?;
        if let Some(need) = library.first_missing(&model.manifest)? {
            let digest = need.descriptor.digest;
            bail!("blob `{digest}` of `{}` is damaged or missing; run `lode repair {}`", need.layer, model.name);
        }
        let open = opener(library);
        let manifest = *model.manifest.digest();
        let (mut plan, recorded) = match (whole_files::plan(&model, request)?, request.format) {
            (Some(plan), _) => (plan, None),
            (None, ExportFormat::Origin) => {
                (origin_plan(library, &model, &open)?, Some(file_digests::recorded(library, &manifest)?))
            }
            (None, ExportFormat::Safetensors | ExportFormat::Mlx | ExportFormat::Gguf) => {
                (converted(library, &model, request, &open)?, None)
            }
        };
        refuse_losses(&plan, request)?;
        let known = recorded.iter().flatten();
        for (name, digest) in known {
            let files = plan.files.iter_mut().filter(|file| file.sha256.is_none() && file.name() == name);
            files.for_each(|file| file.sha256 = Some(*digest));
        }
        Ok(Self { library: library.clone(), manifest, plan, open, recorded, _guard: guard })
    }

    /// Bytes of the whole tar.
    pub(crate) fn size(&self) -> u64 {
        let members = self.plan.files.iter().map(|file| archive::member_size(file.name(), file.size()));
        members.fold(archive::END_SIZE, u64::saturating_add)
    }

    /// Writes the tar. What the files hash to is found out on the way, so an error may come at the very end.
    pub(crate) fn write(&self, output: &mut dyn Write) -> Result<()> {
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
            file_digests::record(&self.library, &self.manifest, &found)?;
        }
        tar.finish()?;
        Ok(())
    }
}

fn origin_plan(library: &Library, model: &Model, open: &Arc<OpenBlob>) -> Result<ExportPlan> {
    Ok(export::origin_plan(&origin(library, model)?, model.manifest.layers(), open)?)
}

/// The origin document of a model.
fn origin(library: &Library, model: &Model) -> Result<Origin> {
    let Some(layer) = model.manifest.layers_of(media_types::ORIGIN).next() else {
        let name = &model.name;
        return Err(CannotExport(format!(
            "model '{name}' was not imported from files, so there are none to give back; try `--format safetensors`"
        ))
        .into());
    };
    let raw = library.store.read_blob(layer.digest(), MAX_DOCUMENT)?;
    serde_json::from_slice(&raw).with_context(|| format!("the origin document `{}` is not readable", layer.digest()))
}

/// Files of another format than the model came in.
fn converted(library: &Library, model: &Model, request: &ExportRequest, open: &Arc<OpenBlob>) -> Result<ExportPlan> {
    let tensors = library.catalogue(&model.manifest)?;
    let name: ModelRef = model.name.parse()?;
    let name = name.repository().rsplit('/').next().unwrap_or_default().to_owned();
    let architecture = model.understood.known().map(|described| &described.architecture);
    let layers = model.manifest.layers();
    let stored = StoredModel { name: &name, architecture, tensors: &tensors, layers, open };
    let shard_size = request.shard_size.unwrap_or(SHARD_SIZE);
    match request.format {
        ExportFormat::Safetensors => {
            Ok(export::safetensors_plan(&stored, FolderOptions { dtype: request.dtype.map(dtype), shard_size })?)
        }
        ExportFormat::Mlx => Ok(export::mlx_plan(&stored, shard_size)?),
        ExportFormat::Gguf => Ok(export::gguf_plan(&stored, request.dtype.map(dtype))?),
        ExportFormat::Origin => origin_plan(library, model, open),
    }
}

fn dtype(dtype: ExportDtype) -> Dtype {
    match dtype {
        ExportDtype::F32 => Dtype::F32,
        ExportDtype::F16 => Dtype::F16,
        ExportDtype::Bf16 => Dtype::Bf16,
    }
}

/// Options that would do nothing are refused: who gives them expects something.
fn refuse_options(request: &ExportRequest) -> Result<(), CannotExport> {
    let folder = matches!(request.format, ExportFormat::Safetensors | ExportFormat::Mlx);
    let floats = matches!(request.format, ExportFormat::Safetensors | ExportFormat::Gguf);
    let refuse = |option: &str, formats: &str| Err(CannotExport(format!("`{option}` is for {formats} only")));
    match request {
        ExportRequest { dtype: Some(_), .. } if !floats => refuse("--dtype", "`--format safetensors` and `gguf`"),
        ExportRequest { shard_size: Some(0), .. } => Err(CannotExport("files of 0 bytes hold nothing".to_owned())),
        ExportRequest { shard_size: Some(_), .. } if !folder => {
            refuse("--shard-size", "`--format safetensors` and `mlx`")
        }
        _ => Ok(()),
    }
}

fn refuse_losses(plan: &ExportPlan, request: &ExportRequest) -> Result<(), CannotExport> {
    if request.lossy || plan.losses.is_empty() {
        return Ok(());
    }
    let losses = plan.losses.join("; ");
    Err(CannotExport(format!("something would be lost: {losses}; `--lossy` goes on all the same")))
}
