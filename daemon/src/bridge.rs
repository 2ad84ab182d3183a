//! A bridge between async network streams and blocking threads: a channel of byte chunks with a
//! reader and a writer at its ends.

use std::io::{self, Read, Write};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;

/// Number of chunks in the channel before the sender must wait.
const PIECES: usize = 4;
/// Small writes are combined into chunks of this many bytes.
const PIECE: usize = 1 << 18;

/// A chunk of bytes, or the reason why the stream failed.
pub type Chunk = io::Result<Bytes>;

/// Creates a channel for chunks.
pub fn channel() -> (mpsc::Sender<Chunk>, mpsc::Receiver<Chunk>) {
    mpsc::channel(PIECES)
}

/// Returns the chunks as a stream.
pub fn stream(receiver: mpsc::Receiver<Chunk>) -> impl Stream<Item = Chunk> + Send + 'static {
    futures_util::stream::unfold(receiver, |mut receiver| async {
        let piece = receiver.recv().await?;
        Some((piece, receiver))
    })
}

/// Waits for the first chunk and returns the stream. An earlier failure can still become a response
/// with an error status.
///
/// # Errors
/// The error of the first chunk.
pub async fn begun(mut receiver: mpsc::Receiver<Chunk>) -> io::Result<impl Stream<Item = Chunk> + Send + 'static> {
    let first = receiver.recv().await.transpose()?;
    Ok(futures_util::stream::iter(first.map(Ok)).chain(stream(receiver)))
}

/// How long the other side may be silent. During this time, blobs that it reads or adds are
/// protected from collection.
const STALL: Duration = Duration::from_mins(1);

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("the client was silent for {} minutes", STALL.as_secs() / 60))
}

/// Reads the chunks of a channel. The end of the channel is the end of the bytes.
#[derive(Debug)]
pub struct ChannelReader {
    receiver: mpsc::Receiver<Chunk>,
    piece: Bytes,
}

impl ChannelReader {
    /// Creates a reader of this channel.
    pub fn new(receiver: mpsc::Receiver<Chunk>) -> Self {
        Self { receiver, piece: Bytes::new() }
    }

    /// Reads and discards the rest, because some clients read the response only after they have
    /// sent everything.
    pub fn drain(mut self) {
        while let Some(Ok(_)) = self.receiver.blocking_recv() {}
    }
}

impl Read for ChannelReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            let next = Handle::current().block_on(tokio::time::timeout(STALL, self.receiver.recv()));
            match next.map_err(|_| silent())? {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let n = self.piece.len().min(buffer.len());
        buffer[..n].copy_from_slice(&self.piece.split_to(n));
        Ok(n)
    }
}

/// Writes to a channel in chunks; [`ChannelWriter::fail`] sends a failure.
#[derive(Debug)]
pub struct ChannelWriter {
    sender: mpsc::Sender<Chunk>,
    buffer: Vec<u8>,
}

impl ChannelWriter {
    /// Creates a writer to this channel.
    pub fn new(sender: mpsc::Sender<Chunk>) -> Self {
        Self { sender, buffer: Vec::new() }
    }

    /// Ends the stream with an error, so that the receiver does not take it for complete.
    pub fn fail(self, error: io::Error) {
        // If the receiver is gone, the error is irrelevant.
        let _ = self.sender.blocking_send(Err(error));
    }

    fn send(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::take(&mut self.buffer));
        match Handle::current().block_on(self.sender.send_timeout(Ok(piece), STALL)) {
            Ok(()) => Ok(()),
            Err(SendTimeoutError::Timeout(_)) => Err(silent()),
            Err(SendTimeoutError::Closed(_)) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Write for ChannelWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}
