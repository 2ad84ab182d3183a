//! Inventory: all facts from the headers of a source, which are read once.

mod gguf;
mod mlx;
mod model_opt;
mod safetensors;
mod sentence_modules;
mod weights;

use std::sync::Arc;

use formats::encoding::Role;
use formats::{Dtype, Encoding};

use crate::{Error, NamedFile, ReadAt};
pub(crate) use gguf::read_header as read_gguf_header;
pub use gguf::{is_projector, is_projector_header};
pub use safetensors::is_spare;
pub(crate) use safetensors::{read_document, shard_facts};

/// Name of the safetensors file of a model, or of a module, that is not split into shards.
const WHOLE: &str = "model.safetensors";

/// Format of a model's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceFormat {
    /// One GGUF file, or all files of a split.
    Gguf,
    /// A folder with safetensors files.
    HuggingFace,
    /// A folder with safetensors files and weights that MLX quantized.
    Mlx,
}

impl SourceFormat {
    /// Returns the name in configs and origin documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gguf => "gguf",
            Self::HuggingFace => "huggingface",
            Self::Mlx => "mlx",
        }
    }
}

/// Facts about a source. Later steps never read its headers again.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// Format of the files.
    pub format: SourceFormat,
    /// Files with tensors.
    pub files: Vec<SourceFile>,
    /// Tensors of all files, in the order of their bytes.
    pub tensors: Vec<SourceTensor>,
    /// Files without tensors, sorted by name.
    pub side_files: Vec<SideFile>,
    /// Architecture as the source names it; empty if unknown.
    pub architecture: String,
    /// Note for the user if the weights are stored in another form than in the source.
    pub note: Option<String>,
}

/// File with tensors.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Name in the model.
    pub name: String,
    /// Source of the bytes.
    pub source: Arc<dyn ReadAt>,
    /// Length in bytes.
    pub size: u64,
    /// Length of the header in bytes, including the padding after it.
    pub header: u64,
    /// Prefix of its tensors' names in the model: the folder of a module of sentence-transformers
    /// and a dot, because the files of several modules have the same names. Empty for other files.
    pub prefix: String,
}

/// File without tensors.
#[derive(Clone, Debug)]
pub struct SideFile {
    /// Name in the model.
    pub name: String,
    /// Source of the bytes.
    pub source: Arc<dyn ReadAt>,
    /// Length in bytes.
    pub size: u64,
}

/// Blob into which an array of a weight is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// A blob under the array's name, as for an ordinary tensor.
    Own,
    /// The blob of its weight, under the weight's name with the suffix of [`Role::suffix`].
    Weight,
}

/// Tensor in a file: a weight, an array of a weight, or other data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTensor {
    /// Name in the model: the file's prefix and the name in the file.
    pub name: String,
    /// Position in [`Inventory::files`].
    pub file: usize,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
    /// Dtype in the header of the blob. The file may have another dtype for the same bytes.
    pub dtype: Dtype,
    /// Dimensions in the header of the blob, outermost first.
    pub dims: Vec<u64>,
    /// Name of the weight to which the array belongs; the tensor's own name if it is not part of
    /// another weight.
    pub weight: String,
    /// Role of the array in its weight.
    pub role: Role,
    /// Blob into which the array is written.
    pub home: Home,
    /// Encoding of the weight's numbers.
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
            // A single file is recognized by its first bytes, regardless of its name.
            [file] if begins_with(file, *b"GGUF")? => gguf::inventory(&[file]),
            _ => Err(missing_weights("the model", files)),
        },
    }
}

/// Returns files of weights that are not part of the imported model, such as a second projector,
/// another variant, an adapter, or a training state.
pub fn unused_weights<'a>(files: &'a [NamedFile], inventory: &Inventory) -> Vec<&'a NamedFile> {
    let is_used = |file: &NamedFile| inventory.files.iter().any(|used| used.name == file.name);
    files.iter().filter(|file| (is(file, ".gguf") || is(file, ".safetensors")) && !is_used(file)).collect()
}

/// True if the files contain weights. Checks names, or the first bytes if there is a single file.
pub(crate) fn has_weights(files: &[NamedFile]) -> bool {
    match files {
        [file] if begins_with(file, *b"GGUF").unwrap_or(false) => true,
        _ => files.iter().any(|file| is(file, ".gguf") || is(file, ".safetensors")),
    }
}

fn is(file: &NamedFile, suffix: &str) -> bool {
    file.name.to_ascii_lowercase().ends_with(suffix)
}

/// Returns the error for files that are not a model; its text names the files that were found.
/// `place` describes their location.
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

/// Refuses a pointer file, which Git LFS checks out instead of a large file.
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

/// Returns the length of a file in bytes.
fn size(file: &NamedFile) -> Result<u64, Error> {
    // The size of a file is known only after it was opened.
    file.source.read_exact_at(&mut [], 0).map_err(|e| Error::io("open", file.source.name(), e))?;
    Ok(file.source.size())
}

fn read_at(file: &NamedFile, offset: u64, length: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; length as usize];
    file.source.read_exact_at(&mut bytes, offset).map_err(|e| Error::io("read", file.source.name(), e))?;
    Ok(bytes)
}
