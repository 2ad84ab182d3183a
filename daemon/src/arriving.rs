//! Requests for models that are being pulled: they wait for the model.

use std::sync::Arc;

use axum::http::StatusCode;
use library::{Model, ModelDefaults};

use crate::daemon::Daemon;
use crate::error::Failed;
use crate::models::{find_called, named};

/// Finds a model by the name that a client wrote, and returns it with its own defaults. Waits for
/// the model if it is not in the store and a job pulls it.
///
/// # Errors
/// 404 if there is no such model and no job pulls it; the error of the job.
pub(crate) async fn find_or_await(daemon: &Daemon, name: &str) -> Result<(Model, Arc<ModelDefaults>), Failed> {
    loop {
        match find_called(daemon, name).await {
            Err(failed) if failed.status == StatusCode::NOT_FOUND => {}
            found => return found,
        }
        let wanted = named(name)?;
        let is_pull = |model: &str| named(model).is_ok_and(|pulled| pulled == wanted);
        let Some(mut pull) = daemon.jobs.running_pull(is_pull) else {
            // A pull may have ended between the two.
            return find_called(daemon, name).await;
        };
        // The model has its name shortly before the job ends.
        if !pull.has_news().await {
            pull.end().await?;
            return find_called(daemon, name).await;
        }
    }
}
