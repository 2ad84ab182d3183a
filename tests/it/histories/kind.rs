//! What clients do, how often, and what may be refused.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A model from files.
    Create,
    /// A second name for a model.
    Copy,
    /// A name is taken away.
    Remove,
    /// From the daemon that is killed to its peer.
    Push,
    /// From the peer, under the peer's name.
    Pull,
    /// From the peer to the daemon that is killed: the peer sends blobs and a manifest.
    Upload,
    /// A manifest is read by the registry's protocol, and put under another tag of its repository.
    Put,
    /// A collection.
    Collect,
    /// Earlier versions are removed.
    Prune,
    /// The store is looked through.
    Look,
    /// Two tokens.
    Generate,
}

/// Every kind, with how often it comes.
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
    /// Any of them.
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

    /// Whether a daemon that is well may refuse it with that status, because of what other clients do meanwhile.
    pub(super) fn may_be_refused(self, status: u16) -> bool {
        match self {
            Self::Create | Self::Collect | Self::Prune | Self::Look => false,
            Self::Copy | Self::Remove => status == 404,
            // A blob may go between the two requests.
            Self::Put => [400, 404].contains(&status),
            // The model or the peer's may go at any moment of it, and one end of a transfer may be killed.
            Self::Push | Self::Pull | Self::Upload | Self::Generate => true,
        }
    }
}
