//! Leasing a runner for a call, with the context that its prompts need.

use std::sync::Arc;
use std::time::Duration;

use protocol::GenerateRequest;
use scheduler::{Context, KeepAlive};

use super::{Call, Ready};
use crate::acquire::Wish;
use crate::context_growth::Needed;
use crate::daemon::Daemon;
use crate::error::Failed;

/// If a generation may exceed its context and the request sets no limit (`num_predict: -1`), it
/// ends after this many contexts, as in Ollama.
const ENDLESS: u64 = 10;
/// A generation without any limit ends after this many contexts.
const UNLIMITED: u64 = 1;
/// Minimal keep-alive between the lease that counts a prompt's tokens and the lease that answers
/// it.
const BETWEEN_LEASES: Duration = Duration::from_mins(1);

impl Call {
    /// Leases a runner with the model, loading the model if necessary.
    pub(crate) async fn ready(&self, daemon: &Daemon) -> Result<Ready, Failed> {
        self.ready_with(daemon, self.wish(daemon)).await
    }

    fn wish(&self, daemon: &Daemon) -> Wish {
        let choice = daemon.devices(&self.model, self.options.num_gpu, self.options.main_gpu);
        let (context, keep_alive, is_aside) = (self.context(daemon), self.keep_alive, self.is_aside);
        Wish { context, choice, keep_alive, is_aside }
    }

    /// Leases a runner whose context has room for these requests. If neither the request, the model
    /// nor the settings set a context, it is made as long as the longest request needs.
    ///
    /// # Errors
    /// 400 if a prompt must not be truncated and exceeds every context that is possible here.
    pub(crate) async fn ready_for(&self, daemon: &Daemon, requests: &[GenerateRequest]) -> Result<Ready, Failed> {
        let usual = self.context(daemon);
        let may_grow = daemon.settings.context_grows && self.options.num_ctx.is_none();
        if !may_grow || !Needed::may_exceed(usual.tokens(), requests) {
            return self.ready(daemon).await;
        }
        // The first lease counts the prompts' tokens. It must end before the second, because a
        // longer context waits until no request uses the model. A model with a short keep-alive
        // must survive until the second lease.
        let short = self.keep_alive.filter(|keep| matches!(keep, KeepAlive::For(time) if *time < BETWEEN_LEASES));
        let keep_alive = short.map(|_| KeepAlive::For(BETWEEN_LEASES)).or(self.keep_alive);
        let first = self.ready_with(daemon, Wish { keep_alive, ..self.wish(daemon) }).await?;
        match self.longer_context(daemon, &first, requests).await? {
            Some(context) => {
                drop(first);
                self.ready_with_longer(daemon, context, requests).await
            }
            None if short.is_some() => {
                drop(first);
                self.ready(daemon).await
            }
            None => Ok(first),
        }
    }

    /// Returns the context that these requests need, if it is longer than the loaded one and
    /// possible.
    async fn longer_context(
        &self,
        daemon: &Daemon,
        ready: &Ready,
        requests: &[GenerateRequest],
    ) -> Result<Option<u64>, Failed> {
        let is_longest = ready.context() >= self.model.parsed_facts.context();
        if is_longest && requests.iter().all(|request| request.truncate) {
            return Ok(None);
        }
        let Some(needed) = Needed::beyond(ready.context(), requests, ready.runner()).await? else { return Ok(None) };
        let context = daemon.longer_context(&self.model, needed)?;
        Ok(Some(context).filter(|context| *context > ready.context()))
    }

    /// Leases a runner with a longer context. If that fails because the memory estimate was wrong,
    /// prompts that may be truncated use the usual context.
    async fn ready_with_longer(
        &self,
        daemon: &Daemon,
        context: u64,
        requests: &[GenerateRequest],
    ) -> Result<Ready, Failed> {
        match self.ready_with(daemon, Wish { context: Context::AtLeast(context), ..self.wish(daemon) }).await {
            Err(failed) if requests.iter().all(|request| request.truncate) => {
                tracing::warn!(model = self.model.name, context, "no longer context: {}", failed.message);
                self.ready(daemon).await
            }
            other => other,
        }
    }

    /// Releases the model if other requests wait for it, and leases it again after them.
    ///
    /// # Errors
    /// The model cannot be loaded again.
    pub(crate) async fn give_way(&self, daemon: &Daemon, ready: Ready) -> Result<Ready, Failed> {
        let model = self.digest();
        let is_wanted = daemon.scheduler.loaded().iter().any(|own| own.key.model == model && own.waiting > 0);
        if !is_wanted {
            return Ok(ready);
        }
        let load = ready.load;
        drop(ready);
        Ok(Ready { load, ..self.ready(daemon).await? })
    }

    async fn ready_with(&self, daemon: &Daemon, wish: Wish) -> Result<Ready, Failed> {
        let lease = daemon.acquire(&self.model, wish).await?;
        let (lease, model) = (Arc::new(lease), self.model.name.clone());
        let contexts = if self.options.num_predict.is_some_and(|number| number < 0) { ENDLESS } else { UNLIMITED };
        Ok(Ready { lease, contexts, model, rates: daemon.rates.clone(), begin: self.begin, load: self.begin.elapsed() })
    }

    /// Unloads the model when no request uses it; requests of other clients run to their end.
    pub(crate) fn unload(&self, daemon: &Daemon) {
        daemon.scheduler.stop_when_idle(&self.digest());
    }

    /// Whether the request sets a keep-alive of zero.
    pub(crate) fn wants_no_keeping(&self) -> bool {
        self.keep_alive == Some(KeepAlive::For(Duration::ZERO))
    }
}
