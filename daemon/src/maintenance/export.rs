//! `/api/export`.

use std::io::{self, Write};

use api::lode::{ExportChecked, ExportDtype, ExportFormat, ExportRequest};
use axum::Json;
use axum::body::Body as Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use content::operation::OperationError;
use tokio::sync::oneshot;

use crate::body::Body;
use crate::bridge::{self, ChannelWriter};
use crate::daemon::Daemon;
use crate::error::Failed;
use crate::models::{blocking, reference};
use build::{Export, ExportSpec, FloatType};

pub(crate) async fn export(
    State(daemon): State<Daemon>,
    Body(request): Body<ExportRequest>,
) -> Result<Response, Failed> {
    let model = reference(&request.model, "")?;
    let spec = spec(&request);
    let turn = daemon.readouts.turn().await?;
    let export = blocking(&daemon.library, move |library| Export::plan(library, &model, &spec)).await?;
    if request.check {
        let (asker, _asks) = oneshot::channel();
        let checked = turn.run(move || export.write(&mut WhileAsked(asker))).await;
        checked.map_err(|e| OperationError::text(format!("the export ended unexpectedly: {e}")))??;
        return Ok(Json(ExportChecked {}).into_response());
    }
    let size = export.size();
    let (sender, receiver) = bridge::channel();
    // The job ends with the connection, because sending fails then.
    drop(turn.run(move || {
        let mut output = ChannelWriter::new(sender);
        if let Err(error) = export.write(&mut output) {
            tracing::warn!("an export broke off: {error:#}");
            output.fail(io::Error::other(format!("{error:#}")));
        }
    }));
    let body = bridge::begun(receiver).await?;
    let headers = [(header::CONTENT_TYPE, "application/x-tar".to_owned()), (header::CONTENT_LENGTH, size.to_string())];
    Ok((headers, Bytes::from_stream(body)).into_response())
}

fn spec(request: &ExportRequest) -> ExportSpec {
    let format = match request.format {
        ExportFormat::Origin => build::ExportFormat::Origin,
        ExportFormat::Safetensors => build::ExportFormat::Safetensors,
        ExportFormat::Mlx => build::ExportFormat::Mlx,
        ExportFormat::Gguf => build::ExportFormat::Gguf,
    };
    let dtype = |dtype| match dtype {
        ExportDtype::F32 => FloatType::F32,
        ExportDtype::F16 => FloatType::F16,
        ExportDtype::Bf16 => FloatType::Bf16,
    };
    ExportSpec { format, dtype: request.dtype.map(dtype), shard_size: request.shard_size, lossy: request.lossy }
}

/// Discards all output, and fails once the request that started the check was dropped, with the
/// other end of the channel.
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
