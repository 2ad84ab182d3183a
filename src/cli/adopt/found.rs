//! Models of other programs on this machine.

use std::path::{Path, PathBuf};

use api::ollama::{CreateRequest, License};
use manifests::ModelRef;

/// A program that keeps models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Tool {
    Ollama,
    #[value(name = "huggingface", alias = "hf")]
    HuggingFace,
    #[value(name = "lmstudio", alias = "lm-studio")]
    LmStudio,
    #[value(name = "llama.cpp", alias = "llamacpp")]
    LlamaCpp,
}

impl Tool {
    pub(super) const ALL: [Self; 4] = [Self::Ollama, Self::HuggingFace, Self::LmStudio, Self::LlamaCpp];

    /// The name in arguments and tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ollama => "ollama",
            Self::HuggingFace => "huggingface",
            Self::LmStudio => "lmstudio",
            Self::LlamaCpp => "llama.cpp",
        }
    }
}

/// A model that another program has, or that is in a file or folder.
#[derive(Clone, Debug)]
pub(super) struct FoundModel {
    /// The program; `None` for a path that the user named.
    pub(super) tool: Option<Tool>,
    /// The name that the model gets.
    pub(super) name: String,
    /// Where it is.
    pub(super) path: PathBuf,
    /// Bytes of its files.
    pub(super) bytes: u64,
    /// Identifies the file with the weights by its content, if the program has named it so.
    pub(super) digest: Option<String>,
    /// Its files, or the reason why it cannot be adopted.
    pub(super) files: Result<FoundFiles, String>,
    /// Parts of the model that are not in its files.
    pub(super) texts: ModelTexts,
}

/// The files of a model.
#[derive(Clone, Debug)]
pub(super) enum FoundFiles {
    /// The model at a path, with a projector at another one.
    At { path: PathBuf, projector: Option<PathBuf> },
    /// Files with the names that they have in the model.
    Named(Vec<(String, PathBuf)>),
}

/// Parts of a model that Ollama stores beside the weights.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelTexts {
    pub(super) template: Option<String>,
    pub(super) system: Option<String>,
    pub(super) renderer: Option<String>,
    pub(super) parser: Option<String>,
    pub(super) licenses: Vec<String>,
    pub(super) parameters: serde_json::Map<String, serde_json::Value>,
    pub(super) messages: Vec<protocol::Message>,
}

impl FoundModel {
    /// Creates an entry for weights at a path.
    pub(super) fn at(tool: Option<Tool>, name: String, path: &Path, projector: Option<PathBuf>) -> Self {
        let name = name.parse::<ModelRef>().map(|name| name.to_string()).map_err(|error| (name, error.to_string()));
        let (name, problem) = match name {
            Ok(name) => (name, None),
            Err((name, problem)) => (name, Some(problem)),
        };
        let files = FoundFiles::At { path: path.to_owned(), projector };
        Self {
            tool,
            name,
            path: path.to_owned(),
            bytes: 0,
            digest: None,
            files: problem.map_or(Ok(files), Err),
            texts: ModelTexts::default(),
        }
    }

    /// Leaves out the projector, if the model has one.
    pub(super) fn leave_out_projector(&mut self) {
        match &mut self.files {
            Ok(FoundFiles::At { projector, .. }) => *projector = None,
            Ok(FoundFiles::Named(files)) => files.retain(|(name, _)| !name.contains("mmproj")),
            Err(_) => {}
        }
    }

    /// The request that adopts the model, without its files.
    pub(super) fn request(&self) -> CreateRequest {
        let texts = self.texts.clone();
        CreateRequest {
            model: self.name.clone(),
            stream: Some(true),
            in_place: true,
            template: texts.template,
            system: texts.system,
            renderer: texts.renderer,
            parser: texts.parser,
            license: Some(License::Several(texts.licenses)).filter(|all| *all != License::Several(Vec::new())),
            parameters: texts.parameters,
            messages: texts.messages,
            ..CreateRequest::default()
        }
    }
}

/// Returns the digest of a file that its program has named by it: `sha256-HEX`, or 64 hexadecimal
/// digits, also behind a link.
pub(super) fn digest_in_name(path: &Path) -> Option<String> {
    let target = path.canonicalize().ok()?;
    let name = target.file_name()?.to_str()?;
    let hex = name.strip_prefix("sha256-").unwrap_or(name);
    let is_digest = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_digest.then(|| hex.to_ascii_lowercase())
}

/// Bytes of a file; 0 if it cannot be looked at.
pub(super) fn size_of(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |facts| facts.len())
}

/// The entries of a folder, sorted; none if it cannot be listed.
pub(super) fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    all.sort();
    all
}

/// The name of a file or folder; empty if it is not UTF-8.
pub(super) fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}
