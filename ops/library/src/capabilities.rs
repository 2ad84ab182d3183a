//! Detection of a model's capabilities, cached so that its template and vocabulary are read once.

use architectures::{MODULES, sentence_modules};
use content::ensure;
use content::operation::Result;
use formats::Gguf;
use import::{MAX_GGUF_HEADER, NamedFile, ReadAt};
use manifests::media_types;
use vocabulary::chat_templates::{self, DEFAULT, NamedTemplate, OfFolder};
use vocabulary::{abilities, insert, renderers};

use crate::blobs::beginning;
use crate::capability::{Capabilities, Capability};
use crate::derived::Derivation;
use crate::library::Library;
use crate::limits::MAX_DOCUMENT;
use crate::model::Model;

/// The template of Ollama models that use a renderer.
const BARE_PROMPT: &str = "{{ .Prompt }}";

/// `pooling_type` of a GGUF file whose model computes scores.
const RANK: u64 = 4;

/// Cached note with the names of the capabilities other than completion and vision.
const DERIVATION: Derivation = Derivation { kind: "capabilities", version: 9 };

impl Library {
    /// Returns the capabilities of a model.
    ///
    /// # Errors
    /// The model's documents cannot be read.
    pub fn capabilities(&self, model: &Model) -> Result<Capabilities> {
        let found = || Ok(self.found_capabilities(model)?.noted());
        let mut all = Capabilities::parse(&self.derived(DERIVATION, model.manifest.digest(), found)?);
        // Not cached, because the architecture is known only while the model's documents can be
        // read.
        if let Some(known) = model.parsed_facts.known() {
            let blueprint = &known.architecture.blueprint;
            if blueprint.scorer.as_ref().is_some_and(|scorer| scorer.score.is_some()) {
                all.0.insert(0, Capability::Rerank);
            } else if !all.has(Capability::Embedding) {
                // An encoder predicts no next token, whether or not a document specifies how its
                // vectors are pooled.
                let generates = blueprint.output.is_some();
                all.0.insert(0, if generates { Capability::Completion } else { Capability::Embedding });
                if generates && blueprint.tower().is_some() {
                    all.0.insert(1, Capability::Vision);
                }
            }
        }
        Ok(all)
    }

    /// Returns all capabilities except completion and vision.
    fn found_capabilities(&self, model: &Model) -> Result<Capabilities> {
        let facts = Facts::read(&self.document_files(model))?;
        let templates = match self.own_template(model)? {
            Some(template) => vec![template],
            None => facts.templates.into_iter().map(|(_, text)| text).collect(),
        };
        let thinks = renderers::thinks(&model.config.renderer);
        let offers = |offered: fn(&str) -> bool| templates.iter().any(|template| offered(template));
        let capabilities = [
            (Capability::Tools, !facts.embeds && offers(abilities::offers_tools)),
            (Capability::Insert, !facts.embeds && (facts.inserts || offers(abilities::offers_insert))),
            (Capability::Embedding, facts.embeds),
            (Capability::Thinking, !facts.embeds && thinks.unwrap_or_else(|| offers(abilities::offers_thinking))),
            (Capability::Rerank, facts.ranks),
            (Capability::Chat, !templates.is_empty()),
        ];
        Ok(Capabilities(capabilities.into_iter().filter_map(|(capability, has)| has.then_some(capability)).collect()))
    }

    /// Returns the chat template that a runner uses for conversations without tools; `None` if
    /// there is none.
    ///
    /// # Errors
    /// The model's documents cannot be read.
    pub fn chat_template(&self, model: &Model) -> Result<Option<String>> {
        if let Some(template) = self.own_template(model)? {
            return Ok(Some(template));
        }
        let templates = Facts::read(&self.document_files(model))?.templates;
        let default = templates.iter().position(|(name, _)| name == DEFAULT).unwrap_or(0);
        Ok(templates.into_iter().nth(default).map(|(_, text)| text))
    }

    /// Returns the template that a model has in addition to those of its weights: that of its
    /// renderer, else the one that it was created with.
    ///
    /// # Errors
    /// The layer cannot be read.
    pub fn own_template(&self, model: &Model) -> Result<Option<String>> {
        let renderer = model.config.renderer.as_str();
        if let Some(template) = renderers::template(renderer) {
            return Ok(Some(template));
        }
        let written = model.layer_text(self, media_types::TEMPLATE)?;
        if renderer.is_empty() {
            return Ok(written);
        }
        // A bare template beside a renderer is only for programs that do not know renderers.
        Ok(written.filter(|template| template.trim() != BARE_PROMPT))
    }

    /// Returns the files other than tensors.
    fn document_files(&self, model: &Model) -> Vec<NamedFile> {
        let documents = self.documents(&model.manifest).into_iter();
        documents.map(|(name, digest)| NamedFile { name, source: self.open(&digest) }).collect()
    }
}

/// Refuses an unknown renderer, which would silently leave a model with the prompts of its weights.
///
/// # Errors
/// The renderer is unknown; the error lists the known ones.
pub fn check_renderer(renderer: &str) -> Result<()> {
    ensure!(
        renderers::template(renderer).is_some(),
        "the renderer `{}` is not known; expected a TEMPLATE, or one of {}",
        renderer.escape_debug(),
        renderers::names().collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

/// Facts in the files that came with the weights.
#[derive(Debug, Default)]
struct Facts {
    /// Chat templates by name.
    templates: Vec<NamedTemplate>,
    /// Whether the vocabulary has fill-in-the-middle tokens.
    inserts: bool,
    /// Whether the model was made for embeddings: a document specifies how its vectors are pooled.
    embeds: bool,
    /// Whether a document specifies which logits are scores.
    ranks: bool,
}

impl Facts {
    fn read(documents: &[NamedFile]) -> Result<Self> {
        let (mut facts, mut of_folder) = (Self::default(), OfFolder::default());
        for document in documents {
            match document.name.as_str() {
                name if OfFolder::reads(name) => of_folder.take(name, &text(&*document.source)?),
                "tokenizer.json" => {
                    let vocabulary = text(&*document.source)?;
                    facts.inserts |= insert::marks(&|token| vocabulary.contains(&format!("\"{token}\""))).is_some();
                }
                MODULES => facts.read_modules(&text(&*document.source)?),
                "1_Pooling/config.json" => facts.embeds = true,
                _ => facts.read_gguf(&*document.source)?,
            }
        }
        // The templates of a GGUF file take precedence, because its tensors are the model.
        if facts.templates.is_empty() {
            facts.templates = of_folder.templates();
        }
        Ok(facts)
    }

    /// Reads the modules of sentence-transformers. A model without a pooling module makes no
    /// embeddings.
    fn read_modules(&mut self, text: &str) {
        let modules = sentence_modules(text.as_bytes()).unwrap_or_default();
        let has = |name: &str| modules.iter().any(|module| module.name() == name);
        self.embeds |= has("Pooling");
        self.ranks |= has("LogitScore");
    }

    /// Reads the header of a GGUF file, if the document is one.
    fn read_gguf(&mut self, source: &dyn ReadAt) -> Result<()> {
        let raw = beginning(source, 4)?;
        if raw != b"GGUF" {
            return Ok(());
        }
        let raw = beginning(source, MAX_GGUF_HEADER)?;
        // In a split model, only the first file has the keys. A header that exceeds the limit is
        // ignored.
        let Ok(gguf) = Gguf::parse_header(&raw) else { return Ok(()) };
        if self.templates.is_empty() {
            self.templates = chat_templates::of_gguf(&gguf);
        }
        if let Some(tokens) = gguf.array("tokenizer.ggml.tokens") {
            let marks: Vec<_> = tokens.iter().filter_map(|token| token.as_str()).filter(|t| may_mark(t)).collect();
            self.inserts |= insert::marks(&|token| marks.contains(&token)).is_some();
        }
        let architecture = gguf.text("general.architecture").unwrap_or_default();
        let pools = gguf.unsigned(&format!("{architecture}.pooling_type"));
        self.embeds |= pools.is_some_and(|pools| pools != RANK);
        Ok(())
    }
}

/// Whether a token can be a fill-in-the-middle token: all of them contain a bracket.
fn may_mark(token: &str) -> bool {
    token.contains(['<', '['])
}

fn text(source: &dyn ReadAt) -> Result<String> {
    Ok(String::from_utf8_lossy(formats::json::unmarked(&beginning(source, MAX_DOCUMENT)?)).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(files: &[(&str, &str)]) -> Facts {
        let folder = tempfile::tempdir().expect("a folder");
        let documents: Vec<NamedFile> = files
            .iter()
            .map(|(name, text)| {
                let path = folder.path().join(name.replace('/', "_"));
                std::fs::write(&path, text).expect("a file");
                NamedFile::local(*name, path)
            })
            .collect();
        Facts::read(&documents).expect("readable")
    }

    #[test]
    fn files_beside_the_weights_tell() {
        let one = r#"{"chat_template": "{{ messages }}"}"#;
        let named =
            r#"{"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}"#;
        let single = |text: &str| vec![("default".to_owned(), text.to_owned())];
        assert_eq!(facts(&[("tokenizer_config.json", one)]).templates, single("{{ messages }}"));
        assert_eq!(facts(&[("tokenizer_config.json", named)]).templates.len(), 2);
        let both = facts(&[("chat_template.jinja", "J"), ("tokenizer_config.json", one)]);
        assert_eq!(both.templates, single("J"), "the file of its own comes first");
        let vocabulary = r#"{"added_tokens": ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]}"#;
        assert!(facts(&[("tokenizer.json", vocabulary)]).inserts);
        assert!(!facts(&[("tokenizer.json", "{}"), ("config.json", "{}")]).inserts);
        assert!(facts(&[("1_Pooling/config.json", "{}")]).embeds);
        let modules = |name: &str| format!(r#"[{{"type": "sentence_transformers.models.{name}"}}]"#);
        for (name, expect) in
            [("Pooling", (true, false)), ("LogitScore", (false, true)), ("Transformer", (false, false))]
        {
            let facts = facts(&[("modules.json", &modules(name))]);
            assert_eq!((facts.embeds, facts.ranks), expect, "{name}");
        }
    }
}
