//! Messages of the *holder*, the process that keeps weights in the memory of GPUs.
//!
//! The holder is `lode-runner --hold`. It keeps each array of weights in GPU memory once, however
//! many models contain it. An array is identified by the digest of its blob and its offset in that
//! blob. The holder's standard input is a Unix socket on which the daemon requests a [`Survey`] or
//! opens a session for a runner ([`HolderCall::Hold`]).
//!
//! A session consists of two sockets. On the first, the daemon passes the descriptors of the blobs,
//! as it does to a runner. On the second, the runner requests arrays ([`ArrayCall`]). The holder
//! replies with their locations and with descriptors of device memory, which the runner maps.
//! Requested arrays stay in use until that socket closes. Only the holder writes arrays, and it
//! reads them from descriptors that the daemon opened. A runner therefore cannot decide which bytes
//! are stored under a digest.
//!
//! Messages are JSON with a length prefix; see [`passing`](crate::passing).

use serde::{Deserialize, Serialize};

use crate::{Blob, Device, FailureKind, UnusableDevice};

/// Requests from the daemon to the holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HolderCall {
    /// Requests the state of the devices; the reply is a [`Survey`].
    Survey {
        /// Device as load plans name it: `auto`, `cuda:N`.
        device: String,
        /// Digests of the blobs of the model to be loaded.
        blobs: Vec<String>,
    },
    /// Opens a session. The message carries two sockets: one for the blobs' descriptors, one to the
    /// runner. There is no reply.
    Hold {
        /// The blobs whose descriptors are passed, in this order.
        blobs: Vec<Blob>,
        /// Device memory to reserve for the runner.
        reserved: Vec<Reserved>,
    },
}

/// Bytes of a device's memory that a runner uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// Name of the device.
    pub device: String,
    /// Bytes of the runner's KV cache and activations.
    pub own: u64,
    /// Bytes of the arrays that the runner will request.
    pub weights: u64,
}

/// The devices, with their free memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// Devices that work. Their free memory excludes bytes that are promised to sessions, and
    /// includes arrays that no session uses.
    pub devices: Vec<SurveyedDevice>,
    /// Devices that do not work.
    pub unusable: Vec<UnusableDevice>,
}

/// A device, with the bytes of the model that are already in its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurveyedDevice {
    /// The device.
    pub device: Device,
    /// Index among the devices of its kind, as `main_gpu` counts them.
    pub index: u64,
    /// Bytes of the model's blobs that other sessions use; loading them needs no further memory.
    pub shared: u64,
    /// Bytes of the model's blobs that are in the device's memory, whether or not a session uses
    /// them.
    pub there: u64,
}

/// Requests from a runner to the holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArrayCall {
    /// Announces the arrays that the runner will request on a device, in this order, so that the
    /// holder reads them from disk ahead of time. There is no reply. Other arrays can be requested
    /// too.
    Coming {
        /// Name of the device.
        device: String,
        /// The announced parts of blobs.
        parts: Vec<BlobPart>,
    },
    /// Requests an array, which stays in use until the socket closes. The holder replies with an
    /// [`ArrayReply`] before the bytes have been copied.
    Array {
        /// Name of the device.
        device: String,
        /// Index of the blob in the session's list of blobs.
        blob: usize,
        /// Offset of the array in the blob, in bytes.
        offset: u64,
        /// Size of the array in bytes.
        size: u64,
    },
    /// Waits for the copies. The holder replies when all requested arrays are in memory; no more
    /// can be requested afterwards.
    Finish,
}

/// A part of a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobPart {
    /// Index of the blob in the session's list of blobs.
    pub blob: usize,
    /// Offset of the part in the blob, in bytes.
    pub offset: u64,
    /// Size of the part in bytes.
    pub size: u64,
}

/// Replies of the holder to a runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArrayReply {
    /// The location of an array.
    At {
        /// Number of the slab, the shared memory that contains the array. The first reply for a
        /// slab carries its descriptor.
        slab: u64,
        /// Size of the slab in bytes.
        slab_size: u64,
        /// Offset of the array in the slab, in bytes.
        offset: u64,
    },
    /// All requested arrays are in memory.
    Finished {
        /// Number of bytes that were copied to devices for this session.
        copied: u64,
    },
    /// The request failed.
    Failed {
        /// Kind of the failure.
        kind: FailureKind,
        /// Message for the user.
        error: String,
    },
}
