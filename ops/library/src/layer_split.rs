//! Division of an external model's layers: layers to import, and layers to keep unchanged. All
//! functions are pure.

use content::Descriptor;
use manifests::{Layer, media_types};

use crate::layout::{ExternalFile, FileKind};

/// Layers of an external model, by how they are processed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerSplit {
    /// Weights, side files and archives: they are read in place and imported.
    pub split: Vec<ExternalFile>,
    /// Layers of the new manifest whose blobs are copied unchanged.
    pub kept: Vec<Layer>,
}

/// Returns the names that adapter files get in an imported model, so that exports restore the
/// files.
pub fn adapter_names(adapters: &[&ExternalFile]) -> Vec<String> {
    let names: Vec<&str> = adapters.iter().map(|file| file.name.as_str()).collect();
    import::adapter_names(&names, std::iter::empty())
}

/// Divides layers into those to import and those to keep.
pub fn split_layers(files: Vec<ExternalFile>) -> LayerSplit {
    let (mut divided, mut adapters) = (LayerSplit::default(), Vec::new());
    for file in files {
        let media_type = match file.kind {
            FileKind::Gguf | FileKind::Projector | FileKind::Safetensors | FileKind::Side | FileKind::Tar => {
                divided.split.push(file);
                continue;
            }
            FileKind::Template => media_types::TEMPLATE,
            FileKind::System => media_types::SYSTEM,
            FileKind::Params => media_types::PARAMS,
            FileKind::License => media_types::LICENSE,
            FileKind::Messages => media_types::MESSAGES,
            FileKind::Adapter => {
                adapters.push(file);
                continue;
            }
        };
        let own = Descriptor { media_type, ..file.layer.descriptor };
        // Ollama's layers have no names; layers with a name keep it.
        divided.kept.push(if file.named { Layer::named(own, &file.name) } else { Layer::new(own) });
    }
    for (name, file) in adapter_names(&adapters.iter().collect::<Vec<_>>()).into_iter().zip(&adapters) {
        let own = Descriptor { media_type: media_types::ADAPTER, ..file.layer.descriptor.clone() };
        divided.kept.push(Layer::named(own, &name));
    }
    divided
}
