//! Between streams of the network and threads that block: a channel of pieces, with a reader and a writer at its ends.

use std::io::{self, Read, Write};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendTimeoutError;

/// Pieces that wait before the sender waits too.
const PIECES: usize = 4;
/// Small writes are put together to pieces of so many bytes.
const PIECE: usize = 1 << 18;

/// What travels: bytes, or why there are no more.
pub type Piece = io::Result<Bytes>;

/// A channel for pieces.
pub fn channel() -> (mpsc::Sender<Piece>, mpsc::Receiver<Piece>) {
    mpsc::channel(PIECES)
}

/// The pieces as a stream.
pub fn stream(receiver: mpsc::Receiver<Piece>) -> impl Stream<Item = Piece> + Send + 'static {
    futures_util::stream::unfold(receiver, |mut receiver| async {
        let piece = receiver.recv().await?;
        Some((piece, receiver))
    })
}

/// The same, once the first piece is there: what fails before it can still be an answer with a status.
///
/// # Errors
/// That of the first piece.
pub async fn begun(mut receiver: mpsc::Receiver<Piece>) -> io::Result<impl Stream<Item = Piece> + Send + 'static> {
    let first = receiver.recv().await.transpose()?;
    Ok(futures_util::stream::iter(first.map(Ok)).chain(stream(receiver)))
}

/// How long the other side may be silent: while it is, what it adds or reads is kept from collection.
const STALL: Duration = Duration::from_mins(1);

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("the client was silent for {} minutes", STALL.as_secs() / 60))
}

/// Reads what is sent. The end of the channel is the end of the bytes.
#[derive(Debug)]
pub struct ChannelReader {
    receiver: mpsc::Receiver<Piece>,
    piece: Bytes,
}

impl ChannelReader {
    /// Reads what arrives there.
    pub fn new(receiver: mpsc::Receiver<Piece>) -> Self {
        Self { receiver, piece: Bytes::new() }
    }

    /// Takes the rest and throws it away: whoever sends it listens to the answer only afterwards.
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

/// Sends what is written, in pieces; a failure is sent by [`ChannelWriter::fail`].
#[derive(Debug)]
pub struct ChannelWriter {
    sender: mpsc::Sender<Piece>,
    buffer: Vec<u8>,
}

impl ChannelWriter {
    /// Sends there.
    pub fn new(sender: mpsc::Sender<Piece>) -> Self {
        Self { sender, buffer: Vec::new() }
    }

    /// Breaks the stream off, so that its receiver does not take it for whole.
    pub fn fail(self, error: io::Error) {
        // Where nobody receives any more nobody needs to know.
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
