//! What the process that holds weights on GPUs is told and asked.
//!
//! `lode-runner --hold` has arrays of weights in the memory of GPUs, each once, whichever models have it: an array is named by its blob's digest
//! and its place there. Its standard input is a Unix socket on which the daemon asks for a [`Survey`], or opens a session for a
//! runner ([`HolderCall::Hold`]). A session is two sockets. By one the daemon passes the blobs' descriptors, as it does to a runner; on the
//! other the runner asks for arrays ([`ArrayCall`]), is told where they are and gets descriptors of the device's memory, which it maps. What was asked
//! for is in use until that socket closes. Only the holder writes arrays, from descriptors that the daemon has opened: what is under a
//! digest is never a runner's word.
//!
//! Messages are JSON behind their length, see [`passing`](crate::passing).

use serde::{Deserialize, Serialize};

use crate::{Blob, Device, FailureKind, UnusableDevice};

/// What the daemon wants of the holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HolderCall {
    /// Answered by a [`Survey`].
    Survey {
        /// As load plans name it: `auto`, `cuda:N`.
        device: String,
        /// The blobs of the model that is to be loaded.
        blobs: Vec<String>,
    },
    /// Comes with two sockets: for the blobs' descriptors, and to the runner. There is no answer.
    Hold {
        /// What is passed, in this order.
        blobs: Vec<Blob>,
        /// What the runner takes for itself.
        reserved: Vec<Reserved>,
    },
}

/// Bytes of a device that a runner takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// Which device.
    pub device: String,
    /// Its KV cache and activations.
    pub own: u64,
    /// Arrays that it will ask for.
    pub weights: u64,
}

/// The devices that can be computed on, with what is free of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// Those that work; of each is free what nobody has and what nobody uses.
    pub devices: Vec<SurveyedDevice>,
    /// Those that do not.
    pub unusable: Vec<UnusableDevice>,
}

/// A device and what is there of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurveyedDevice {
    /// What it is.
    pub device: Device,
    /// Its number among those of its kind, by which `main_gpu` means it.
    pub index: u64,
    /// Bytes of the model's blobs that others use: they take no more room.
    pub shared: u64,
    /// Bytes of the model's blobs that are there, whether or not somebody uses them.
    pub there: u64,
}

/// What a runner wants of the holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArrayCall {
    /// What will be asked for on a device, in this order: so that it is read from the disk before. There is no answer, and other arrays can be
    /// asked for as well.
    Coming {
        /// Which device.
        device: String,
        /// Parts of blobs.
        parts: Vec<BlobPart>,
    },
    /// An array, to be used until the socket closes. Answered by an [`ArrayReply`]; it is not there yet.
    Array {
        /// Which device.
        device: String,
        /// The place of its blob among those of the session.
        blob: usize,
        /// Where it begins there.
        offset: u64,
        /// Its bytes.
        size: u64,
    },
    /// Answered when all arrays that were asked for are there. No more can be asked for then.
    Finish,
}

/// A part of a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobPart {
    /// The place of the blob among those of the session.
    pub blob: usize,
    /// Where it begins there.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
}

/// What a runner is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArrayReply {
    /// Where the array is.
    At {
        /// The number of the memory that it lies in. Comes with its descriptor where it is the first of that memory.
        slab: u64,
        /// Bytes of that memory.
        slab_size: u64,
        /// Where it begins there.
        offset: u64,
    },
    /// All arrays are there.
    Finished {
        /// Bytes that were copied to devices for this session.
        copied: u64,
    },
    /// It cannot be had.
    Failed {
        /// Whose fault it is.
        kind: FailureKind,
        /// For people.
        error: String,
    },
}
