//! The interface of work that runs on a slot, and the results that it gets.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, anyhow};

use protocol::FailureKind;

use super::pass_rows::PassRows;
use crate::backend::{Best, Selection};
use crate::cache::SlotCache;
use crate::decoder::Decoder;
use crate::failure;
use crate::picture_rows::PictureRows;
use crate::text::model::Model;

/// Work on a slot: generation, evaluation, embedding or ranking.
///
/// `begin` is called once, then `feed` and `take` alternate. Before `begin`, `feed` returns the
/// unchanged prompt, by which a slot is chosen. It always returns at least one token, and only
/// tokens of the vocabulary.
pub(crate) trait Work: Send {
    /// Returns the state of the listener that waits for results.
    fn listener(&self) -> Listener;

    /// Whether the work neither uses a cached sequence nor leaves one that is useful later.
    fn needs_no_past(&self) -> bool {
        false
    }

    /// Returns the domain of the work: the sequence of a slot is reused only in the same domain.
    #[expect(clippy::unnecessary_literal_bound, reason = "other implementations return a borrowed text")]
    fn domain(&self) -> &str {
        ""
    }

    /// Takes over the slot: rolls its cache back to the useful prefix.
    ///
    /// # Errors
    /// Fails if the prompt does not fit.
    fn begin(&mut self, model: &Model, cache: &mut SlotCache) -> Result<(), Fault>;

    /// Returns the selection that the work needs of the logits after the last token of the feed;
    /// `None` if it needs all of them. `take` may find that it needs all logits after all.
    fn selection(&mut self) -> Option<Selection> {
        None
    }

    /// Prepares the next tokens of the feed: computes the rows of a picture at their beginning, if
    /// there is one. Called before a step that is to compute more than one of the tokens.
    ///
    /// # Errors
    /// An error ends the work.
    fn prepare(&mut self, _model: &Model, _decoder: &Decoder) -> Result<(), Fault> {
        Ok(())
    }

    /// Returns the tokens to compute next. A step computes as many of them as it has room for.
    fn feed(&self) -> Feed<'_>;

    /// Processes the results of the first tokens of the feed, which are now in the cache.
    ///
    /// # Errors
    /// An error ends the work.
    fn take(&mut self, computed: Computed<'_>, cache: &mut SlotCache) -> Result<WorkProgress, Fault>;

    /// Reports a failure to the listener.
    fn fail(self: Box<Self>, fault: Fault);
}

/// State of the listener that waits for results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    /// There is no listener any more.
    Gone,
    /// The listener has not yet taken the available results.
    Behind,
    /// The listener accepts more results.
    Ready,
}

/// Tokens to be computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feed<'a> {
    /// The tokens.
    pub(crate) tokens: &'a [u32],
    /// Output that is needed for them.
    pub(crate) wanted: OutputKind,
    /// Index of the first token of the second text; `None` if there is only one text.
    pub(crate) second: Option<usize>,
    /// Whether the tokens are given, as those of a prompt, and not generated one by one.
    pub(crate) is_prompt: bool,
    /// Number of tokens at the beginning that can be computed: up to the first picture that is not
    /// [prepared](Work::prepare) yet.
    pub(crate) ready: usize,
    /// The prepared pictures with rows among the tokens.
    pub(crate) pictures: &'a [PictureRows],
}

impl<'a> Feed<'a> {
    /// Returns a feed of tokens without pictures.
    pub(crate) fn of_tokens(tokens: &'a [u32], wanted: OutputKind, is_prompt: bool) -> Self {
        Self { tokens, wanted, second: None, is_prompt, ready: tokens.len(), pictures: &[] }
    }

    /// Whether there is more than one token to compute, or a picture to prepare.
    pub(super) fn needs_a_run(&self) -> bool {
        self.tokens.len() > 1 || self.ready == 0
    }
}

/// Output that is needed for computed tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputKind {
    /// The logits after the last.
    Last,
    /// Something for each token.
    Each,
}

/// The result of computed tokens.
pub(crate) struct Computed<'a> {
    /// The model that computed it.
    pub(crate) model: &'a Model,
    /// Number of tokens of the feed that were computed.
    pub(crate) tokens: usize,
    /// Their output.
    pub(crate) output: Output<'a>,
}

/// Output for computed tokens.
pub(crate) enum Output<'a> {
    /// None yet: the last token of the feed was not computed.
    Nothing,
    /// The logits after the last token, `[vocabulary]`.
    Last(&'a mut [f32]),
    /// The candidates that the work selected, and the rows from which it can read all logits of the
    /// token.
    Best(&'a Best, &'a PassRows<'a>),
    /// All tokens.
    Each(&'a PassRows<'a>),
}

/// Whether work goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkProgress {
    /// The work goes on.
    More,
    /// The work is complete, and its results are sent.
    Finished,
}

/// The reason why there is no result.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The request cannot be served; the text gives the reason.
    Request(String),
    /// The computation failed.
    Failed(anyhow::Error),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(reason) => f.write_str(reason),
            Self::Failed(error) => write!(f, "{error:#}"),
        }
    }
}

impl Fault {
    /// Returns a copy of the fault for other work.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Request(reason) => Self::Request(reason.clone()),
            Self::Failed(error) => Self::Failed(failure::again(error)),
        }
    }

    /// Returns the fault of a prompt that must not be truncated and is longer than the context,
    /// both in tokens.
    pub(crate) fn too_long(tokens: usize, context: usize) -> Self {
        let advice = "shorten it, or ask for a longer context (`num_ctx`, LODE_CONTEXT_LENGTH)";
        Self::Request(protocol::too_long(tokens as u64, context as u64, advice))
    }

    /// Returns the kind of the failure.
    pub(crate) fn kind(&self) -> FailureKind {
        match self {
            Self::Request(_) => FailureKind::BadRequest,
            Self::Failed(error) => failure::kind(error),
        }
    }
}

impl From<anyhow::Error> for Fault {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<prompt::Error> for Fault {
    fn from(error: prompt::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// Refuses tokens that are not in the vocabulary.
pub(crate) fn check_vocabulary(tokens: &[u32], vocabulary: usize) -> Result<(), Fault> {
    match tokens.iter().find(|token| **token as usize >= vocabulary) {
        Some(token) => Err(Fault::Request(format!("token {token} is not in the vocabulary of {vocabulary}"))),
        None => Ok(()),
    }
}

/// Runs `work`, and converts a panic to a fault.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    let caught = catch_unwind(AssertUnwindSafe(work));
    caught.unwrap_or_else(|_| Err(Fault::Failed(anyhow!("the computation panicked"))))
}
