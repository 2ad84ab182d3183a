//! Kinds of operations, their frequencies, and the refusals that are allowed.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Creates a model from files.
    Create,
    /// Copies a model to a second name.
    Copy,
    /// Removes a name.
    Remove,
    /// Pushes from the daemon that is killed to its peer.
    Push,
    /// Pulls from the peer, under the peer's name.
    Pull,
    /// Pushes from the peer to the daemon that is killed.
    Upload,
    /// Reads a manifest from the registry, and puts it under another tag of its repository.
    Put,
    /// Runs a collection.
    Collect,
    /// Removes earlier versions.
    Prune,
    /// Checks the store with fsck.
    Look,
    /// Generates two tokens.
    Generate,
}

/// Every kind with its relative frequency.
const WEIGHTS: [(Kind, u32); 11] = [
    (Kind::Create, 6),
    (Kind::Copy, 4),
    (Kind::Remove, 4),
    (Kind::Push, 2),
    (Kind::Pull, 3),
    (Kind::Upload, 3),
    (Kind::Put, 3),
    (Kind::Collect, 2),
    (Kind::Prune, 1),
    (Kind::Look, 1),
    (Kind::Generate, 3),
];

impl Kind {
    /// Draws a random kind.
    pub(super) fn draw(random: &mut StdRng) -> Self {
        WEIGHTS.choose_weighted(random, |(_, weight)| *weight).expect("invariant: there are weights").0
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Copy => "copy",
            Self::Remove => "remove",
            Self::Push => "push",
            Self::Pull => "pull",
            Self::Upload => "upload",
            Self::Put => "put",
            Self::Collect => "gc",
            Self::Prune => "prune",
            Self::Look => "fsck",
            Self::Generate => "generate",
        }
    }

    /// Whether a healthy daemon may refuse the operation with that status because of concurrent
    /// operations.
    pub(super) fn may_be_refused(self, status: u16) -> bool {
        match self {
            Self::Create | Self::Collect | Self::Prune | Self::Look => false,
            Self::Copy | Self::Remove => status == 404,
            // A blob may be removed between the two requests.
            Self::Put => [400, 404].contains(&status),
            // The model here or at the peer may be removed at any moment, and one end of a transfer
            // may be killed.
            Self::Push | Self::Pull | Self::Upload | Self::Generate => true,
        }
    }
}
