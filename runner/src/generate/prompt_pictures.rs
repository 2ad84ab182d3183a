//! The pictures of a generation's prompt.

use std::borrow::Cow;
use std::time::Instant;

use protocol::{GenerateRequest, Prompt, TextPart, Usage, text_parts};

use super::nanos;
use crate::decoder::Decoder;
use crate::engine::Fault;
use crate::picture_reader::PromptPicture;
use crate::picture_rows::{PictureGrid, PictureRows, find, is_row};
use crate::text::model::Model;
use crate::text::picture_text::PictureText;

/// The pictures of a prompt, and the rows that are computed so far.
#[derive(Debug, Default)]
pub(crate) struct PromptPictures {
    pictures: Vec<PromptPicture>,
    /// The files, as base64.
    files: Vec<String>,
    rows: Vec<PictureRows>,
    /// Token that stands for a row where only tokens are understood.
    token: u32,
    /// Indexes of the pictures from the last message of the user on. They must not be dropped from
    /// a long prompt.
    needed: Vec<usize>,
}

impl PromptPictures {
    /// Reads the pictures of a request, whose files are taken out of it, and sets the domain in
    /// which its prefix may be shared.
    ///
    /// # Errors
    /// The model sees no pictures, or one of them cannot be read.
    pub(super) fn read(model: &Model, request: &mut GenerateRequest) -> Result<Self, Fault> {
        if request.pictures.is_empty() {
            return Ok(Self::default());
        }
        let reader = model
            .pictures
            .as_ref()
            .map_err(|reason| Fault::Request(format!("this model does not support images: {reason}")))?;
        let files = std::mem::take(&mut request.pictures);
        let (pictures, domain) =
            reader.read(&files, &request.domain).map_err(|error| Fault::Request(format!("{error:#}")))?;
        request.domain = domain;
        let needed = needed(&request.prompt, files.len());
        Ok(Self { pictures, files, rows: Vec::new(), token: reader.text.token(), needed })
    }

    /// Returns the text that stands for pictures; `None` if there are no pictures.
    pub(super) fn text<'m>(&self, model: &'m Model) -> Option<&'m PictureText> {
        let reader = model.pictures.as_ref().ok().filter(|_| !self.pictures.is_empty());
        reader.map(|reader| &reader.text)
    }

    pub(super) fn grids(&self) -> Vec<PictureGrid> {
        self.pictures.iter().map(|picture| picture.grid).collect()
    }

    /// Returns the computed pictures.
    pub(super) fn rows(&self) -> &[PictureRows] {
        &self.rows
    }

    /// Returns the token that stands for an id: its own, if it is not a row of these pictures.
    pub(super) fn token_of(&self, id: u32) -> u32 {
        let is_own = is_row(id) && self.pictures.iter().any(|picture| picture.grid.index(id).is_some());
        if is_own { self.token } else { id }
    }

    /// Returns the tokens that stand for ids.
    pub(super) fn tokens_of<'a>(&self, ids: &'a [u32]) -> Cow<'a, [u32]> {
        if self.pictures.is_empty() {
            return Cow::Borrowed(ids);
        }
        Cow::Owned(ids.iter().map(|id| self.token_of(*id)).collect())
    }

    /// Refuses a prompt that lost a picture of its last message when it was shortened to `ids`.
    /// `tokens` is its length, `context` the length that fits.
    pub(super) fn check_kept(&self, ids: &[u32], [tokens, context]: [usize; 2]) -> Result<(), Fault> {
        let is_there = |index: &usize| {
            let rows = self.pictures[*index].grid.ids();
            ids.contains(&rows.start) && ids.contains(&(rows.end - 1))
        };
        if self.needed.iter().all(is_there) {
            return Ok(());
        }
        Err(Fault::too_long(tokens, context))
    }

    /// Returns how many tokens at the beginning can be computed: those before the first row that is
    /// not computed yet.
    pub(super) fn ready(&self, ids: &[u32]) -> usize {
        if self.pictures.is_empty() {
            return ids.len();
        }
        let is_missing = |id: &u32| is_row(*id) && find(&self.rows, *id).is_none();
        ids.iter().position(is_missing).unwrap_or(ids.len())
    }

    /// Drops the rows of pictures that are not among the ids to compute. A shift of the context
    /// computes them again.
    pub(super) fn release(&mut self, ids: &[u32]) {
        self.rows.retain(|rows| ids.iter().any(|id| rows.grid.index(*id).is_some()));
    }

    /// Computes the rows of the picture that `next` belongs to, if they are missing.
    ///
    /// # Errors
    /// Fails if there is no memory.
    pub(super) fn prepare(
        &mut self,
        model: &Model,
        decoder: &Decoder,
        next: Option<u32>,
        usage: &mut Usage,
    ) -> Result<(), Fault> {
        let Some(id) = next.filter(|id| is_row(*id) && find(&self.rows, *id).is_none()) else { return Ok(()) };
        let (Some(index), Ok(reader)) =
            (self.pictures.iter().position(|picture| picture.grid.index(id).is_some()), &model.pictures)
        else {
            return Err(anyhow::anyhow!("invariant: rows are those of the prompt's pictures").into());
        };
        let begin = Instant::now();
        let (rows, is_new) = reader.rows(&mut self.pictures[index], &self.files[index], decoder)?;
        if is_new {
            usage.encoded_pictures += 1;
            usage.picture_nanos += nanos(begin);
        }
        // The same picture may be several times in a prompt, and has the same ids then.
        self.rows.push(rows);
        Ok(())
    }
}

/// Returns the indexes of the pictures from the last message of the user on. If the prompt is no
/// conversation, these are all pictures.
fn needed(prompt: &Prompt, count: usize) -> Vec<usize> {
    let Prompt::Chat(chat) = prompt else { return (0..count).collect() };
    let last = chat.messages.iter().rposition(|message| message.role == "user").unwrap_or(0);
    let parts = chat.messages[last..].iter().flat_map(|message| text_parts(&message.content, count));
    let index = |part| match part {
        TextPart::Picture(index) => Some(index),
        TextPart::Text(_) => None,
    };
    parts.filter_map(index).collect()
}

#[cfg(test)]
mod tests {
    use protocol::{Message, RenderRequest, picture_mark};

    use super::*;

    #[test]
    fn pictures_of_the_last_question_are_needed() {
        let message = |role: &str, content: String| Message { role: role.to_owned(), content, ..Message::default() };
        let messages = vec![
            message("user", picture_mark(0)),
            message("assistant", "x".to_owned()),
            message("user", format!("{}?", picture_mark(1))),
            message("assistant", String::new()),
            message("tool", picture_mark(2)),
        ];
        let prompt = Prompt::Chat(Box::new(RenderRequest { messages, ..RenderRequest::default() }));
        assert_eq!(needed(&prompt, 3), [1, 2]);
        assert_eq!(needed(&Prompt::Text { text: "x".to_owned() }, 2), [0, 1]);
    }
}
