//! The JSON forms of the documents. They are converted to the domain types by hand and checked.

use std::collections::BTreeMap;

use content::{Descriptor, MediaType};
use serde::{Deserialize, Serialize};

use crate::{Error, Layer};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireDescriptor {
    pub(crate) media_type: String,
    pub(crate) digest: String,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireManifest {
    pub(crate) schema_version: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) media_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) artifact_type: Option<String>,
    pub(crate) config: WireDescriptor,
    #[serde(default)]
    pub(crate) layers: Vec<WireDescriptor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) subject: Option<WireDescriptor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireIndex {
    pub(crate) schema_version: u64,
    #[serde(default)]
    pub(crate) media_type: Option<String>,
    #[serde(default)]
    pub(crate) artifact_type: Option<String>,
    #[serde(default)]
    pub(crate) subject: Option<WireDescriptor>,
    #[serde(default)]
    pub(crate) manifests: Vec<WireDescriptor>,
    #[serde(default)]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

impl WireDescriptor {
    pub(crate) fn descriptor(&self, what: &'static str) -> Result<Descriptor, Error> {
        Ok(Descriptor {
            media_type: MediaType::parse(&self.media_type).map_err(|e| Error::malformed(what, e))?,
            digest: self.digest.parse().map_err(|e| Error::malformed(what, e))?,
            size: self.size,
        })
    }

    pub(crate) fn layer(self, what: &'static str) -> Result<Layer, Error> {
        let descriptor = self.descriptor(what)?;
        Ok(Layer { descriptor, name: self.name, annotations: self.annotations.unwrap_or_default() })
    }
}

impl From<&Descriptor> for WireDescriptor {
    fn from(descriptor: &Descriptor) -> Self {
        Self {
            media_type: descriptor.media_type.to_string(),
            digest: descriptor.digest.to_string(),
            size: descriptor.size,
            name: None,
            annotations: None,
        }
    }
}

impl From<&Layer> for WireDescriptor {
    fn from(layer: &Layer) -> Self {
        Self {
            name: layer.name.clone(),
            annotations: Some(layer.annotations.clone()).filter(|map| !map.is_empty()),
            ..Self::from(&layer.descriptor)
        }
    }
}
