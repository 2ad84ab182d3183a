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
//! `down` is `[rank, input]` and `up` is `[output, rank]`; mlx-lm stores both the other way round. Those of all experts of a layer are
//! one tensor:
//!
//! | by | `down` | `up` |
//! |---|---|---|
//! | llama.cpp, mlx-lm | `[experts, rank, input]` | `[experts, output, rank]` |
//! | PEFT, for `target_parameters` | `[experts · rank, input]` | `[output, rank · experts]`; column `r · experts + e` is of expert `e` |
//! | PEFT before 0.19, for parameters `[experts, output, input]` | the transpose of `up`, `[experts · rank, output]` | the transpose of `down`, `[input, rank · experts]` |
//!
//! Sources: `convert_lora_to_gguf.py` and `llama-adapter.cpp` of llama.cpp; `LoraConfig`, `get_pattern_key` and `ParamWrapper` of
//! PEFT; `tuner/lora.py` and `tuner/utils.py` of mlx-lm.
//!
//! An adapter is kept as the files it came in. All of its numbers change with every training step, so tensors of their own
//! would be shared by nobody.

mod fit;
mod gguf;
mod pairs;
mod parameters;
mod safetensors;

use std::collections::{BTreeMap, BTreeSet};

pub use fit::{Fitted, Places};

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
    /// The layout of heads that `up` of q and k has; `None` where it is that of the model's folder.
    pub layout: Option<HeadLayout>,
    /// What it adds, sorted by the names of the modules.
    pub modules: Vec<AdaptedModule>,
}

/// What an adapter adds to one projection.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptedModule {
    /// The canonical name of the projection's weight, without `.weight`.
    pub name: String,
    /// `[rank, input]`, or `[input, rank]` where it is transposed; for experts see [`FactorOwner`].
    pub down: StoredTensor,
    /// `[output, rank]`, or `[rank, output]` where it is transposed; for experts see [`FactorOwner`].
    pub up: StoredTensor,
    /// Both are stored the other way round.
    pub transposed: bool,
    /// Whose they are.
    pub owner: FactorOwner,
    /// What the product is multiplied by.
    pub scale: f64,
}

/// Whose factors the two tensors of a module have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactorOwner {
    /// One projection's.
    Projection,
    /// All experts' of a layer, the number of the expert first: `[experts, rank, input]`, `[experts, output, rank]`.
    Stack,
    /// Those of so many experts as PEFT joins them: `[experts · rank, input]`, `[output, rank · experts]`; column `r · experts + e` is
    /// of expert `e`.
    Joined {
        /// How many.
        experts: u64,
        /// PEFT before 0.19 has written them, which takes the first size of each expert's parameter for its inputs.
        is_old: bool,
    },
}

impl AdaptedModule {
    /// Elements between the two products.
    fn rank(&self) -> u64 {
        match self.owner {
            FactorOwner::Projection => self.down.shape[usize::from(self.transposed)],
            FactorOwner::Stack => self.down.shape[1],
            FactorOwner::Joined { experts, .. } => self.down.shape[0] / experts,
        }
    }

    /// Elements that go in and elements that come out.
    fn sizes(&self) -> (u64, u64) {
        let (down, up) = (&self.down.shape, &self.up.shape);
        match self.owner {
            FactorOwner::Projection if self.transposed => (down[0], up[1]),
            FactorOwner::Projection | FactorOwner::Joined { .. } => (down[1], up[0]),
            FactorOwner::Stack => (down[2], up[1]),
        }
    }

    /// How many experts it has factors for.
    fn experts(&self) -> Option<u64> {
        match self.owner {
            FactorOwner::Projection => None,
            FactorOwner::Stack => Some(self.down.shape[0]),
            FactorOwner::Joined { experts, .. } => Some(experts),
        }
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

#[cfg(test)]
mod tests;
