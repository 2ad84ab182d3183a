//! A vocabulary as GGUF files have it: what a tokenizer is built from where there is no `tokenizer.json`.

/// A vocabulary with all that is needed to tokenize by it.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    /// How text is cut.
    pub kind: VocabularyKind,
    /// The pieces; a token's id is its position.
    pub pieces: Vec<Piece>,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Stands for what cannot be tokenized.
    pub unknown: Option<u32>,
    /// Put [`bos`](Self::bos) before every text.
    pub add_bos: bool,
    /// Put [`eos`](Self::eos) after every text.
    pub add_eos: bool,
    /// Put a space before every text.
    pub add_space_prefix: bool,
}

/// How text is cut into pieces.
#[derive(Clone, Debug)]
pub enum VocabularyKind {
    /// Byte-level BPE; `tokenizer.ggml.model` is `gpt2`.
    ByteLevel {
        /// `tokenizer.ggml.pre`: how text is split before merging.
        pre_tokenizer: String,
        /// Pairs separated by a space, best first.
        merges: Vec<String>,
    },
    /// `SentencePiece` style BPE by scores with byte fallback; `tokenizer.ggml.model` is `llama`.
    SentencePiece,
}

/// An entry of a vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The text as the file has it.
    pub text: String,
    /// Larger is merged earlier; only for [`VocabularyKind::SentencePiece`].
    pub score: f32,
    /// What the piece is for.
    pub kind: PieceKind,
}

/// What a piece is for; `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// Text.
    Normal,
    /// What cannot be tokenized.
    Unknown,
    /// Not text: begins, ends or separates.
    Control,
    /// Found in text before anything else is.
    UserDefined,
    /// Not used.
    Unused,
    /// `<0xXX>`: one byte.
    Byte,
}

impl PieceKind {
    /// The kind as GGUF numbers it; text where the number is not known.
    pub fn from_id(id: u64) -> Self {
        match id {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}
