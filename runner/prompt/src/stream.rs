//! Text from tokens as they come: whole characters only.

use crate::{Error, Tokenizer};

/// How many tokens are decoded together at most while waiting for a character to be completed.
const MAX_PENDING: usize = 16;

/// Turns tokens into text piece by piece. The pieces add up to the text of all tokens.
#[derive(Debug)]
pub struct TextStream {
    /// Tokens whose text is still needed: a decoder may treat the first token of a text unlike the others.
    ids: Vec<u32>,
    /// How many of them have been told.
    told: usize,
}

impl TextStream {
    /// A stream that goes on after `context`, the last tokens of what is there already.
    pub fn new(context: &[u32]) -> Self {
        let ids = context[context.len().saturating_sub(MAX_PENDING)..].to_vec();
        Self { told: ids.len(), ids }
    }

    /// The text that is complete with this token; empty while a character is being put together.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, Error> {
        self.ids.push(id);
        let text = self.pending(tokenizer)?;
        let incomplete = text.ends_with('\u{fffd}') && self.ids.len() - self.told < MAX_PENDING;
        if incomplete { Ok(String::new()) } else { Ok(self.tell(text)) }
    }

    /// What is left: bytes that never became a character are told as U+FFFD.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, Error> {
        let text = self.pending(tokenizer)?;
        Ok(self.tell(text))
    }

    fn pending(&self, tokenizer: &Tokenizer) -> Result<String, Error> {
        let before = tokenizer.decode(&self.ids[..self.told], false)?;
        let all = tokenizer.decode(&self.ids, false)?;
        Ok(all.get(before.len()..).unwrap_or_default().to_owned())
    }

    fn tell(&mut self, text: String) -> String {
        // One token is kept as context: the text of a token depends on whether it is the first.
        let keep = self.ids.len().saturating_sub(1).max(self.told.min(self.ids.len()));
        if !text.is_empty() {
            self.ids.drain(..keep);
        }
        self.told = self.ids.len();
        text
    }
}
