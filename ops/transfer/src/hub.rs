//! Models on a Hugging Face hub: parses references, and selects the files of a repository that make
//! the model.
//!
//! A reference is `hf.co/USER/REPO[:FILE-or-QUANTIZATION][@REVISION]`. The tag is a file name, with
//! or without `.gguf`, or a quantization; case is ignored. Without a tag, or with `latest`, the
//! default is `Q4_K_M`, then the first GGUF file, then the safetensors files.

use std::collections::BTreeSet;
use std::fmt::Write;

use content::Digest;
use content::operation::{Context, Result, Unclassified};
use content::{bail, ensure};
use import::gguf_stem;
use manifests::ModelRef;
use serde::Deserialize;

/// Hosts whose names are hub references. Model names use the first one.
pub(crate) const HOSTS: [&str; 2] = ["hf.co", "huggingface.co"];
/// The quantization that is selected by default, if the repository has it.
const DEFAULT_QUANTIZATION: &str = "Q4_K_M";
const DEFAULT_REVISION: &str = "main";
/// The file that lists the shards of a model.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Maximum length of a listing in bytes.
pub(crate) const MAX_LISTING: u64 = 32 << 20;
/// Maximum length of an index in bytes.
pub(crate) const MAX_INDEX: u64 = 64 << 20;
/// Maximum number of files in a repository.
const MAX_FILES: usize = 50_000;

/// The URL for a search on the hub at this address: models with a text in their names, the most
/// downloaded ones first.
pub(crate) fn search_url(endpoint: &str, text: &str) -> String {
    let text = escape(text, "");
    format!("{}/api/models?search={text}&limit=30&sort=downloads&direction=-1", endpoint.trim_end_matches('/'))
}

/// A model of a repository at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubReference {
    repository: String,
    /// A file or quantization; `None` selects the default.
    wanted: Option<String>,
    revision: String,
}

impl HubReference {
    /// Parses a reference that a user typed. Returns `None` if the host is not a hub, so that the
    /// text is a name in a registry.
    pub fn parse(text: &str) -> Result<Option<Self>> {
        let text = text.strip_prefix("https://").unwrap_or(text);
        let Some((host, rest)) = text.split_once('/') else { return Ok(None) };
        if !HOSTS.iter().any(|known| host.eq_ignore_ascii_case(known)) {
            return Ok(None);
        }
        let (rest, revision) = rest.split_once('@').unwrap_or((rest, DEFAULT_REVISION));
        let (repository, wanted) = match rest.split_once(':') {
            Some((repository, wanted)) => (repository, Some(wanted)),
            None => (rest, None),
        };
        let expected = "expected hf.co/USER/REPO[:FILE-or-QUANTIZATION][@REVISION]";
        let parts: Vec<&str> = repository.split('/').collect();
        ensure!(parts.len() == 2 && parts.iter().all(|part| is_plain(part, 96)), "`{text}`: {expected}");
        ensure!(!revision.starts_with("sha256:"), "`{text}`: a hub has branches, tags and commits, no digests");
        ensure!(is_path(revision, 200), "`{text}`: `{revision}` is not a revision; {expected}");
        if let Some(wanted) = wanted {
            ensure!(is_path(wanted, 200), "`{text}`: `{wanted}` is not a file or quantization; {expected}");
        }
        let wanted = wanted.filter(|wanted| !wanted.eq_ignore_ascii_case("latest")).map(str::to_owned);
        Ok(Some(Self { repository: repository.to_owned(), wanted, revision: revision.to_owned() }))
    }

    /// `USER/REPO`.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// A reference that always means the same model: the commit replaces a branch or tag.
    pub fn at(&self, commit: &str) -> String {
        let wanted = self.wanted.as_ref().map(|wanted| format!(":{wanted}")).unwrap_or_default();
        format!("{}/{}{wanted}@{commit}", HOSTS[0], self.repository)
    }

    /// The name of the model in the store. The same reference always gives the same name.
    pub fn model_ref(&self) -> Result<ModelRef> {
        let mut tag = self.wanted.clone().unwrap_or_else(|| "latest".to_owned());
        if self.revision != DEFAULT_REVISION {
            tag = format!("{tag}-at-{}", self.revision);
        }
        Ok(format!("{}/{}:{}", HOSTS[0], self.repository, tag.replace('/', "-")).parse()?)
    }

    /// The URL of the repository's listing.
    pub fn listing_url(&self, endpoint: &str) -> String {
        let (repository, revision) = (escape(&self.repository, "/"), escape(&self.revision, ""));
        format!("{}/api/models/{repository}/revision/{revision}?blobs=true", endpoint.trim_end_matches('/'))
    }

    /// The URL of a file, at the commit of the listing.
    pub fn file_url(&self, endpoint: &str, listing: &Listing, path: &str) -> String {
        let (repository, path) = (escape(&self.repository, "/"), escape(path, "/"));
        format!("{}/{repository}/resolve/{}/{path}", endpoint.trim_end_matches('/'), listing.commit)
    }

    /// The index file that must be read before [`choose`](Self::choose), if the selection is
    /// safetensors and the repository has an index.
    pub fn index<'a>(&self, listing: &'a Listing) -> Result<Option<&'a HubFile>> {
        let is_gguf = self.gguf(listing)?.is_some();
        Ok(listing.file(INDEX).filter(|_| !is_gguf && self.one_file(listing).is_none()))
    }

    /// Selects the files of the model. `index` is the content of the file that
    /// [`index`](Self::index) returned.
    pub fn choose(&self, listing: &Listing, index: Option<&[u8]>) -> Result<Vec<HubFile>> {
        if let Some(mut files) = self.gguf(listing)? {
            files.extend(projector(listing).cloned());
            return Ok(files);
        }
        let weights: Vec<&HubFile> = match (self.one_file(listing), index) {
            (Some(file), _) => vec![file],
            (None, Some(index)) => indexed(listing, index)?,
            (None, None) => {
                let whole = listing.file("model.safetensors").is_some();
                let is_model = |path: &str| path.starts_with("model") && !import::is_spare(path, whole);
                let named = |file: &&HubFile| is_safetensors(&file.path) && is_model(&file.path);
                listing.files.iter().filter(named).collect()
            }
        };
        ensure!(
            !weights.is_empty(),
            "`{}` has neither GGUF files nor model*.safetensors; other formats cannot be imported",
            self.repository
        );
        let is_chosen = |file: &HubFile| weights.iter().any(|chosen| chosen.path == file.path);
        let has_modules = listing.file("modules.json").is_some();
        let of_modules: Vec<&HubFile> = listing
            .files
            .iter()
            .filter(|file| has_modules && module_file(&file.path) == Some("model.safetensors") && !is_chosen(file))
            .collect();
        let side = listing.files.iter().filter(|file| is_side_file(&file.path));
        let index = listing.file(INDEX).filter(|_| index.is_some());
        Ok(weights.into_iter().chain(of_modules).chain(side).chain(index).cloned().collect())
    }

    /// The safetensors file that the reference names.
    fn one_file<'a>(&self, listing: &'a Listing) -> Option<&'a HubFile> {
        let wanted = self.wanted.as_ref()?;
        listing.files.iter().find(|file| is_safetensors(&file.path) && file.path.eq_ignore_ascii_case(wanted))
    }

    /// The selected GGUF file with all files of its split; `None` if safetensors files are
    /// selected.
    fn gguf(&self, listing: &Listing) -> Result<Option<Vec<HubFile>>> {
        let mut files: Vec<&HubFile> = listing.files.iter().filter(|file| import::is_model_gguf(&file.path)).collect();
        // Short names first: if several match, the plainest is meant.
        files.sort_by_key(|file| (file.path.len(), &file.path));
        let find = |wanted: &str| {
            let by_name = files.iter().find(|file| is_named(&file.path, wanted));
            by_name.or_else(|| files.iter().find(|file| is_quantized(&file.path, wanted))).copied()
        };
        let found = match &self.wanted {
            Some(wanted) => match find(wanted) {
                None if self.one_file(listing).is_none() => bail!("{}", self.no_such(wanted, &files)),
                found => found,
            },
            None => find(DEFAULT_QUANTIZATION).or_else(|| files.iter().min_by_key(|file| &file.path).copied()),
        };
        found.map(|file| split(listing, file)).transpose()
    }

    fn no_such(&self, wanted: &str, files: &[&HubFile]) -> String {
        const SHOWN: usize = 12;
        let repository = &self.repository;
        if files.is_empty() {
            return format!("`{repository}` has no GGUF files, so there is no `{wanted}`; leave it out");
        }
        let names: Vec<&str> = files.iter().take(SHOWN).map(|file| file.path.as_str()).collect();
        let more = if files.len() > SHOWN { ", …" } else { "" };
        format!("`{repository}` has no file or quantization `{wanted}`; it has {}{more}", names.join(", "))
    }
}

/// The files of a repository at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The commit, in hex.
    pub commit: String,
    pub files: Vec<HubFile>,
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFile {
    /// Relative to the repository, with slashes.
    pub path: String,
    /// Length in bytes, if the hub reports it.
    pub size: Option<u64>,
    /// The digest of the bytes. Hubs report it for large files.
    pub digest: Option<Digest>,
}

#[derive(Deserialize)]
struct WireListing {
    sha: String,
    #[serde(default)]
    siblings: Vec<WireFile>,
}

#[derive(Deserialize)]
struct WireFile {
    rfilename: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default)]
    lfs: Option<WireLarge>,
}

#[derive(Deserialize)]
struct WireLarge {
    #[serde(default)]
    sha256: Option<String>,
    #[serde(default)]
    size: Option<u64>,
}

impl Listing {
    /// Parses the hub's response. A file name that leads out of the repository is an error.
    pub fn parse(raw: &[u8]) -> Result<Self> {
        let wire: WireListing = serde_json::from_slice(raw).internal().context("the hub's listing cannot be read")?;
        let is_commit = (7..=64).contains(&wire.sha.len()) && wire.sha.bytes().all(|b| b.is_ascii_hexdigit());
        ensure!(is_commit, "the hub reports the commit {:?}, expected hex digits", wire.sha);
        let count = wire.siblings.len();
        ensure!(count <= MAX_FILES, "the repository has {count} files, {MAX_FILES} at most are read");
        let file = |wire: WireFile| {
            let large = wire.lfs.unwrap_or(WireLarge { sha256: None, size: None });
            let digest = large.sha256.map(|hex| format!("sha256:{hex}").parse()).transpose().internal()?;
            Ok(HubFile { path: import::relative_name(&wire.rfilename)?, size: large.size.or(wire.size), digest })
        };
        Ok(Self { commit: wire.sha, files: wire.siblings.into_iter().map(file).collect::<Result<_>>()? })
    }

    pub fn file(&self, path: &str) -> Option<&HubFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

#[derive(Deserialize)]
struct WireIndex {
    weight_map: std::collections::HashMap<String, String>,
}

/// The shards that an index names.
fn indexed<'a>(listing: &'a Listing, index: &[u8]) -> Result<Vec<&'a HubFile>> {
    let index: WireIndex = serde_json::from_slice(&formats::json::tolerant(index))
        .internal()
        .with_context(|| format!("{INDEX} cannot be read"))?;
    let names: BTreeSet<&String> = index.weight_map.values().collect();
    let find = |name: &String| listing.file(name).with_context(|| format!("{INDEX} names `{name}`, which is missing"));
    names.into_iter().map(find).collect()
}

/// A GGUF file with all other files of its split.
fn split(listing: &Listing, file: &HubFile) -> Result<Vec<HubFile>> {
    let Some(names) = import::split_names(&file.path) else { return Ok(vec![file.clone()]) };
    let find = |name: String| {
        listing.file(&name).cloned().with_context(|| format!("`{name}` of the split is missing in the repository"))
    };
    names.into_iter().map(find).collect()
}

/// The projector of the repository's models, if it has one: in 16 bits rather than in other types.
fn projector(listing: &Listing) -> Option<&HubFile> {
    let ranked = listing.files.iter().filter_map(|file| {
        let rank = import::projector_rank(&file.path)?;
        Some(((rank, file.path.len(), &file.path), file))
    });
    ranked.min_by_key(|(rank, _)| *rank).map(|(_, file)| file)
}

fn is_safetensors(path: &str) -> bool {
    path.ends_with(".safetensors") && !path.contains('/')
}

/// Whether `wanted` names the file: by its path or file name, in full or as [`gguf_stem`] shortens
/// it.
fn is_named(path: &str, wanted: &str) -> bool {
    let last = |text: &str| text.rsplit('/').next().unwrap_or(text).to_owned();
    let names = [path.to_owned(), gguf_stem(path).to_owned(), last(path), last(gguf_stem(path))];
    names.iter().any(|name| name.eq_ignore_ascii_case(wanted))
}

/// Whether the name contains the quantization as a word. `_` does not end a word, so `Q4_K` does
/// not match `Q4_K_M`. A quantization has a digit in it: `XS` is only a part of one.
fn is_quantized(path: &str, wanted: &str) -> bool {
    if !wanted.contains(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let (stem, wanted) = (gguf_stem(path).to_ascii_lowercase(), wanted.to_ascii_lowercase());
    stem.match_indices(&wanted).any(|(at, _)| {
        let before = stem[..at].chars().next_back();
        let after = stem[at + wanted.len()..].chars().next();
        before.is_none_or(|c| !c.is_ascii_alphanumeric()) && after.is_none_or(|c| matches!(c, '-' | '.' | '/'))
    })
}

/// Whether the file belongs to a safetensors model besides its weights.
fn is_side_file(path: &str) -> bool {
    const NAMES: [&str; 10] = [
        "config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "merges.txt",
        "modules.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        // Settings of the picture processor, without which pictures are refused.
        "preprocessor_config.json",
        "processor_config.json",
    ];
    const BEGINNINGS: [&str; 6] = ["tokenizer", "tekken.", "tiktoken.", "vocab.", "chat_template.", "LICENSE"];
    let is_template =
        path.strip_prefix("additional_chat_templates/").is_some_and(|name| name.strip_suffix(".jinja").is_some());
    is_template
        || module_file(path) == Some("config.json")
        || !path.contains('/')
            && (NAMES.contains(&path)
                || path.strip_suffix(".tiktoken").is_some()
                || BEGINNINGS.iter().any(|beginning| path.starts_with(beginning)))
}

/// Returns the name of a file in the folder of a module of sentence-transformers, such as
/// `1_Pooling`; `None` for other files.
fn module_file(path: &str) -> Option<&str> {
    let (folder, file) = path.split_once('/')?;
    let (number, class) = folder.split_once('_')?;
    let is_module = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) && !class.is_empty();
    is_module.then_some(file)
}

fn is_plain(text: &str, longest: usize) -> bool {
    let fine = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=longest).contains(&text.len()) && text.bytes().all(fine) && !text.starts_with(['.', '-'])
}

fn is_path(text: &str, longest: usize) -> bool {
    text.len() <= longest && text.split('/').all(|part| is_plain(part, longest))
}

/// Percent-encodes all characters except unreserved ones and the ones in `kept`.
fn escape(text: &str, kept: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if byte.is_ascii_alphanumeric() || "-._~".contains(c) || kept.contains(c) {
            escaped.push(c);
        } else {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
