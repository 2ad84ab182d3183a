//! The documents that describe the model of a folder: `config.json`, and those of its pictures and
//! of the linear layers behind pooling.

use architectures::{
    Architecture, DenseModule, Document, MODULES, PICTURE_DOCUMENTS, TensorNames, dense_modules, describe,
    sentence_modules,
};
use content::operation::Result;

/// Documents that describe the model of a folder.
#[derive(Clone, Debug)]
pub(crate) struct ConfigDocuments {
    /// Contents of `config.json`.
    pub(crate) config: Vec<u8>,
    /// Settings of pictures.
    pictures: Vec<Vec<u8>>,
    /// Linear layers behind pooling, or the reason why their list cannot be read.
    dense: Result<Vec<DenseModule>, String>,
}

impl ConfigDocuments {
    /// Reads the documents; `None` if there is no `config.json`. `read` returns the contents of a
    /// document, if there is one with that name.
    pub(crate) fn read(read: impl Fn(&str) -> Result<Option<Vec<u8>>>) -> Result<Option<Self>> {
        let Some(config) = read("config.json")? else { return Ok(None) };
        let listed = read(MODULES)?.map_or_else(|| Ok(Vec::new()), |raw| sentence_modules(&raw));
        let dense = match listed {
            Ok(modules) => Ok(dense_modules(&modules)
                .map(|module| Ok(DenseModule { path: module.path.clone(), config: read(&module.config_name())? }))
                .collect::<Result<_>>()?),
            Err(error) => Err(error.to_string()),
        };
        let pictures =
            PICTURE_DOCUMENTS.into_iter().filter_map(|name| read(name).transpose()).collect::<Result<_>>()?;
        Ok(Some(Self { config, pictures, dense }))
    }

    /// Derives the architecture. `names` are the names of the model's tensors.
    ///
    /// # Errors
    /// The architecture is not supported, or the documents contradict themselves; the text is the
    /// reason.
    pub(crate) fn describe(&self, names: &TensorNames) -> Result<Architecture, String> {
        let architecture = describe(Document::Config(&self.config), names).map_err(|error| error.to_string())?;
        let architecture = architecture.with_pictures(&self.config, &self.pictures, names);
        let dense = self.dense.as_ref().map_err(Clone::clone);
        let added =
            dense.and_then(|dense| architecture.clone().with_dense_modules(dense, names).map_err(|e| e.to_string()));
        // A model that generates is of use without them; the runner then refuses to embed.
        if added.is_err() && architecture.blueprint.output.is_some() { Ok(architecture) } else { added }
    }
}
