//! The request that a job carries out, as its record has it.

use api::lode::JobKind;
use api::ollama::{CreateRequest, Options, Progress, PullRequest, PushRequest};
use serde::{Deserialize, Serialize};

/// The request that a job carries out. Options that concern one client only, such as `stream`, have
/// their defaults, so equal requests share a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "request", rename_all = "lowercase")]
pub(crate) enum JobWork {
    /// `model` is the complete name.
    Pull(PullRequest),
    /// `model` and `destination` are complete names.
    Push(PushRequest),
    /// `model` is the complete name.
    Create(Box<CreateRequest>),
}

impl JobWork {
    pub(super) fn kind(&self) -> JobKind {
        match self {
            Self::Pull(_) => JobKind::Pull,
            Self::Push(_) => JobKind::Push,
            Self::Create(_) => JobKind::Create,
        }
    }

    pub(super) fn model(&self) -> &str {
        match self {
            Self::Pull(request) => &request.model,
            Self::Push(request) => &request.model,
            Self::Create(request) => &request.model,
        }
    }

    pub(super) fn destination(&self) -> Option<&str> {
        match self {
            Self::Push(request) => Some(request.destination.as_str()).filter(|to| *to != request.model),
            Self::Pull(_) | Self::Create(_) => None,
        }
    }

    /// The local name that the model gets; `None` for a push.
    pub(super) fn local_name(&self) -> Option<&str> {
        match self {
            Self::Pull(_) | Self::Create(_) => Some(self.model()),
            Self::Push(_) => None,
        }
    }

    /// The last line of a job that has succeeded.
    pub(super) fn success(&self) -> Progress {
        let unknown = match self {
            // The request was accepted, so its parameters can be read.
            Self::Create(request) => Options::read(&request.parameters).map(|(_, unknown)| unknown).unwrap_or_default(),
            Self::Pull(_) | Self::Push(_) => Vec::new(),
        };
        Progress::success(&unknown)
    }

    /// Why the work cannot be done after a restart of the daemon; `None` if it can.
    pub(crate) fn lost_reason(&self) -> Option<&'static str> {
        match self {
            Self::Create(request) if request.handed.is_some() => {
                Some("the daemon was restarted, and the files of this create were passed by a command; create again")
            }
            _ => None,
        }
    }
}
