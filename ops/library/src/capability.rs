//! The capabilities of a model.

/// A capability of a model; the names are Ollama's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Continues a text or a conversation.
    Completion,
    /// Calls tools.
    Tools,
    /// Fills in the middle between two texts.
    Insert,
    /// Computes embeddings. Models made for embeddings have no other capability.
    Embedding,
    /// Thinks before the answer, and marks the thinking.
    Thinking,
    /// Scores how well texts answer a query. Not a capability of Ollama.
    Rerank,
    /// Sees pictures.
    Vision,
    /// Distinguishes the messages of a conversation: it has a chat template or a renderer. Ollama
    /// has no name for it.
    Chat,
}

impl Capability {
    pub(crate) const ALL: [Self; 8] = [
        Self::Completion,
        Self::Tools,
        Self::Insert,
        Self::Embedding,
        Self::Thinking,
        Self::Rerank,
        Self::Vision,
        Self::Chat,
    ];

    /// Returns the name in Ollama's API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completion => "completion",
            Self::Tools => "tools",
            Self::Insert => "insert",
            Self::Embedding => "embedding",
            Self::Thinking => "thinking",
            Self::Rerank => "rerank",
            Self::Vision => "vision",
            Self::Chat => "chat",
        }
    }
}

/// The capabilities of a model, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub(crate) Vec<Capability>);

impl Capabilities {
    /// Whether the capability is in the list.
    pub fn has(&self, capability: Capability) -> bool {
        self.0.contains(&capability)
    }

    /// Whether the model continues texts but cannot distinguish the messages of a conversation, as
    /// base models without instruction tuning.
    pub fn only_completes(&self) -> bool {
        self.has(Capability::Completion) && !self.has(Capability::Chat)
    }

    /// Returns the names of the capabilities that the API reports.
    pub fn names(&self) -> Vec<String> {
        let told = self.0.iter().filter(|capability| **capability != Capability::Chat);
        told.map(|capability| capability.name().to_owned()).collect()
    }

    /// Returns the names of all capabilities, for the cached note.
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
