//! Preloading of models at the start.

use crate::acquire::Wish;
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::models;

impl Daemon {
    /// Loads the configured models one after the other, before any request arrives.
    pub(crate) async fn preload(&self) {
        let pinned = self.settings.pin.iter();
        let others = self.settings.preload.iter().filter(|name| !self.settings.pin.contains(name));
        for name in pinned.chain(others) {
            match self.preload_one(name).await {
                Ok(()) => tracing::info!(model = name, "preloaded"),
                Err(failed) => tracing::error!(model = name, "cannot preload the model: {}", failed.message),
            }
        }
    }

    async fn preload_one(&self, name: &str) -> Result<(), Failed> {
        let model = models::find(self, models::reference(name, "")?).await?;
        drop(self.acquire(&model, Wish::of(self.context(&model, None), self.devices(&model, None, None))).await?);
        Ok(())
    }
}
