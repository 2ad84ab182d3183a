//! What an answer is held to: a format, or a call of a tool.

use prompt::{Constraint, OutputReader, Tools};
use protocol::{GenerateRequest, ToolChoice};

use crate::engine::Fault;
use crate::model::TextModel;

/// Which tokens may come next. Thinking is free; what else is no answer, such as a header, is free of a format only: a call
/// that must be made has a header of its own.
pub(super) struct Held {
    constraint: Option<Constraint>,
    is_call: bool,
}

impl Held {
    /// What the request asks for.
    ///
    /// # Errors
    /// A schema that cannot be held to, or a tool that is not there.
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

    /// What holds at this point of the answer.
    fn now(&mut self, reader: &OutputReader) -> Option<&mut Constraint> {
        let holds = if self.is_call { !reader.is_thinking() } else { reader.is_answering() };
        self.constraint.as_mut().filter(|_| holds)
    }

    /// Takes out of the choice what may not come next.
    pub(super) fn mask(&mut self, reader: &OutputReader, logits: &mut [f32]) -> Result<(), Fault> {
        match self.now(reader) {
            Some(constraint) => Ok(constraint.mask(logits)?),
            None => Ok(()),
        }
    }

    /// Bits of the tokens that may come next; `None` where all may.
    pub(super) fn allowed(&mut self, reader: &OutputReader) -> Result<Option<Vec<u32>>, Fault> {
        self.now(reader).map(|constraint| Ok(constraint.allowed()?)).transpose()
    }

    /// Goes on with a token that was chosen; says whether nothing may follow it.
    pub(super) fn accept(&mut self, reader: &OutputReader, token: u32) -> Result<bool, Fault> {
        let Some(constraint) = self.now(reader) else { return Ok(false) };
        constraint.accept(token)?;
        Ok(constraint.is_finished())
    }
}
