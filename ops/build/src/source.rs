//! The source of a new model.

use std::path::Path;

use content::ensure;
use content::operation::Result;
use import::NamedFile;
use manifests::ModelRef;

/// The files or the model that a new model is made from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Named files, from any origin.
    Files(Vec<NamedFile>),
    /// Another model.
    Model(ModelRef),
}

impl Source {
    /// Finds files at a path from another user's request, and adds the projector at another one.
    /// Symbolic links that lead out of the folder are refused.
    ///
    /// # Errors
    /// Fails if there is nothing readable at a path.
    pub fn at(path: &Path, projector: Option<&Path>) -> Result<Self> {
        let mut files = import::locate_beneath(path)?;
        if let Some(projector) = projector {
            import::add_projector(&mut files, import::locate_beneath(projector)?)?;
        }
        Ok(Self::Files(files))
    }

    /// Separates the source from the files of adapters that an export placed next to it.
    ///
    /// # Errors
    /// Fails if the source is only an adapter.
    pub(crate) fn without_adapters(self) -> Result<(Self, Vec<NamedFile>)> {
        let Self::Files(files) = self else { return Ok((self, Vec::new())) };
        let (files, adapters) = import::split_adapters(files);
        let has = |name: &str| files.iter().any(|file| file.name == name);
        ensure!(
            !has("adapter_config.json") || has("config.json"),
            import::Error::Source(
                "this is an adapter, not a model (`adapter_config.json`): write a Modelfile with its base model in FROM and the adapter in ADAPTER"
                    .to_owned()
            )
        );
        Ok((Self::Files(files), adapters))
    }
}
