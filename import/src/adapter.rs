//! Low-rank adapters (LoRA), read from the files that trainers write. An adapter adds to the
//! projections of a model.
//!
//! A projection `y = W x` becomes `y = W x + scale · up(down(x))`. Names of the factors and the
//! scale depend on the format:
//!
//! - GGUF with `general.type` `adapter` (llama.cpp): `NAME.lora_a`, `NAME.lora_b`; the scale is
//!   `adapter.lora.alpha / rank`, or 1 if that key is 0.
//! - Safetensors with `adapter_config.json` (PEFT): `NAME.lora_A.weight`, `NAME.lora_B.weight`; the
//!   scale is `lora_alpha / rank`, or `lora_alpha / √rank` with `use_rslora`.
//! - The same files by mlx-lm: `NAME.lora_a`, `NAME.lora_b`; the scale is `lora_parameters.scale`.
//!
//! `down` is `[rank, input]` and `up` is `[output, rank]`; mlx-lm stores both transposed. The
//! factors of all experts of a layer are one tensor:
//!
//! - llama.cpp, mlx-lm: `down` is `[experts, rank, input]`, `up` is `[experts, output, rank]`.
//! - PEFT, for `target_parameters`: `down` is `[experts · rank, input]`, `up` is
//!   `[output, rank · experts]`; column `r · experts + e` belongs to expert `e`.
//! - PEFT before 0.19, for parameters `[experts, output, input]`: `down` is the transpose of `up`,
//!   `[experts · rank, output]`, and `up` is the transpose of `down`, `[input, rank · experts]`.
//!
//! Sources: `convert_lora_to_gguf.py` and `llama-adapter.cpp` of llama.cpp; `LoraConfig`,
//! `get_pattern_key` and `ParamWrapper` of PEFT; `tuner/lora.py` and `tuner/utils.py` of mlx-lm.
//!
//! An adapter is stored as its source files and not as one blob per tensor. All of its numbers
//! change with every training step, so separate tensors would never be shared between models.

mod fit;
mod gguf;
mod pairs;
mod parameters;
mod safetensors;

use std::collections::{BTreeMap, BTreeSet};

pub use fit::{Fitted, ProjectionIndex};

use architectures::HeadLayout;

use crate::inventory::begins_with;
use crate::{Error, NamedFile, StoredTensor, relative_name};

/// Name of the config file of a safetensors adapter.
const CONFIG: &str = "adapter_config.json";
/// Folder of adapter files in a model; each adapter has a numbered folder below it.
const FOLDER: &str = "adapters/";
/// Canonical name of the token embedding. It is a table lookup and not a product, so a low-rank
/// product cannot be added to it.
const EMBEDDING: &str = "model.embed_tokens";

/// A low-rank adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Name of the file with the adapter's tensors.
    pub name: String,
    /// Architecture of the base model, as GGUF names it; `None` if the files do not state it.
    pub architecture: Option<String>,
    /// Layout of heads in `up` of q and k; `None` if it is the layout of the model's folder.
    pub layout: Option<HeadLayout>,
    /// Adapted modules, sorted by name.
    pub modules: Vec<AdaptedModule>,
}

/// Factors that an adapter adds to one projection.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptedModule {
    /// Canonical name of the projection's weight, without `.weight`.
    pub name: String,
    /// `[rank, input]`, or `[input, rank]` if transposed; for experts see [`FactorOwner`].
    pub down: StoredTensor,
    /// `[output, rank]`, or `[rank, output]` if transposed; for experts see [`FactorOwner`].
    pub up: StoredTensor,
    /// Whether both factors are stored transposed.
    pub transposed: bool,
    /// Projection or experts to which the factors belong.
    pub owner: FactorOwner,
    /// Factor of the low-rank product.
    pub scale: f64,
}

/// Projection or experts to which the two tensors of a module belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactorOwner {
    /// One projection.
    Projection,
    /// All experts of a layer, with the expert as the first dimension: `[experts, rank, input]` and
    /// `[experts, output, rank]`.
    Stack,
    /// Several experts, joined as PEFT does: `[experts · rank, input]` and
    /// `[output, rank · experts]`; column `r · experts + e` belongs to expert `e`.
    Joined {
        /// Number of experts.
        experts: u64,
        /// True if PEFT before 0.19 wrote the factors. It takes the first dimension of each
        /// expert's parameter for its inputs.
        is_old: bool,
    },
}

impl AdaptedModule {
    /// Returns the rank: the number of elements between the two products.
    fn rank(&self) -> u64 {
        match self.owner {
            FactorOwner::Projection => self.down.shape[usize::from(self.transposed)],
            FactorOwner::Stack => self.down.shape[1],
            FactorOwner::Joined { experts, .. } => self.down.shape[0] / experts,
        }
    }

    /// Returns the numbers of input and output elements.
    fn sizes(&self) -> (u64, u64) {
        let (down, up) = (&self.down.shape, &self.up.shape);
        match self.owner {
            FactorOwner::Projection if self.transposed => (down[0], up[1]),
            FactorOwner::Projection | FactorOwner::Joined { .. } => (down[1], up[0]),
            FactorOwner::Stack => (down[2], up[1]),
        }
    }

    /// Returns the number of experts; `None` for a single projection.
    fn experts(&self) -> Option<u64> {
        match self.owner {
            FactorOwner::Projection => None,
            FactorOwner::Stack => Some(self.down.shape[0]),
            FactorOwner::Joined { experts, .. } => Some(experts),
        }
    }
}

/// Reads adapters. Each GGUF file is an adapter; the other files of a folder form one adapter. The
/// files are blobs, so each has a digest.
///
/// # Errors
/// [`Error::Source`] if the files are not an adapter, or the adapter does more than add to
/// projections; [`Error::Format`] and [`Error::Io`] if a file cannot be read.
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

/// Groups the files by folder.
fn folders(files: &[NamedFile]) -> BTreeMap<&str, Vec<&NamedFile>> {
    let mut folders: BTreeMap<&str, Vec<&NamedFile>> = BTreeMap::new();
    for file in files {
        folders.entry(split(&file.name).0).or_default().push(file);
    }
    folders
}

/// Separates the files of adapters (second list) from the files of the model (first list): an
/// export writes them to separate folders.
pub fn split_adapters(files: Vec<NamedFile>) -> (Vec<NamedFile>, Vec<NamedFile>) {
    files.into_iter().partition(|file| number(&file.name).is_none())
}

/// Returns the files that define an adapter. Trainers put tokenizers and notes into the same
/// folder, and clients send whole folders.
///
/// # Errors
/// [`Error::Source`] if there are files, but none of them defines an adapter; [`Error::Io`] if a
/// file cannot be read.
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
        return Err(Error::Source(format!("no adapter found in `{first}` or in the files next to it; {expected}")));
    }
    Ok(wanted)
}

/// Returns the number of the adapter to which a file of a model belongs.
fn number(name: &str) -> Option<usize> {
    name.strip_prefix(FOLDER)?.split_once('/')?.0.parse().ok()
}

/// Returns the names of adapter files in a model, in the order of the files. Each source folder
/// gets a folder `adapters/N`, with numbers after the ones in `taken`.
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

/// Splits a path into folder and file name.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn has_extension(name: &str, extension: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, own)| own.eq_ignore_ascii_case(extension))
}

#[cfg(test)]
mod tests;
