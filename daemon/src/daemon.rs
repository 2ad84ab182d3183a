//! What the handlers of the daemon share.

use std::sync::Arc;

use library::Library;
use registry::server::access::Access;
use scheduler::Scheduler;

use crate::budget::Budget;
use crate::collections::Collections;
use crate::guard::keys::Keys;
use crate::guard::permissions::Permissions;
use crate::handed::Handed;
use crate::jobs::Jobs;
use crate::metrics::counts::Counts;
use crate::rates::Rates;
use crate::settings::Settings;

/// What handlers share.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    pub(crate) library: Library,
    pub(crate) scheduler: Scheduler,
    pub(crate) access: Access,
    pub(crate) keys: Option<Keys>,
    pub(crate) counts: Counts,
    pub(crate) rates: Rates,
    pub(crate) settings: Settings,
    pub(crate) budget: Budget,
    pub(crate) handed: Handed,
    /// For what changes something, or looks at all of it.
    pub(crate) jobs: Jobs,
    /// Those whose input a client sends while they go on: however slowly it comes, others have turns of their own.
    pub(crate) incoming: Jobs,
    /// For what clients read out, as slowly as they like.
    pub(crate) readouts: Jobs,
    pub(crate) permissions: Arc<Permissions>,
    /// Of uploads from which models were made.
    pub(crate) collections: Collections,
}
