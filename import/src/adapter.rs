//! Low-rank adapters (LoRA): what is added to the projections of a model, from the files that trainers write.
//!
//! A projection `y = W x` becomes `y = W x + scale · up(down(x))`.
//!
//! | files | by | `down` | `up` | scale |
//! |---|---|---|---|---|
//! | GGUF, `general.type` is `adapter` | llama.cpp | `NAME.lora_a` | `NAME.lora_b` | `adapter.lora.alpha / rank`, 1 where that key is 0 |
//! | safetensors and `adapter_config.json` | PEFT | `NAME.lora_A.weight` | `NAME.lora_B.weight` | `lora_alpha / rank`, `/ √rank` with `use_rslora` |
//! | the same | mlx-lm | `NAME.lora_a` | `NAME.lora_b` | `lora_parameters.scale` |
//!
//! `down` is `[rank, input]` and `up` is `[output, rank]`; mlx-lm stores both the other way round.
//!
//! Sources: `convert_lora_to_gguf.py` and `llama-adapter.cpp` of llama.cpp; `LoraConfig` and `get_pattern_key` of PEFT;
//! `tuner/lora.py` and `tuner/utils.py` of mlx-lm.
//!
//! An adapter is kept as the files it came in. All of its numbers change with every training step, so tensors of their own
//! would be shared by nobody.

mod gguf;
mod pairs;
mod safetensors;

use std::collections::{BTreeMap, BTreeSet};

use architectures::HeadLayout;

use crate::inventory::begins_with;
use crate::{Error, NamedFile, StoredTensor, relative_name};

/// The file that says how an adapter of safetensors is to be used.
const CONFIG: &str = "adapter_config.json";
/// Where files of adapters are in a model, each adapter in a folder with a number.
const FOLDER: &str = "adapters/";
/// The token embedding. Its rows are looked up, so nothing can be added to a product.
const EMBEDDING: &str = "model.embed_tokens";

/// A low-rank adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// The file with its tensors.
    pub name: String,
    /// The architecture that it was made for, as GGUF names it; `None` where the files do not say.
    pub architecture: Option<String>,
    /// The layout of heads that `up` of q and k has.
    pub layout: HeadLayout,
    /// What it adds, sorted by the names of the modules.
    pub modules: Vec<AdaptedModule>,
}

/// What an adapter adds to one projection.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptedModule {
    /// The canonical name of the projection's weight, without `.weight`.
    pub name: String,
    /// `[rank, input]`, or `[input, rank]` where it is transposed.
    pub down: StoredTensor,
    /// `[output, rank]`, or `[rank, output]` where it is transposed.
    pub up: StoredTensor,
    /// Both are stored the other way round.
    pub transposed: bool,
    /// What the product is multiplied by.
    pub scale: f64,
}

impl AdaptedModule {
    /// Elements between the two products.
    fn rank(&self) -> u64 {
        self.down.shape[usize::from(self.transposed)]
    }

    /// Elements that go in and elements that come out.
    fn sizes(&self) -> (u64, u64) {
        let (down, up) = (&self.down.shape, &self.up.shape);
        if self.transposed { (down[0], up[1]) } else { (down[1], up[0]) }
    }
}

/// Reads adapters. Files of one folder belong together, but for GGUF files: each of those is an adapter. The files are
/// blobs: each has a digest.
///
/// # Errors
/// [`Error::Source`] where files are none of an adapter, or those of one that does more than add to projections;
/// [`Error::Format`] and [`Error::Io`] where they cannot be read.
pub fn adapters(files: &[NamedFile]) -> Result<Vec<Adapter>, Error> {
    for file in files {
        relative_name(&file.name)?;
    }
    let mut adapters = Vec::new();
    for folder in folders(files).into_values() {
        let mut others = Vec::new();
        for file in folder {
            if has_extension(&file.name, "gguf") || begins_with(file, *b"GGUF")? {
                adapters.push(gguf::read(file)?);
            } else {
                others.push(file);
            }
        }
        if !others.is_empty() {
            adapters.push(safetensors::read(&others)?);
        }
    }
    Ok(adapters)
}

/// The files by their folders.
fn folders(files: &[NamedFile]) -> BTreeMap<&str, Vec<&NamedFile>> {
    let mut folders: BTreeMap<&str, Vec<&NamedFile>> = BTreeMap::new();
    for file in files {
        folders.entry(split(&file.name).0).or_default().push(file);
    }
    folders
}

/// Takes the files of adapters out of those of a model: an export puts them into folders of their own.
pub fn split_adapters(files: Vec<NamedFile>) -> (Vec<NamedFile>, Vec<NamedFile>) {
    files.into_iter().partition(|file| number(&file.name).is_none())
}

/// The files that say something of an adapter. Trainers put tokenizers and notes beside it, and clients send whole folders.
///
/// # Errors
/// [`Error::Source`] where there are files, but none that says something; [`Error::Io`] where one cannot be read.
pub fn adapter_files(files: Vec<NamedFile>) -> Result<Vec<NamedFile>, Error> {
    let Some(first) = files.first().map(|file| file.name.clone()) else { return Ok(files) };
    let mut wanted = Vec::new();
    for file in files {
        let beside =
            ["json", "jinja", "md", "model", "txt"].iter().any(|extension| has_extension(&file.name, extension));
        if !beside || split(&file.name).1 == CONFIG || begins_with(&file, *b"GGUF")? {
            wanted.push(file);
        }
    }
    if wanted.is_empty() {
        let expected = format!("expected a GGUF file, or a safetensors file and its `{CONFIG}`");
        return Err(Error::Source(format!("there is no adapter in `{first}` and what is beside it; {expected}")));
    }
    Ok(wanted)
}

/// The number of the adapter that a file of a model belongs to.
fn number(name: &str) -> Option<usize> {
    name.strip_prefix(FOLDER)?.split_once('/')?.0.parse().ok()
}

/// What files of adapters are called in a model: those of each folder are in a folder of their own, `adapters/N`, with
/// numbers after those that are `taken`. In the order of the files.
pub fn adapter_names<'a>(files: &[&str], taken: impl Iterator<Item = &'a str>) -> Vec<String> {
    let next = taken.filter_map(number).max().map_or(0, |last| last.saturating_add(1));
    let folders: BTreeSet<&str> = files.iter().map(|file| split(file).0).collect();
    let name = |file: &&str| {
        let (folder, name) = split(file);
        let position = folders.range(..folder).count();
        format!("{FOLDER}{}/{name}", next.saturating_add(position))
    };
    files.iter().map(name).collect()
}

/// Folder and name.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn has_extension(name: &str, extension: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, own)| own.eq_ignore_ascii_case(extension))
}

impl Adapter {
    /// Whether it fits a model with these tensors, of that architecture as GGUF names it, where it is known.
    ///
    /// # Errors
    /// [`Error::Source`] where it was made for another architecture, or a projection is missing or of another shape.
    pub fn check(&self, tensors: &[StoredTensor], architecture: Option<&str>) -> Result<(), Error> {
        let refuse = |reason: String| Err(Error::Source(format!("the adapter `{}` does not fit: {reason}", self.name)));
        if let (Some(own), Some(here)) = (self.architecture.as_deref(), architecture)
            && own != here
        {
            return refuse(format!("it was made for the architecture {own}, the model is of {here}"));
        }
        let shape =
            |name: &str| tensors.iter().find(|tensor| tensor.name == name).map(|tensor| tensor.shape.as_slice());
        for module in &self.modules {
            let name = module.name.as_str();
            // A tied model has no other output projection than its embedding.
            let tied = || shape(&format!("{EMBEDDING}.weight")).filter(|_| name == "lm_head");
            let Some(shape) = shape(&format!("{name}.weight")).or_else(tied) else {
                return refuse(format!("the model has no `{name}`; expected an adapter of this model or of its base"));
            };
            let (input, output) = module.sizes();
            // A `Conv1D`, as GPT-2 has, is stored the other way round; its factors are not.
            if *shape != [output, input] && *shape != [input, output] {
                return refuse(format!("its `{name}` is [{output}, {input}], that of the model {shape:?}"));
            }
            let rank = module.rank();
            if rank > input.max(output) {
                return refuse(format!("its `{name}` has the rank {rank}, more than the matrix has rows or columns"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
