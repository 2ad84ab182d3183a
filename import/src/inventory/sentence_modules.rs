//! Folders of the modules of sentence-transformers beside a model, and the prefix of their tensors.

use std::collections::HashSet;

use super::{SourceFile, SourceTensor, WHOLE};
use crate::{Error, NamedFile};

/// Folders of modules.
pub(super) struct SentenceFolders<'a> {
    folders: Vec<String>,
    /// Files that the index names; they are part of the model itself.
    indexed: HashSet<&'a str>,
}

impl<'a> SentenceFolders<'a> {
    /// Reads the list of modules, if there is one.
    pub(super) fn new(list: Option<&[u8]>, indexed: impl Iterator<Item = &'a String>) -> Self {
        let folders = list.map(architectures::module_folders).unwrap_or_default();
        Self { folders, indexed: indexed.map(String::as_str).collect() }
    }

    /// Returns the folder of the module whose weights the file has.
    pub(super) fn of(&self, file: &NamedFile) -> Option<&str> {
        let folder = file.name.strip_suffix(WHOLE)?.strip_suffix('/')?;
        let found = self.folders.iter().find(|module| *module == folder)?;
        (!self.indexed.contains(file.name.as_str())).then_some(found)
    }

    /// Returns the files of modules and those of the model. Some models have other folders beside
    /// those of their modules, such as one for each width of their vectors. Their files are left
    /// out if the model's own files lie outside of folders.
    pub(super) fn sorted<'f>(&self, files: &[&'f NamedFile]) -> (Vec<&'f NamedFile>, Vec<&'f NamedFile>) {
        let (of_modules, mut others): (Vec<&NamedFile>, Vec<&NamedFile>) =
            files.iter().copied().partition(|file| self.of(file).is_some());
        let is_outside = |file: &NamedFile| !file.name.contains('/');
        if !self.folders.is_empty() && others.iter().any(|file| is_outside(file)) {
            others.retain(|file| is_outside(file) || self.indexed.contains(file.name.as_str()));
        }
        (of_modules, others)
    }

    /// Refuses tensors whose names begin like those of a module that they do not belong to: an
    /// export could not tell them apart.
    pub(super) fn check_prefixes(&self, files: &[SourceFile], tensors: &[SourceTensor]) -> Result<(), Error> {
        for folder in &self.folders {
            let prefix = format!("{folder}.");
            let other =
                tensors.iter().find(|tensor| tensor.name.starts_with(&prefix) && files[tensor.file].prefix != prefix);
            if let Some(other) = other {
                return Err(Error::Source(format!(
                    "tensor `{}` in `{}` begins like the tensors of the module in `{folder}`",
                    other.name, files[other.file].name
                )));
            }
        }
        Ok(())
    }
}
