//! What a model can do.

/// Something that a model can do; the names are Ollama's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Going on with a text or a conversation.
    Completion,
    /// Calling tools.
    Tools,
    /// Filling a gap in a text.
    Insert,
    /// Turning texts into vectors; models that were made for it do nothing else.
    Embedding,
    /// Thinking before the answer, and telling one from the other.
    Thinking,
    /// Scoring how well texts answer a query; not Ollama's.
    Rerank,
    /// Telling messages of a conversation apart: it has a chat template, or a renderer. Ollama has no name for it.
    Chat,
}

impl Capability {
    pub(crate) const ALL: [Self; 7] =
        [Self::Completion, Self::Tools, Self::Insert, Self::Embedding, Self::Thinking, Self::Rerank, Self::Chat];

    /// As Ollama's API has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completion => "completion",
            Self::Tools => "tools",
            Self::Insert => "insert",
            Self::Embedding => "embedding",
            Self::Thinking => "thinking",
            Self::Rerank => "rerank",
            Self::Chat => "chat",
        }
    }
}

/// Everything that a model can do, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub(crate) Vec<Capability>);

impl Capabilities {
    /// Whether this is among them.
    pub fn has(&self, capability: Capability) -> bool {
        self.0.contains(&capability)
    }

    /// Whether it goes on with texts and cannot tell the messages of a conversation apart, as models before instruction tuning.
    pub fn only_completes(&self) -> bool {
        self.has(Capability::Completion) && !self.has(Capability::Chat)
    }

    /// The names of those that clients are told.
    pub fn names(&self) -> Vec<String> {
        let told = self.0.iter().filter(|capability| **capability != Capability::Chat);
        told.map(|capability| capability.name().to_owned()).collect()
    }

    /// The names of all, for the note that is kept.
    pub(crate) fn noted(&self) -> Vec<String> {
        self.0.iter().map(|capability| capability.name().to_owned()).collect()
    }

    pub(crate) fn parse(names: &[String]) -> Self {
        let known = |name: &String| Capability::ALL.into_iter().find(|capability| capability.name() == name);
        Self(names.iter().filter_map(known).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let all = Capabilities(Capability::ALL.to_vec());
        assert_eq!(Capabilities::parse(&all.noted()), all);
        assert_eq!(Capabilities::parse(&["dancing".to_owned()]), Capabilities::default());
    }
}
