//! Constraints on an answer: a format, or a tool call.

use prompt::{Constraint, OutputReader, Tools};
use protocol::{GenerateRequest, ToolChoice};

use crate::engine::Fault;
use crate::text::text_model::TextModel;

/// The constraint on the next tokens. Thinking is never constrained. Output that is neither
/// thinking nor answer, such as a header, is constrained only if a tool call is required, because a
/// call has its own header.
pub(super) struct AnswerConstraint {
    constraint: Option<Constraint>,
    is_call: bool,
}

impl AnswerConstraint {
    /// Creates the constraint that the request specifies.
    ///
    /// # Errors
    /// Fails if a schema cannot be enforced, or a requested tool does not exist.
    pub(super) fn new(
        text: &TextModel,
        request: &GenerateRequest,
        tools: &Tools,
        reader: &OutputReader,
    ) -> Result<Self, Fault> {
        let must_call = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named { .. });
        if !must_call && request.format.is_none() {
            return Ok(Self { constraint: None, is_call: false });
        }
        let blame = |error: &prompt::Error| Fault::Request(error.to_string());
        let factory = text.constraints().map_err(blame)?;
        let made = match &request.format {
            _ if must_call => factory.call(&text.tokenizer, &text.dialect, tools, &request.tool_choice),
            Some(format) => factory.constraint(format),
            None => return Ok(Self { constraint: None, is_call: false }),
        };
        let mut constraint = made.map_err(|error| blame(&error))?;
        if request.thinking && !reader.is_thinking() {
            let open = text.dialect.thinking().and_then(|tags| text.tokenizer.id(tags.open.trim_end()));
            if let Some(open) = open {
                constraint.or_first(open);
            }
        }
        Ok(Self { constraint: Some(constraint), is_call: must_call })
    }

    /// Returns the constraint that applies at this point of the answer.
    fn now(&mut self, reader: &OutputReader) -> Option<&mut Constraint> {
        let holds = if self.is_call { !reader.is_thinking() } else { reader.is_answering() };
        self.constraint.as_mut().filter(|_| holds)
    }

    /// Masks the logits of tokens that may not come next.
    pub(super) fn mask(&mut self, reader: &OutputReader, logits: &mut [f32]) -> Result<(), Fault> {
        match self.now(reader) {
            Some(constraint) => Ok(constraint.mask(logits)?),
            None => Ok(()),
        }
    }

    /// Returns a bit mask of the tokens that may come next; `None` allows all.
    pub(super) fn allowed(&mut self, reader: &OutputReader) -> Result<Option<Vec<u32>>, Fault> {
        self.now(reader).map(|constraint| Ok(constraint.allowed()?)).transpose()
    }

    /// Advances the constraint by a chosen token; returns whether no token may follow it.
    pub(super) fn accept(&mut self, reader: &OutputReader, token: u32) -> Result<bool, Fault> {
        let Some(constraint) = self.now(reader) else { return Ok(false) };
        constraint.accept(token)?;
        Ok(constraint.is_finished())
    }
}
