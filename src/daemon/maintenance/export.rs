//! `/api/export`.

use std::io::{self, Write};

use api::lode::{ExportChecked, ExportRequest};
use axum::Json;
use axum::body::Body as Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use tokio::sync::oneshot;

use crate::bridge::{self, ChannelWriter};
use crate::daemon::Daemon;
use crate::daemon::error::{Body, Failed};
use crate::daemon::models::{blocking, reference};
use crate::ops::Export;

pub(super) async fn export(
    State(daemon): State<Daemon>,
    Body(request): Body<ExportRequest>,
) -> Result<Response, Failed> {
    let model = reference(&request.model, "")?;
    let check = request.check;
    let export = blocking(&daemon.library, move |library| Export::plan(library, &model, &request)).await?;
    if check {
        let (asker, _asks) = oneshot::channel();
        blocking(&daemon.library, move |_| export.write(&mut WhileAsked(asker))).await?;
        return Ok(Json(ExportChecked {}).into_response());
    }
    let size = export.size();
    let (sender, receiver) = bridge::channel();
    // It ends with the connection: then nothing more can be sent.
    drop(tokio::task::spawn_blocking(move || {
        let mut output = ChannelWriter::new(sender);
        if let Err(error) = export.write(&mut output) {
            tracing::warn!("an export broke off: {error:#}");
            output.fail(io::Error::other(format!("{error:#}")));
        }
    }));
    let headers = [(header::CONTENT_TYPE, "application/x-tar".to_owned()), (header::CONTENT_LENGTH, size.to_string())];
    Ok((headers, Bytes::from_stream(bridge::stream(receiver))).into_response())
}

/// Takes whatever is written, until whoever asked for it is gone: the request with the other end was dropped.
struct WhileAsked(oneshot::Sender<()>);

impl Write for WhileAsked {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.is_closed() { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_ends_with_its_request() {
        let (asker, asks) = oneshot::channel();
        let mut sink = WhileAsked(asker);
        assert_eq!(sink.write(b"some").expect("somebody asks"), 4);
        drop(asks);
        assert_eq!(sink.write(b"more").expect_err("nobody asks").kind(), io::ErrorKind::BrokenPipe);
    }
}
