//! The chat template of a model, and how it renders conversations.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use prompt::ChatTemplate;
use protocol::{Message, RenderRequest};
use serde_json::{Map, Value};
use vocabulary::abilities;
use vocabulary::chat_templates::{self, NamedTemplate};

use crate::text::picture_text::{PictureText, check_marks};
use crate::text::renderer::Renderer;

/// The inputs for choosing a model's template.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TemplateChoice<'a> {
    /// The template that the model's creator specified.
    pub(crate) given: Option<&'a str>,
    pub(crate) renderer: &'a Arc<Renderer>,
}

/// Converts a model's conversations to text.
#[derive(Debug)]
pub(crate) struct Rendering {
    template: Option<ChatTemplate>,
    renderer: Arc<Renderer>,
}

impl TemplateChoice<'_> {
    /// Creates the rendering from the template of the model's creator if there is one, else from
    /// the source's templates.
    pub(crate) fn among(self, own: Vec<NamedTemplate>, variables: Map<String, Value>) -> Result<Rendering> {
        let sources = match self.given {
            Some(text) => chat_templates::single(text.to_owned()),
            None => self.readable(own),
        };
        let renderer = self.renderer.clone();
        if sources.is_empty() {
            return Ok(Rendering { template: None, renderer });
        }
        ensure!(sources.iter().all(|(_, text)| text.len() < 1 << 20), "the chat template is longer than 1 MiB");
        let template = ChatTemplate::from_named(sources, variables);
        renderer.check(&template)?;
        Ok(Rendering { template: Some(template), renderer })
    }

    /// Removes templates that cannot be read, except for the one that conversations need.
    fn readable(self, templates: Vec<NamedTemplate>) -> Vec<NamedTemplate> {
        if templates.len() == 1 {
            return templates;
        }
        let reads = |(name, text): &NamedTemplate| {
            let read = self.renderer.check(&ChatTemplate::new(text, Map::new()));
            if let Err(error) = &read {
                tracing::warn!(template = name, "a chat template cannot be read: {error}");
            }
            name == chat_templates::DEFAULT || read.is_ok()
        };
        templates.into_iter().filter(reads).collect()
    }
}

impl Rendering {
    /// Returns the texts of all templates, one after the other.
    pub(crate) fn text(&self) -> String {
        self.template.as_ref().map(ChatTemplate::text).unwrap_or_default()
    }

    /// Whether a template renders this request: the model's, or one in the request.
    pub(crate) fn has_template(&self, request: &RenderRequest) -> bool {
        self.template.is_some() || request.template.is_some()
    }

    /// Renders a prompt for the text between `prefix` and `suffix`, if the model's template
    /// supports that.
    ///
    /// # Errors
    /// Fails if the template reports an error, or exceeds the limits of memory or time.
    pub(crate) fn insert(&self, prefix: &str, suffix: &str) -> Option<Result<String>> {
        let template = self.template.as_ref().filter(|template| abilities::offers_insert(&template.text()))?;
        let request = RenderRequest {
            messages: vec![Message { role: "user".to_owned(), content: prefix.to_owned(), ..Message::default() }],
            suffix: Some(suffix.to_owned()),
            ..RenderRequest::default()
        };
        Some(self.renderer.render(template, &request).map_err(Into::into))
    }

    /// Renders a conversation with pictures. A template that knows pictures writes the model's mark
    /// for each; for others, the marks of the request are replaced by the text that the model's
    /// authors put around pictures.
    ///
    /// # Errors
    /// See [`render`](Self::render).
    pub(crate) fn render_with_pictures(
        &self,
        request: &RenderRequest,
        count: usize,
        text: &PictureText,
    ) -> Result<String> {
        let typed = RenderRequest { typed_pictures: count, ..request.clone() };
        if self.has_template(request)
            && let Ok(rendered) = self.render(&typed)
            && text.marks(&rendered, count)
        {
            return Ok(rendered);
        }
        let rendered = self.render(request)?;
        check_marks(std::iter::once(rendered.as_str()), count)
            .context("the chat template does not write each picture once, in order")?;
        Ok(text.framed(&rendered, count))
    }

    /// Renders a conversation. Without a template, the contents of the messages are joined, a line
    /// each.
    ///
    /// # Errors
    /// Fails if the template reports an error, or exceeds the limits of memory or time.
    pub(crate) fn render(&self, request: &RenderRequest) -> Result<String> {
        if let Some(template) = &self.template {
            return Ok(self.renderer.render(template, request)?);
        }
        if let Some(own) = &request.template {
            return Ok(self.renderer.render(&ChatTemplate::new(own, Map::new()), request)?);
        }
        let contents: Vec<&str> = request.messages.iter().map(|message| message.content.as_str()).collect();
        Ok(contents.join("\n"))
    }
}
