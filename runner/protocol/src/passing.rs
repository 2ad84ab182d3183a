//! Messages with file descriptors on Unix sockets. A message is its length in four bytes
//! (little-endian) and JSON. The descriptors accompany the length.

use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Read, Result, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::DESCRIPTORS;

/// Maximum size of a message in bytes.
const LONGEST: usize = 64 << 20;

/// Received descriptors are close-on-exec, so child programs do not inherit them.
#[cfg(target_os = "linux")]
const FLAGS: RecvFlags = RecvFlags::CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const FLAGS: RecvFlags = RecvFlags::empty();

/// Sends a message with descriptors.
///
/// # Errors
/// The other process has closed the socket, or accepts no bytes within the socket's timeout.
pub fn send(mut socket: &UnixStream, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let bytes = serde_json::to_vec(message)?;
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length as usize <= LONGEST);
    let length = length.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "the message is too long"))?;
    send_with(socket, &length.to_le_bytes(), descriptors)?;
    socket.write_all(&bytes)
}

/// Receives a message with its descriptors; `None` if the other process has closed the socket.
///
/// # Errors
/// The message has another type, or descriptors are missing because this process has reached its
/// limit of open files.
pub fn receive<T: DeserializeOwned>(mut socket: &UnixStream) -> Result<Option<(T, Vec<OwnedFd>)>> {
    let mut length = [0; 4];
    let (begun, descriptors) = receive_with(socket, &mut length)?;
    if begun == 0 {
        return Ok(None);
    }
    socket.read_exact(&mut length[begun..])?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST {
        return Err(Error::new(ErrorKind::InvalidData, format!("a message of {length} bytes")));
    }
    let mut bytes = vec![0; length];
    socket.read_exact(&mut bytes)?;
    Ok(Some((serde_json::from_slice(&bytes)?, descriptors)))
}

/// Sends bytes with at most [`DESCRIPTORS`] descriptors. The caller passes few bytes, which a
/// socket accepts in one call.
///
/// # Errors
/// The other process has closed the socket.
pub fn send_with(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Error::new(ErrorKind::InvalidInput, format!("{} descriptors in a message", descriptors.len())));
    }
    let sent = sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty())?;
    if sent == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

/// Receives the first bytes of a message with its descriptors; 0 bytes if the other process has
/// closed the socket.
///
/// # Errors
/// Every error of the system except interruptions, which are retried.
pub fn receive_with(socket: impl AsFd, bytes: &mut [u8]) -> std::result::Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    loop {
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        match recvmsg(socket.as_fd(), &mut [IoSliceMut::new(bytes)], &mut ancillary, FLAGS) {
            Ok(received) => {
                let files = ancillary.drain().filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(files) => Some(files),
                    _ => None,
                });
                return Ok((received.bytes, files.flatten().collect()));
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_with_their_descriptors_until_the_end() {
        let (a, b) = UnixStream::pair().expect("a pair");
        let file = std::fs::File::open("/dev/null").expect("a file");
        let sender = std::thread::spawn(move || {
            send(&a, &"first", &[file.as_fd(), file.as_fd()]).expect("sent");
            send(&a, &vec![7u32; 100_000], &[]).expect("sent");
        });
        let (first, files) = receive::<String>(&b).expect("received").expect("a message");
        assert_eq!((first.as_str(), files.len()), ("first", 2));
        let (second, files) = receive::<Vec<u32>>(&b).expect("received").expect("a message");
        assert_eq!((second.len(), files.len()), (100_000, 0));
        sender.join().expect("it ends");
        assert!(receive::<String>(&b).expect("received").is_none());
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        for bytes in [&[3, 0, 0, 0, b'"', b'x', b'x'][..], &[0xff; 8], &[9, 0, 0, 0, b'1'], &[1, 0]] {
            let (mut a, b) = UnixStream::pair().expect("a pair");
            a.write_all(bytes).expect("written");
            drop(a);
            assert!(receive::<String>(&b).is_err(), "{bytes:?}");
        }
    }
}
