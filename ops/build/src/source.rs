//! What a model is made from.

use std::path::Path;

use anyhow::{Result, ensure};
use import::NamedFile;
use manifests::ModelRef;

/// What to make a model from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Files by name, wherever their bytes are.
    Files(Vec<NamedFile>),
    /// Another model.
    Model(ModelRef),
}

impl Source {
    /// The files at a path that somebody else has named: no link leads out of a folder.
    ///
    /// # Errors
    /// There is nothing that can be read.
    pub fn at(path: &Path) -> Result<Self> {
        Ok(Self::Files(import::locate_beneath(path)?))
    }

    /// The source alone, and the files of adapters that an export has put beside it.
    ///
    /// # Errors
    /// The source is nothing but an adapter.
    pub(crate) fn without_adapters(self) -> Result<(Self, Vec<NamedFile>)> {
        let Self::Files(files) = self else { return Ok((self, Vec::new())) };
        let (files, adapters) = import::split_adapters(files);
        let has = |name: &str| files.iter().any(|file| file.name == name);
        ensure!(
            !has("adapter_config.json") || has("config.json"),
            import::Error::Source(
                "this is an adapter, not a model (`adapter_config.json`): name its base with FROM and it with ADAPTER in a Modelfile"
                    .to_owned()
            )
        );
        Ok((Self::Files(files), adapters))
    }
}
