//! What can be done on a slot.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, anyhow};

use protocol::FailureKind;

use crate::backend::{Best, Selection};
use crate::cache::Cache;
use crate::failure;
use crate::model::Model;

/// Something that is done on a slot: generating, evaluating, embedding.
///
/// `begin` is called once, then `feed` and `take` in turns. Until `begin` what is fed is the prompt as it came, by which a
/// slot is chosen. It always feeds at least one token; those of the vocabulary only.
pub(crate) trait Work: Send {
    /// Whether anybody waits for what it gives.
    fn listener(&self) -> Listener;

    /// Whether it has nothing to do with what is there of any sequence, nor leaves anything of use.
    fn needs_no_past(&self) -> bool {
        false
    }

    /// Whose work it is: a slot's sequence is of use only to the same.
    #[expect(clippy::unnecessary_literal_bound, reason = "others give a text of their own")]
    fn domain(&self) -> &str {
        ""
    }

    /// Takes the slot: rolls its cache back to what is of use.
    ///
    /// # Errors
    /// Where the prompt does not fit.
    fn begin(&mut self, model: &Model, cache: &mut dyn Cache) -> Result<(), Fault>;

    /// What it needs of the logits after the last token of the feed, where that is not all of them. `take` may find that it does
    /// need all.
    fn selection(&mut self) -> Option<Selection> {
        None
    }

    /// What is to be computed next. As many of the tokens are as the step has room for.
    fn feed(&self) -> Feed<'_>;

    /// Goes on with what was computed of the first tokens of the feed, which are in the cache now.
    ///
    /// # Errors
    /// Ends the work.
    fn take(&mut self, computed: Computed<'_>, cache: &mut dyn Cache) -> Result<Progress, Fault>;

    /// Tells whoever waits what went wrong.
    fn fail(self: Box<Self>, fault: Fault);
}

/// Whoever waits for results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    /// Nobody any more.
    Gone,
    /// Somebody who has not yet taken what there is.
    Behind,
    /// Somebody who takes more.
    Ready,
}

/// Tokens to be computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feed<'a> {
    /// The tokens.
    pub(crate) tokens: &'a [u32],
    /// What is wanted of them.
    pub(crate) wanted: Wanted,
    /// The first of them that is of the second text, where there are two.
    pub(crate) second: Option<usize>,
    /// Whether they are given, and not generated one after the other.
    pub(crate) is_prompt: bool,
}

/// What is wanted of computed tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The logits after the last.
    Last,
    /// Something of each.
    Each,
}

/// What was computed.
pub(crate) struct Computed<'a> {
    /// The model that computed it.
    pub(crate) model: &'a Model,
    /// How many tokens of the feed.
    pub(crate) tokens: usize,
    /// What came of it.
    pub(crate) output: Output<'a>,
}

/// What came of computed tokens.
pub(crate) enum Output<'a> {
    /// Nothing yet: the last token is still to come.
    Nothing,
    /// The logits after the last token, `[vocabulary]`.
    Last(&'a mut [f32]),
    /// What the work selected of these logits, and the token, for all of them.
    Best(&'a Best, &'a dyn Rows),
    /// All tokens.
    Each(&'a dyn Rows),
}

/// Takes a row of numbers.
pub(crate) type Take<'a> = dyn FnMut(&[f32]) -> Result<()> + 'a;

/// Tokens of a pass.
pub(crate) trait Rows {
    /// Gives `each` the logits after every token, `[vocabulary]`, in order.
    fn logits(&self, each: &mut Take<'_>) -> Result<()>;
    /// Gives `each` the hidden states that the output projection would get, `[hidden]`, in order.
    fn hidden(&self, each: &mut Take<'_>) -> Result<()>;
}

/// Whether work goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It does.
    More,
    /// All has been told.
    Finished,
}

/// Why there is no result.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The request asks for what is not given; says why.
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
    /// The same for another work.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Request(reason) => Self::Request(reason.clone()),
            Self::Failed(error) => Self::Failed(failure::again(error)),
        }
    }

    /// A prompt that is to be whole and is longer than the context, both in tokens.
    pub(crate) fn too_long(tokens: usize, context: usize) -> Self {
        let advice = "shorten it, or ask for a longer context (`num_ctx`, LODE_CONTEXT_LENGTH)";
        Self::Request(protocol::too_long(tokens as u64, context as u64, advice))
    }

    /// What is at fault.
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

/// Refuses tokens that the model does not have.
pub(crate) fn check_vocabulary(tokens: &[u32], vocabulary: usize) -> Result<(), Fault> {
    match tokens.iter().find(|token| **token as usize >= vocabulary) {
        Some(token) => Err(Fault::Request(format!("token {token} is not in the vocabulary of {vocabulary}"))),
        None => Ok(()),
    }
}

/// A panic becomes a fault.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    let caught = catch_unwind(AssertUnwindSafe(work));
    caught.unwrap_or_else(|_| Err(Fault::Failed(anyhow!("the computation panicked"))))
}
