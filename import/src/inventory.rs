//! The inventory: everything that is read of a source's headers, read once.

mod gguf;
mod mlx;
mod model_opt;
mod safetensors;
mod weights;

use std::sync::Arc;

use formats::encoding::Role;
use formats::{Dtype, Encoding};

use crate::{Error, NamedFile, ReadAt};
pub use gguf::is_projector;
pub(crate) use gguf::read_header as read_gguf_header;
pub use safetensors::is_spare;
pub(crate) use safetensors::{read_document, shard_facts};

/// What kind of files a model came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceFormat {
    /// One GGUF file, or several of a split.
    Gguf,
    /// A folder with safetensors files.
    HuggingFace,
    /// The same, with weights that MLX quantized.
    Mlx,
}

impl SourceFormat {
    /// The name in configs and origin documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gguf => "gguf",
            Self::HuggingFace => "huggingface",
            Self::Mlx => "mlx",
        }
    }
}

/// The facts about a source. Later steps never open its headers again.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// What kind of files.
    pub format: SourceFormat,
    /// The files with tensors.
    pub files: Vec<SourceFile>,
    /// The tensors of all files, in the order of their bytes.
    pub tensors: Vec<SourceTensor>,
    /// Files without tensors, sorted by name.
    pub side_files: Vec<SideFile>,
    /// As the source names it; empty where it does not.
    pub architecture: String,
    /// What people are told of how the source's weights are stored, where that is not as they were.
    pub note: Option<String>,
}

/// A file with tensors.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// The name in the model.
    pub name: String,
    /// Where the bytes are.
    pub source: Arc<dyn ReadAt>,
    /// Length in bytes.
    pub size: u64,
    /// Length of the header in bytes, the padding after it included.
    pub header: u64,
}

/// A file without tensors.
#[derive(Clone, Debug)]
pub struct SideFile {
    /// The name in the model.
    pub name: String,
    /// Where the bytes are.
    pub source: Arc<dyn ReadAt>,
    /// Length in bytes.
    pub size: u64,
}

/// Where an array of a weight goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Under its own name, as if it were a tensor like any other.
    Own,
    /// Into the blob of its weight, under the weight's name and what [`Role::suffix`] says.
    Weight,
}

/// A tensor in a file: a weight, an array of one, or anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTensor {
    /// The name in the file.
    pub name: String,
    /// Position in [`Inventory::files`].
    pub file: usize,
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
    /// Element type as a blob's header will have it; the same bytes may have another one in the file.
    pub dtype: Dtype,
    /// Dimensions as a blob's header will have them, outermost first.
    pub dims: Vec<u64>,
    /// The weight that it is an array of; its own name where it stands for itself.
    pub weight: String,
    /// What it is of the weight.
    pub role: Role,
    /// Where it goes.
    pub home: Home,
    /// How the weight's numbers are encoded.
    pub encoding: Encoding,
    /// Logical dimensions of the weight, outermost first.
    pub shape: Vec<u64>,
}

/// Reads the headers of a model's files.
pub fn inventory(files: &[NamedFile]) -> Result<Inventory, Error> {
    files.iter().try_for_each(refuse_pointer)?;
    let gguf: Vec<&NamedFile> = files.iter().filter(|file| is(file, ".gguf")).collect();
    let tensors: Vec<&NamedFile> = files.iter().filter(|file| is(file, ".safetensors")).collect();
    match (gguf.is_empty(), tensors.is_empty()) {
        (false, true) => gguf::inventory(&gguf),
        (true, false) => safetensors::inventory(files, &tensors),
        (false, false) => {
            Err(Error::Source("there are GGUF and safetensors files side by side; name the one to import".to_owned()))
        }
        (true, true) => match files {
            // A single file is told by its first bytes, whatever it is called.
            [file] if begins_with(file, *b"GGUF")? => gguf::inventory(&[file]),
            _ => Err(missing_weights("the model", files)),
        },
    }
}

/// Files of weights that are no part of the model that was read of the same files: a projector for pictures, another variant, an
/// adapter, the state of a training.
pub fn unused_weights<'a>(files: &'a [NamedFile], inventory: &Inventory) -> Vec<&'a NamedFile> {
    let is_used = |file: &NamedFile| inventory.files.iter().any(|used| used.name == file.name);
    files.iter().filter(|file| (is(file, ".gguf") || is(file, ".safetensors")) && !is_used(file)).collect()
}

/// Whether there are weights among files: by their names, or, where there is one file, by its first bytes.
pub(crate) fn has_weights(files: &[NamedFile]) -> bool {
    match files {
        [file] if begins_with(file, *b"GGUF").unwrap_or(false) => true,
        _ => files.iter().any(|file| is(file, ".gguf") || is(file, ".safetensors")),
    }
}

fn is(file: &NamedFile, suffix: &str) -> bool {
    file.name.to_ascii_lowercase().ends_with(suffix)
}

/// Why files are no model, in words that name what is there. `place` is where they are.
pub(crate) fn missing_weights(place: &str, files: &[NamedFile]) -> Error {
    let is_pickle = |file: &&NamedFile| [".bin", ".pt", ".pth", ".ckpt"].iter().any(|end| file.name.ends_with(end));
    let expected = "expected a *.gguf file, or *.safetensors files with their config.json";
    Error::Source(match (files, files.iter().find(is_pickle)) {
        ([], _) => format!("{place} is empty; {expected}"),
        (_, Some(file)) => format!(
            "`{}` is a Python pickle, which may run code and is never opened; take the model's *.safetensors or *.gguf files, \
             or convert it",
            file.name
        ),
        ([file], _) => format!("`{}` has no weights; {expected}", file.source.name()),
        _ => format!("{place} has no weights: no *.gguf and no *.safetensors file; {expected}"),
    })
}

/// Refuses what Git writes in the place of a large file.
fn refuse_pointer(file: &NamedFile) -> Result<(), Error> {
    const BEGINNING: &[u8] = b"version https://git-lfs.github.com/spec/";
    let length = file.source.size();
    let is_pointer = (100..1024).contains(&length) && read_at(file, 0, BEGINNING.len() as u64)? == BEGINNING;
    if is_pointer {
        let name = file.source.name();
        let advice = "run `git lfs pull` in its folder, or download the file";
        return Err(Error::Source(format!("`{name}` is a pointer of Git LFS, not the file itself; {advice}")));
    }
    Ok(())
}

pub(crate) fn begins_with(file: &NamedFile, magic: [u8; 4]) -> Result<bool, Error> {
    Ok(size(file)? >= 4 && read_at(file, 0, 4)? == magic)
}

/// The length of a file in bytes.
fn size(file: &NamedFile) -> Result<u64, Error> {
    // The size of a file that cannot be opened is known to nobody.
    file.source.read_exact_at(&mut [], 0).map_err(|e| Error::io("open", file.source.name(), e))?;
    Ok(file.source.size())
}

fn read_at(file: &NamedFile, offset: u64, length: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; length as usize];
    file.source.read_exact_at(&mut bytes, offset).map_err(|e| Error::io("read", file.source.name(), e))?;
    Ok(bytes)
}
