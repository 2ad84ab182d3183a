//! The documents of a load plan, each with its name.

use std::sync::Arc;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::mapped::Blob;

/// The documents of a load plan, each with its name.
#[derive(Clone, Copy)]
pub(crate) struct Documents<'a>(&'a [(String, Arc<Blob>)]);

impl<'a> Documents<'a> {
    pub(crate) fn new(all: &'a [(String, Arc<Blob>)]) -> Self {
        Self(all)
    }

    /// Iterates over all documents.
    pub(crate) fn iter(self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.0.iter().map(|(name, bytes)| (name.as_str(), &***bytes))
    }

    /// Returns the document of that name.
    pub(crate) fn find(self, name: &str) -> Option<&'a [u8]> {
        self.iter().find(|(own, _)| *own == name).map(|(_, bytes)| bytes)
    }

    /// Returns a JSON document; `null` if there is none.
    pub(crate) fn json(self, name: &str) -> Result<Value> {
        let Some(raw) = self.find(name) else { return Ok(Value::Null) };
        serde_json::from_slice(&formats::json::tolerant(raw)).with_context(|| format!("`{name}` is not JSON"))
    }
}
