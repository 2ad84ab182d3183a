//! The readers of the registry's journal: the audit log, webhooks, and metrics of repositories.

mod audit_log;
mod repository_metrics;
pub mod webhooks;

use std::sync::Arc;
use std::time::Duration;

use content::operation::Result;
use registry::server::{Journal, JournalEntry};

use crate::settings::RegistryPolicy;
use audit_log::AuditLog;
use repository_metrics::RepositoryMetrics;
use webhooks::{Webhook, Webhooks};

/// Passes each entry to all readers.
#[derive(Debug)]
struct Readers {
    audit: Option<AuditLog>,
    webhooks: Webhooks,
    metrics: RepositoryMetrics,
}

impl Journal for Readers {
    fn record(&self, entry: &JournalEntry) {
        self.metrics.count(entry);
        self.webhooks.notify(entry);
        if let Some(audit) = &self.audit {
            audit.write(entry);
        }
    }
}

/// The journal of a registry, and the tasks that send its events.
pub(crate) struct RegistryJournal {
    readers: Arc<Readers>,
    senders: Vec<Webhook>,
}

impl RegistryJournal {
    /// Opens the audit log and starts the webhooks.
    ///
    /// # Errors
    /// A file of the policy cannot be opened or read.
    pub(crate) fn start(policy: &RegistryPolicy) -> Result<Self> {
        let audit = policy.audit_log.as_deref().map(AuditLog::open).transpose()?;
        let (webhooks, senders) = webhooks::start(&policy.webhooks)?;
        let readers = Readers { audit, webhooks, metrics: RepositoryMetrics::default() };
        Ok(Self { readers: Arc::new(readers), senders })
    }

    /// The journal for the server.
    pub(crate) fn journal(&self) -> Arc<dyn Journal> {
        self.readers.clone()
    }

    /// Sends the events that wait, for `limit` at most. Events that are still left are logged as
    /// lost.
    pub(crate) async fn finish(self, limit: Duration) {
        webhooks::finish(self.senders, limit).await;
    }
}
