//! The retention of the registry's repositories: regularly, and by `/api/lode/retention`.

use std::time::SystemTime;

use api::lode::{ReducedRepository, RetentionRequest, RetentionResponse};
use axum::Json;
use axum::extract::State;
use registry::RepositoryName;
use registry::server::retention::{Execution, RepositoryRetention, Retained, retain};
use registry::server::{Journal, RepositoryRules, Storage};

use crate::body::Body;
use crate::daemon::Daemon;
use crate::error::Failed;

/// `POST /api/lode/retention`.
pub(crate) async fn retention(
    State(daemon): State<Daemon>,
    Body(request): Body<RetentionRequest>,
) -> Result<Json<RetentionResponse>, Failed> {
    let rules = &daemon.settings.policy.rules;
    let execution = if request.dry_run { Execution::Report } else { Execution::Remove };
    if execution == Execution::Remove {
        daemon.library.ensure_writable()?;
    }
    let done = retain(&daemon.repositories(), rules, daemon.journal.as_ref(), execution, SystemTime::now()).await?;
    Ok(Json(response(rules, &done)))
}

/// The retention of all repositories as the API describes it.
pub fn response(rules: &RepositoryRules, retained: &Retained) -> RetentionResponse {
    let failure = |(name, error): &(RepositoryName, content::Error)| format!("{name}: {error}");
    RetentionResponse {
        has_rules: rules.have_retention(),
        repositories: retained.repositories.iter().map(reduced).collect(),
        failures: retained.failed.iter().map(failure).collect(),
    }
}

fn reduced(retention: &RepositoryRetention) -> ReducedRepository {
    let RepositoryRetention { repository, plan, removed } = retention;
    let (tags, manifests) = removed.unwrap_or_default();
    ReducedRepository {
        repository: repository.to_string(),
        tags: plan.tags.iter().map(|tag| tag.name.clone()).collect(),
        manifests: plan.manifests.iter().map(|manifest| manifest.digest.to_string()).collect(),
        kept_tags: plan.kept_tags as u64,
        removed_tags: tags as u64,
        removed_manifests: manifests as u64,
    }
}

/// Removes tags and manifests that no rule keeps. A failure is logged; the next run goes on.
pub(crate) async fn apply_retention<S: Storage>(storage: &S, rules: &RepositoryRules, journal: &dyn Journal) {
    if !rules.have_retention() {
        return;
    }
    match retain(storage, rules, journal, Execution::Remove, SystemTime::now()).await {
        Ok(done) => {
            for one in done.repositories {
                let (tags, manifests) = one.removed.unwrap_or_default();
                tracing::info!(repository = %one.repository, tags, manifests, "removed by retention");
            }
            for (repository, error) in done.failed {
                tracing::warn!(%repository, "its retention failed, the next run tries again: {error}");
            }
        }
        Err(error) => tracing::warn!("the retention of repositories failed, the next run goes on: {error}"),
    }
}
