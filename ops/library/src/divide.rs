//! What is done with the layers of a foreign model: which are imported and which stay what they are. All of it is pure.

use content::Descriptor;
use manifests::{Layer, media_types};

use crate::layout::{FileKind, ForeignFile};

/// What is done with the layers of a foreign model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Divided {
    /// Weights, side files and archives: they are read where they lie and imported.
    pub split: Vec<ForeignFile>,
    /// Layers of the new manifest whose blobs are copied as they are.
    pub kept: Vec<Layer>,
}

/// What files of adapters are called in a model of ours, so that exports give them back.
pub fn adapter_names(adapters: &[&ForeignFile]) -> Vec<String> {
    let names: Vec<&str> = adapters.iter().map(|file| file.name.as_str()).collect();
    import::adapter_names(&names, std::iter::empty())
}

/// Which layers are imported and which stay what they are.
pub fn divide(files: Vec<ForeignFile>) -> Divided {
    let (mut divided, mut adapters) = (Divided::default(), Vec::new());
    for file in files {
        let media_type = match file.kind {
            FileKind::Gguf | FileKind::Safetensors | FileKind::Side | FileKind::Tar => {
                divided.split.push(file);
                continue;
            }
            FileKind::Template => media_types::TEMPLATE,
            FileKind::System => media_types::SYSTEM,
            FileKind::Params => media_types::PARAMS,
            FileKind::License => media_types::LICENSE,
            FileKind::Messages => media_types::MESSAGES,
            FileKind::Projector => media_types::PROJECTOR,
            FileKind::Adapter => {
                adapters.push(file);
                continue;
            }
        };
        let own = Descriptor { media_type, ..file.layer.descriptor };
        // What Ollama writes has no names; what has one keeps it.
        divided.kept.push(if file.named { Layer::named(own, &file.name) } else { Layer::new(own) });
    }
    for (name, file) in adapter_names(&adapters.iter().collect::<Vec<_>>()).into_iter().zip(&adapters) {
        let own = Descriptor { media_type: media_types::ADAPTER, ..file.layer.descriptor.clone() };
        divided.kept.push(Layer::named(own, &name));
    }
    divided
}
