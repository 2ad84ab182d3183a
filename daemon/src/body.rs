//! JSON bodies of requests, with limits on their length, on the memory of all bodies together, and
//! on the number of values in each.
//!
//! A parsed document takes many times its length. In a list of empty lists, for example, each one
//! has two bytes of text and more than thirty times that in memory. Therefore values are counted
//! before the document is parsed.

use std::time::Duration;

use axum::body::{Body as Bytes, BodyDataStream};
use axum::extract::{FromRef, FromRequest, Request};
use axum::http::StatusCode;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;

use crate::budget::{Budget, BudgetPermit};
use crate::daemon::Daemon;
use crate::error::Failed;

/// The largest document in bytes, with room for the largest picture as base64.
const MOST_BYTES: usize = 48 << 20;
/// How many bytes of an oversized document are read and discarded.
const MOST_TAKEN: usize = 128 << 20;
/// The largest number of values in a document: strings, numbers, lists, objects.
const MOST_VALUES: usize = 500_000;
/// How long a document may take to arrive. It holds its part of the budget meanwhile.
const TIME: Duration = Duration::from_mins(1);

impl FromRef<Daemon> for Budget {
    fn from_ref(daemon: &Daemon) -> Self {
        daemon.budget.clone()
    }
}

/// The body of a request, parsed as JSON regardless of its content type, since `curl -d` sends a
/// wrong one.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T>
where
    Budget: FromRef<S>,
{
    type Rejection = Failed;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failed> {
        let reading = read(request.into_body(), Budget::from_ref(state));
        let late =
            || Failed::new(StatusCode::REQUEST_TIMEOUT, format!("the request body took more than {TIME:?} to arrive"));
        let (bytes, _room) = tokio::time::timeout(TIME, reading).await.map_err(|_| late())??;
        if bytes.is_empty() {
            return Err(Failed::bad_request("missing request body"));
        }
        if values(&bytes) > MOST_VALUES {
            return Err(Failed::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the request has more than {MOST_VALUES} values, the limit"),
            ));
        }
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|e| Failed::bad_request(format!("the request is not valid JSON for this call: {e}")))
    }
}

/// Defines the body of requests to an API that reports failures in its own format.
macro_rules! body_refused_by {
    ($failure:ty) => {
        /// The body of a request, read like [`Body`](crate::body::Body).
        pub(crate) struct Body<T>(pub(crate) T);

        impl<T: serde::de::DeserializeOwned, S: Send + Sync> axum::extract::FromRequest<S> for Body<T>
        where
            $crate::budget::Budget: axum::extract::FromRef<S>,
        {
            type Rejection = $failure;

            async fn from_request(request: axum::extract::Request, state: &S) -> Result<Self, $failure> {
                let $crate::body::Body(body) = $crate::body::Body::from_request(request, state).await?;
                Ok(Self(body))
            }
        }
    };
}

pub(crate) use body_refused_by;

/// Reads a body and takes budget for the bytes as they arrive. A client that announces a large body
/// and sends nothing takes none.
async fn read(body: Bytes, budget: Budget) -> Result<(Vec<u8>, Option<BudgetPermit>), Failed> {
    let (mut bytes, mut room) = (Vec::new(), None::<BudgetPermit>);
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| Failed::bad_request(format!("the request broke off: {error}")))?;
        if bytes.len() + piece.len() > MOST_BYTES {
            drop((bytes, room));
            return Err(too_long(pieces).await);
        }
        match &mut room {
            Some(room) => room.grow(piece.len()).await?,
            None => room = Some(budget.take(piece.len()).await?),
        }
        bytes.extend_from_slice(&piece);
    }
    Ok((bytes, room))
}

/// Refuses an oversized body. Reads and discards a part of the rest, because a client that is still
/// sending would see a broken connection instead of the response.
async fn too_long(mut rest: BodyDataStream) -> Failed {
    let mut taken = 0;
    while let Some(Ok(piece)) = rest.next().await {
        taken += piece.len();
        if taken > MOST_TAKEN {
            break;
        }
    }
    Failed::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the request is longer than {MOST_BYTES} bytes, the limit"))
}

/// Returns an upper bound of the number of values: one, plus one for each comma, colon, list and
/// object outside of strings.
fn values(json: &[u8]) -> usize {
    let (mut count, mut in_text, mut escaped) = (1, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b':' | b'[' | b'{' if !in_text => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (json, expect) in
            [("1", 1), (r#"{"a": [1, 2]}"#, 5), (r#"{"a": ",,,[{\",,"}"#, 3), ("[[],[],[]]", 7), (r#""\\""#, 1)]
        {
            assert_eq!(values(json.as_bytes()), expect, "{json}");
        }
    }
}
