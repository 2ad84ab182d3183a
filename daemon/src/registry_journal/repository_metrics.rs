//! Metrics of single repositories.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use registry::server::{Cause, JournalEntry, Operation};

/// Maximum number of repositories with metrics of their own. Later ones count together, as `other`.
const MOST: usize = 1000;

/// Counts requests and bytes by repository.
#[derive(Debug, Default)]
pub(super) struct RepositoryMetrics(Mutex<HashSet<String>>);

impl RepositoryMetrics {
    /// Counts a request that was executed. Refused ones may name repositories that do not exist.
    pub(super) fn count(&self, entry: &JournalEntry) {
        // Changes by rules are no requests.
        if entry.cause != Cause::Request || !entry.succeeded() {
            return;
        }
        // Other requests also succeed for repositories that do not exist.
        let is_counted = matches!(
            entry.operation,
            Operation::PullManifest
                | Operation::PushManifest
                | Operation::DeleteManifest
                | Operation::PullBlob
                | Operation::PushBlob
                | Operation::DeleteBlob
        );
        let Some(repository) = entry.repository.as_deref().filter(|_| is_counted) else { return };
        let label = self.label(repository);
        let operation = entry.operation.as_str();
        metrics::counter!("lode_registry_operations_total", "repository" => label.clone(), "operation" => operation)
            .increment(1);
        metrics::counter!("lode_registry_received_bytes_total", "repository" => label.clone())
            .increment(entry.received);
        metrics::counter!("lode_registry_sent_bytes_total", "repository" => label).increment(entry.sent);
    }

    fn label(&self, repository: &str) -> String {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains(repository) {
            if known.len() >= MOST {
                return "other".to_owned();
            }
            known.insert(repository.to_owned());
        }
        repository.to_owned()
    }
}
