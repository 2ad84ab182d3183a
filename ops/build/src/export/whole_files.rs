//! Exports of models whose layers are whole files, as other tools push them. The files are exported
//! unchanged, without conversion.

use content::operation::Result;
use export::ExportPlan;
use library::{ExternalFile, FileKind, Layout, Model, adapter_names, classify};
use manifests::Layer;

use super::{ExportFormat, ExportSpec};
use crate::error::Error;

/// Plans the files. Returns `None` if the model stores its tensors as separate blobs.
pub(crate) fn plan(model: &Model, spec: &ExportSpec) -> Result<Option<ExportPlan>> {
    let Layout::Files(files) = classify(&model.manifest) else { return Ok(None) };
    let files: Vec<&ExternalFile> = files.iter().filter(|file| is_file(file)).collect();
    let ggufs: Vec<&ExternalFile> = files.iter().copied().filter(|file| file.kind == FileKind::Gguf).collect();
    match (spec.format, ggufs.as_slice()) {
        (ExportFormat::Origin, _) => of(&files, &[]),
        (ExportFormat::Gguf, [_]) if spec.dtype.is_none() => of(&ggufs, model.manifest.layers()),
        _ => Err(Error::CannotExport(format!(
            "model '{}' is kept as whole files, which are not converted; `--format origin` gives them, and `lode create` \
             makes a model of them that can be exported in other formats",
            model.name
        ))
        .into()),
    }
}

fn of(files: &[&ExternalFile], wanted: &[Layer]) -> Result<Option<ExportPlan>> {
    let adapters: Vec<&ExternalFile> = files.iter().copied().filter(|file| file.kind == FileKind::Adapter).collect();
    let adapter_names = adapter_names(&adapters);
    let others =
        files.iter().filter(|file| file.kind != FileKind::Adapter).map(|file| (file.name.as_str(), &file.layer));
    let adapters = adapter_names.iter().zip(&adapters).map(|(name, file)| (name.as_str(), &file.layer));
    let named: Vec<(&str, &Layer)> = others.chain(adapters).collect();
    Ok(Some(export::layers_plan(&named, wanted)?))
}

/// Returns true if a layer is a file. Prompts and templates without a name in the manifest are not
/// files.
fn is_file(file: &ExternalFile) -> bool {
    let weights = matches!(
        file.kind,
        FileKind::Gguf | FileKind::Safetensors | FileKind::Side | FileKind::Tar | FileKind::Adapter
    );
    weights || file.named
}
