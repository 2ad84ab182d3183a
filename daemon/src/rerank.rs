//! `/api/rerank`, and the code that it shares with `/v1/rerank`.

use api::rerank::{RerankRequest, TimedRerankResponse};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use library::Capability;
use protocol::RerankReply;

use crate::body::Body;
use crate::call::{Call, Ready};
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::generate::nanos;
use crate::headers::{attested, truncated, with_ignored};

/// A ranking with its call and lease.
pub(crate) struct Ranking {
    call: Call,
    ready: Ready,
    pub(crate) reply: RerankReply,
}

impl Ranking {
    /// Has the model rank the documents.
    ///
    /// # Errors
    /// 404 if there is no such model, 400 if it cannot rank, and the runner's errors.
    pub(crate) async fn of(
        daemon: &Daemon,
        request: &RerankRequest,
        asked: &protocol::RerankRequest,
    ) -> Result<Self, Failed> {
        let demand = request.demand().map_err(Failed::bad_request)?;
        let call = Call::begin(daemon, &request.model, &demand).await?.aside();
        call.require(Capability::Rerank)?;
        let (reply, ready) = call.rerank(daemon, call.ready(daemon).await?, asked).await?;
        Ok(Self { call, ready, reply })
    }

    /// Adds the headers about the model and the prompt to a response.
    pub(crate) fn answer(&self, answer: impl IntoResponse) -> Response {
        let answer = truncated(attested(answer.into_response(), &self.call.digest()), self.reply.truncated_tokens);
        with_ignored(answer, &self.call.ignored_options())
    }
}

pub(crate) async fn rerank(
    State(daemon): State<Daemon>,
    Body(request): Body<RerankRequest>,
) -> Result<Response, Failed> {
    let asked = request.translate().map_err(|refusal| Failed::bad_request(refusal.to_string()))?;
    let ranking = Ranking::of(&daemon, &request, &asked).await?;
    let times = ranking.ready.timing().now();
    let durations = [nanos(times.total), nanos(times.load)];
    Ok(ranking.answer(Json(TimedRerankResponse::new(&request, &ranking.reply, durations))))
}
