//! The text part of a loaded model: tokenizer, template, and the tokens that end a generation.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail, ensure};
use formats::Gguf;
use prompt::{ConstraintFactory, Dialect, Markers, Special, Tokenizer};
use protocol::{Prompt, RenderRequest};
use serde_json::{Map, Value};
use vocabulary::chat_templates;
use vocabulary::token_table::Settings;
use vocabulary::{TokenTable, Vocabulary, byte_ranks, special_tokens};

use crate::documents::Documents;
use crate::mapped::Blob;
use crate::picture_rows::PictureGrid;
use crate::text::picture_text::{PictureText, check_marks};
use crate::text::rendering::{Rendering, TemplateChoice};

/// The part of a model that handles text.
#[derive(Debug)]
pub(crate) struct TextModel {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) rendering: Rendering,
    /// Tokens that end a generation.
    pub(crate) ends: Vec<u32>,
    /// Id and text of the token that begins every text, if the chat template may have omitted it.
    bos: Option<(u32, String)>,
    /// The model's marks for thinking and tool calls.
    pub(crate) dialect: Dialect,
    /// The tokens of these marks.
    pub(crate) markers: Markers,
    /// Created for the first constrained answer, because this takes a while.
    constraints: OnceLock<Result<ConstraintFactory, prompt::Error>>,
}

/// A prompt that is ready to be computed.
#[derive(Debug)]
pub(crate) struct Prompted {
    /// Its tokens.
    pub(crate) tokens: Vec<u32>,
    /// The text of a conversation as the template rendered it, which may already begin the answer.
    /// Empty for other prompts.
    pub(crate) rendered: String,
}

impl TextModel {
    fn new(tokenizer: Tokenizer, rendering: Rendering, ends: Vec<u32>, bos: Option<(u32, String)>) -> Self {
        let dialect = Dialect::detect(&rendering.text(), &|token| tokenizer.id(token).is_some());
        let markers = Markers::new(&dialect, &tokenizer);
        Self { tokenizer, rendering, ends, bos, dialect, markers, constraints: OnceLock::new() }
    }

    /// Returns the factory of constraints on answers, and creates it on the first call.
    pub(crate) fn constraints(&self) -> Result<&ConstraintFactory, &prompt::Error> {
        self.constraints.get_or_init(|| ConstraintFactory::new(&self.tokenizer, &self.ends)).as_ref()
    }

    /// Loads tokenizer and template. The vocabulary comes from the token table if there is a valid
    /// one, else from its document.
    pub(crate) fn load(
        template: TemplateChoice<'_>,
        documents: Documents<'_>,
        table: Option<&Arc<Blob>>,
    ) -> Result<Self> {
        let load = |table: Option<TokenTable>| match (documents.find("tokenizer.json"), table) {
            (Some(_), Some(table)) => huggingface(documents, Tokenizer::from_table(table)?, template),
            (Some(raw), None) => huggingface(documents, Tokenizer::from_json(raw)?, template),
            (None, None) => match folder_tokenizer(documents)? {
                Some(tokenizer) => huggingface(documents, tokenizer, template),
                None => gguf(documents, None, template),
            },
            (None, table) => gguf(documents, table, template),
        };
        if let Some(table) = table {
            match TokenTable::open(table.clone()).map_err(Into::into).and_then(|table| load(Some(table))) {
                Ok(text) => return Ok(text),
                Err(error) => {
                    tracing::warn!("the token table is invalid, reading the vocabulary from its document: {error:#}");
                }
            }
        }
        load(None)
    }

    /// Converts a prompt with pictures to tokens and the ids of their rows.
    ///
    /// # Errors
    /// The marks of the pictures are not in the prompt in order, or the template or the tokenizer
    /// refuses the prompt.
    pub(crate) fn prompt_with(
        &self,
        prompt: &Prompt,
        pictures: &[PictureGrid],
        text: &PictureText,
    ) -> Result<Prompted> {
        let count = pictures.len();
        let (rendered, add) = match prompt {
            Prompt::Chat(request) => {
                let contents = || request.messages.iter().map(|message| message.content.as_str());
                check_marks(contents(), count)?;
                contents().try_for_each(|content| text.check(content))?;
                (self.rendering.render_with_pictures(request, count, text)?, !self.rendering.has_template(request))
            }
            Prompt::Text { text: own } => {
                check_marks(std::iter::once(own.as_str()), count)?;
                text.check(own)?;
                (text.framed(own, count), true)
            }
            Prompt::Tokens { .. } | Prompt::Insert { .. } => bail!("only chats and texts can have pictures"),
        };
        ensure!(
            text.marks(&rendered, count),
            "a text of the conversation contains the mark of pictures, such as a tool's description; remove it"
        );
        let expanded = text.expanded(&rendered, pictures);
        let tokens = text.tokens(&expanded, |piece, is_first| self.rendered(piece, add && is_first))?;
        let tokens = text.placed(tokens, pictures)?;
        let rendered = if matches!(prompt, Prompt::Chat(_)) { rendered } else { String::new() };
        Ok(Prompted { tokens, rendered })
    }

    /// Converts a prompt to tokens.
    pub(crate) fn prompt(&self, prompt: &Prompt) -> Result<Prompted> {
        let tokens = match prompt {
            Prompt::Chat(request) => return self.conversation(request),
            Prompt::Tokens { tokens } => tokens.clone(),
            Prompt::Text { text } => self.tokenizer.encode(text, Special { add: true, parse: true })?,
            Prompt::Insert { prefix, suffix } => match self.rendering.insert(prefix, suffix) {
                Some(rendered) => self.rendered(&rendered?, false)?,
                None => prompt::insert(&self.tokenizer, prefix, suffix)?,
            },
        };
        Ok(Prompted { tokens, rendered: String::new() })
    }

    fn conversation(&self, request: &RenderRequest) -> Result<Prompted> {
        let rendered = self.rendering.render(request)?;
        let tokens = self.rendered(&rendered, !self.rendering.has_template(request))?;
        Ok(Prompted { tokens, rendered })
    }

    /// Returns the tokens of a text with the tokens that begin every text. The tokenizer adds these
    /// if `add`; otherwise a template made the text, and they are added if it omitted them.
    pub(crate) fn rendered(&self, text: &str, add: bool) -> Result<Vec<u32>> {
        let mut tokens = self.tokenizer.encode(text, Special { add, parse: true })?;
        if let Some((bos, _)) = self.bos.as_ref().filter(|(_, bos)| !add && !text.starts_with(bos)) {
            tokens.insert(0, *bos);
        }
        Ok(tokens)
    }
}

fn huggingface(documents: Documents<'_>, tokenizer: Tokenizer, template: TemplateChoice<'_>) -> Result<TextModel> {
    let config = documents.json("tokenizer_config.json")?;
    let mut variables = special_tokens::variables(&documents.json("special_tokens_map.json")?);
    variables.extend(special_tokens::variables(&config));
    let mut ends = Vec::new();
    for name in ["generation_config.json", "config.json"] {
        if ends.is_empty() {
            ends = special_tokens::end_ids(&documents.json(name)?);
        }
    }
    let eos = variables.get("eos_token").and_then(Value::as_str).and_then(|text| tokenizer.id(text));
    ends.extend(eos.filter(|eos| !ends.contains(eos)));
    let mut own = chat_templates::OfFolder::default();
    for (name, raw) in documents.iter().filter(|(name, _)| chat_templates::OfFolder::reads(name)) {
        let text =
            std::str::from_utf8(formats::json::unmarked(raw)).with_context(|| format!("`{name}` is not UTF-8"))?;
        own.take(name, text);
    }
    Ok(TextModel::new(tokenizer, template.among(own.templates(), variables)?, ends, None))
}

/// Reads the tokenizer of a folder without `tokenizer.json`, in one of the other formats.
fn folder_tokenizer(documents: Documents<'_>) -> Result<Option<Tokenizer>> {
    let config = documents.json("tokenizer_config.json")?;
    let is_ranks = |(name, raw): &(&str, &[u8])| {
        let may_be = ["tokenizer.model", "tiktoken.model"].contains(name) || name.ends_with(".tiktoken");
        may_be && byte_ranks::is_tiktoken(raw)
    };
    if let Some(raw) = documents.find("tekken.json") {
        return Ok(Some(Tokenizer::from_json(&byte_ranks::of_tekken(raw)?)?));
    }
    if let Some((_, raw)) = documents.iter().find(is_ranks) {
        return Ok(Some(Tokenizer::from_json(&byte_ranks::of_tiktoken(raw, &config)?)?));
    }
    let vocabulary =
        match (documents.find("tokenizer.model"), documents.find("vocab.json"), documents.find("merges.txt")) {
            (Some(raw), ..) => Vocabulary::of_sentence_piece(raw, &config)?,
            (None, Some(vocab), Some(merges)) => Vocabulary::of_byte_pairs(vocab, merges, &config)?,
            _ => return Ok(None),
        };
    Ok(Some(Tokenizer::from_vocabulary(vocabulary)?))
}

fn gguf(documents: Documents<'_>, table: Option<TokenTable>, template: TemplateChoice<'_>) -> Result<TextModel> {
    // In a split model, only the first file has the metadata.
    let header = documents.iter().find(|(_, bytes)| bytes.starts_with(b"GGUF"));
    let (name, bytes) =
        header.context("the model has no tokenizer: none of `tokenizer.json`, `tekken.json`, `tokenizer.model`, a file of tiktoken, `vocab.json` with `merges.txt`, nor a GGUF header")?;
    let gguf = Gguf::parse_header(bytes).with_context(|| format!("the kept header of `{name}`"))?;
    let table = table.map_or_else(|| table_of(&gguf), Ok)?;
    let Settings::Gguf(vocabulary) = table.settings()? else { bail!("the token table is not that of a GGUF header") };
    let piece = |id: Option<u32>| Some(table.get(id?)?.text.to_owned());
    let mut variables = Map::new();
    for (name, id) in [("bos_token", vocabulary.bos), ("eos_token", vocabulary.eos), ("unk_token", vocabulary.unknown)]
    {
        variables.insert(name.to_owned(), piece(id).unwrap_or_default().into());
    }
    let bos = vocabulary.bos.filter(|_| vocabulary.add_bos).and_then(|id| Some((id, piece(Some(id))?)));
    let rendering = template.among(chat_templates::of_gguf(&gguf), variables)?;
    let ends = vocabulary.ends.clone();
    Ok(TextModel::new(Tokenizer::over(table, *vocabulary)?, rendering, ends, bos))
}

/// Lays out the vocabulary of a GGUF header as a token table.
fn table_of(gguf: &Gguf<'_>) -> Result<TokenTable> {
    let vocabulary = Vocabulary::read(gguf)?.context("the GGUF header has no `tokenizer.ggml.tokens`")?;
    Ok(TokenTable::open(Arc::new(TokenTable::of_vocabulary(vocabulary)?))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::renderer::Renderer;

    fn text(bytes: &mut Vec<u8>, text: &str) {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    }

    /// Returns a GGUF file with a vocabulary of three tokens, and one tensor.
    fn whole_file() -> Vec<u8> {
        const STRING: u32 = 8;
        const ARRAY: u32 = 9;
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend([1u64, 4].iter().flat_map(|n| n.to_le_bytes()));
        for (key, value) in [("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "gpt-2")] {
            text(&mut bytes, key);
            bytes.extend(STRING.to_le_bytes());
            text(&mut bytes, value);
        }
        for (key, values) in [("tokenizer.ggml.tokens", &["a", "b", "ab"][..]), ("tokenizer.ggml.merges", &["a b"])] {
            text(&mut bytes, key);
            bytes.extend([ARRAY, STRING].iter().flat_map(|n| n.to_le_bytes()));
            bytes.extend((values.len() as u64).to_le_bytes());
            for value in values {
                text(&mut bytes, value);
            }
        }
        text(&mut bytes, "w");
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(8u64.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(32) + 32, 0xff);
        bytes
    }

    #[test]
    fn a_whole_gguf_file_is_read_like_its_header() {
        let bytes = whole_file();
        let renderer = Arc::new(Renderer::in_a_thread());
        for (name, length) in [("whole.gguf", bytes.len()), ("header.gguf", bytes.len() - 32)] {
            let documents = [(name.to_owned(), Arc::new(Blob::Read(bytes[..length].to_vec())))];
            let gguf = Gguf::parse_header(&bytes).expect("a header");
            let own = Vocabulary::read(&gguf).expect("it is read").expect("a vocabulary");
            let whole = TokenTable::of_vocabulary(own).expect("a table");
            let settings = whole.windows(2).position(|two| two == b"{\"").expect("settings");
            let mut damaged = whole.clone();
            damaged[settings] = b'?';
            for table in [None, Some(whole), Some(damaged), Some(b"no table".to_vec())] {
                let table = table.map(|table| Arc::new(Blob::Read(table)));
                let model = TextModel::load(
                    TemplateChoice { given: None, renderer: &renderer },
                    Documents::new(&documents),
                    table.as_ref(),
                )
                .expect(name);
                let tokens = model.prompt(&Prompt::Text { text: "abba".to_owned() }).expect(name).tokens;
                assert_eq!(tokens, [2, 1, 0], "{name}");
            }
        }
    }
}
