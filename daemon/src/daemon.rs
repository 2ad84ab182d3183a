//! The shared state of the daemon's handlers.

use std::sync::Arc;

use library::Library;
use registry::server::Journal;
use registry::server::access::Access;
use scheduler::Scheduler;
use tier::Tier;
use transfer::{Hosts, Repositories, Upstream};

use crate::bandwidth::SharedLimit;
use crate::budget::Budget;
use crate::collections::Collections;
use crate::guard::keys::Keys;
use crate::guard::permissions::Permissions;
use crate::jobs::Jobs;
use crate::long_tasks::LongTasks;
use crate::metrics::counts::Counts;
use crate::rates::Rates;
use crate::settings::Settings;
use crate::socket_uploads::SocketUploads;

/// The shared state of handlers.
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
    pub(crate) handed: SocketUploads,
    /// Pulls, pushes and creates.
    pub(crate) jobs: Jobs,
    /// The limit that all transfers share.
    pub(crate) limit: SharedLimit,
    /// Tasks that change the store or read all of it.
    pub(crate) long_tasks: LongTasks,
    /// Tasks that read their input from a client while they run. They are separate, so that slow
    /// clients do not block other tasks.
    pub(crate) incoming: LongTasks,
    /// Tasks whose output a client reads at its own pace.
    pub(crate) readouts: LongTasks,
    pub(crate) permissions: Arc<Permissions>,
    /// The journal of the registry.
    pub(crate) journal: Arc<dyn Journal>,
    /// The tier of the store.
    pub(crate) tier: Option<Tier>,
    /// Collections of uploads after models were created from them.
    pub(crate) collections: Collections,
}

impl Daemon {
    /// The library as the storage of the registry, with its upstream registries.
    pub(crate) fn repositories(&self) -> Repositories {
        let library = self.library.clone();
        let hosts = if self.access.anyone_may_pull() {
            Hosts::anonymous(&self.settings.registries)
        } else {
            Hosts::new(&self.settings.registries, false)
        };
        let allowed = self.settings.pull_through.clone();
        let upstream = allowed.map(|allowed| Upstream { library: library.clone(), hosts, allowed: Some(allowed) });
        Repositories { library, upstream }
    }
}
