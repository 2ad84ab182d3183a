//! The variables of object storage.

use std::env;
use std::fmt;

use anyhow::{Context, Result};
use bucket::Location;

use super::variables::first;

/// The beginnings of the names of the providers' variables.
const PROVIDERS: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

/// The bucket that the environment names, and the settings of its provider.
#[derive(Clone)]
pub(crate) struct StorageConfig {
    url: Option<String>,
    options: Vec<(String, String)>,
}

impl StorageConfig {
    pub(super) fn read() -> Self {
        let is_provider = |name: &str| PROVIDERS.iter().any(|provider| name.starts_with(provider));
        let text =
            env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self { url: first(&["LODE_REGISTRY_STORAGE"]), options: text.filter(|(name, _)| is_provider(name)).collect() }
    }

    /// The bucket that an argument or else the environment names.
    pub(crate) fn location(&self, argument: Option<&str>) -> Result<Location> {
        let missing = "no storage is named; give `--storage s3://BUCKET/PREFIX`, or set LODE_REGISTRY_STORAGE";
        self.named(argument)?.context(missing)
    }

    /// [`StorageConfig::location`], or `None` if neither names one.
    pub(crate) fn named(&self, argument: Option<&str>) -> Result<Option<Location>> {
        argument.or(self.url.as_deref()).map(|url| self.at(url)).transpose()
    }

    /// The bucket at a URL.
    pub(super) fn at(&self, url: &str) -> Result<Location> {
        Ok(Location::parse(url, self.options.iter().cloned())?)
    }
}

/// The options contain secrets.
impl fmt::Debug for StorageConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageConfig").field("url", &self.url).finish_non_exhaustive()
    }
}
