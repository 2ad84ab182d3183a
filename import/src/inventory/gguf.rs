//! Inventory of a GGUF file, or of all files of a split.

use std::sync::Arc;

use formats::encoding::Role;
use formats::gguf::{Endian, TensorInfo};
use formats::{Dtype, Encoding, Gguf};

use super::{Home, Inventory, SourceFile, SourceFormat, SourceTensor, read_at, size};
use crate::locate::Split;
use crate::ollama_mxfp4;
use crate::{Error, MAX_GGUF_HEADER, NamedFile};

/// Number of bytes of the first read, which usually contains the header, and the factor by which
/// the read grows if it does not.
const FIRST_READ: u64 = 256 << 10;
const GROWTH: u64 = 4;

pub(super) fn inventory(files: &[&NamedFile]) -> Result<Inventory, Error> {
    let (models, projector) = split_projectors(files)?;
    let mut inventory: Option<Inventory> = None;
    // The model is first: its header describes the whole.
    for (position, file) in in_order(&models)?.into_iter().chain(projector).enumerate() {
        let part = read_header(file, position, |gguf, file, tensors, size| Ok(facts(gguf, file, tensors, size)))?;
        match &mut inventory {
            None => inventory = Some(part),
            Some(all) => {
                all.files.extend(part.files);
                all.tensors.extend(part.tensors);
                all.note = all.note.take().or(part.note);
            }
        }
    }
    inventory.ok_or_else(|| Error::Source("there is no GGUF file".to_owned()))
}

/// Architecture of projectors, as llama.cpp calls it.
const PROJECTOR: &str = "clip";

/// `general.file_type` of projectors, the preferred one first: most towers were published in 16
/// bits, and F16 is what other programs load.
const PREFERRED: [u64; 4] = [1, 32, 0, 7];

/// Returns the files of the model, and the preferred projector for pictures among the others.
/// A projector alone is returned as a model, which is refused by its architecture.
fn split_projectors<'a>(files: &[&'a NamedFile]) -> Result<(Vec<&'a NamedFile>, Option<&'a NamedFile>), Error> {
    if files.len() < 2 {
        return Ok((files.to_vec(), None));
    }
    let (mut models, mut projectors) = (Vec::new(), Vec::new());
    for file in files {
        match read_header(file, 0, |gguf, _, _, _| Ok(projector_rank(gguf)))? {
            // By its name, it is a projector of a kind that is not known.
            None if file.name.to_ascii_lowercase().contains("mmproj") => {}
            None => models.push(*file),
            Some(ProjectorRank::Sounds) => {}
            Some(ProjectorRank::Pictures(rank)) => projectors.push((rank, *file)),
        }
    }
    if models.is_empty() {
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        return Err(Error::Source(format!(
            "`{}` are projectors; the model that they belong to is missing",
            names.join("`, `")
        )));
    }
    let projector = projectors.into_iter().min_by_key(|(rank, file)| (*rank, file.name.clone()));
    Ok((models, projector.map(|(_, file)| file)))
}

/// Inputs that a projector converts, and its place in the order of preference.
enum ProjectorRank {
    Pictures(usize),
    Sounds,
}

/// Returns `None` for a file that is not a projector.
fn projector_rank(gguf: &Gguf<'_>) -> Option<ProjectorRank> {
    if !is_projector_header(gguf) {
        return None;
    }
    if gguf.flag("clip.has_vision_encoder") == Some(false) {
        return Some(ProjectorRank::Sounds);
    }
    let kind = gguf.unsigned("general.file_type");
    let rank = PREFERRED.iter().position(|own| Some(*own) == kind).unwrap_or(PREFERRED.len());
    Some(ProjectorRank::Pictures(rank))
}

/// True if this is the header of a projector.
pub fn is_projector_header(gguf: &Gguf<'_>) -> bool {
    gguf.text("general.architecture") == Some(PROJECTOR)
}

/// True if a GGUF file is a projector, which converts images or sounds to the model's inputs.
///
/// # Errors
/// The file cannot be read.
pub fn is_projector(file: &NamedFile) -> Result<bool, Error> {
    if !super::begins_with(file, *b"GGUF")? {
        return Ok(false);
    }
    read_header(file, 0, |gguf, _, _, _| Ok(projector_rank(gguf).is_some()))
}

/// Returns one file, or all files of one split in order.
fn in_order<'a>(files: &[&'a NamedFile]) -> Result<Vec<&'a NamedFile>, Error> {
    if let [file] = files {
        return match Split::parse(&file.name) {
            Some(split) if split.count > 1 => {
                let (name, count) = (&file.name, split.count);
                Err(Error::Source(format!("`{name}` is one of {count} files of a split; the others are missing")))
            }
            _ => Ok(vec![file]),
        };
    }
    let several =
        || Error::Source("there are several GGUF files that are not one split; name the one to import".to_owned());
    let first = Split::parse(&files[0].name).ok_or_else(several)?;
    if files.len() > first.count as usize {
        return Err(several());
    }
    (1..=first.count)
        .map(|number| {
            let name = first.name(number);
            let found = files.iter().find(|file| file.name == name);
            found.copied().ok_or_else(|| Error::Source(format!("`{name}` of the split is missing")))
        })
        .collect()
}

/// Reads a file's header and passes it to `each`, with the tensors in the order of their bytes. If
/// blocks have to be converted, the file that `each` gets is a converted view of the source.
pub(crate) fn read_header<T>(
    named: &NamedFile,
    position: usize,
    each: impl FnOnce(&Gguf<'_>, &NamedFile, Vec<SourceTensor>, u64) -> Result<T, Error>,
) -> Result<T, Error> {
    let size = size(named)?;
    let mut length = FIRST_READ.min(size);
    let mut bytes = Vec::new();
    loop {
        // Bytes that were read before are not read again: the file may be remote.
        bytes.extend(read_at(named, bytes.len() as u64, length - bytes.len() as u64)?);
        match Gguf::parse_header(&bytes) {
            Ok(gguf) => {
                gguf.check_extents(size).map_err(|e| Error::format(named.source.name(), e))?;
                let tensors = tensors(&gguf, named, position)?;
                let converted = ollama_mxfp4::converted(&gguf, named);
                return each(&gguf, converted.as_ref().unwrap_or(named), tensors, size);
            }
            // A truncated header and a short read give the same error. Other errors do not go away
            // with more bytes.
            Err(formats::Error::Truncated { .. }) if length < size.min(MAX_GGUF_HEADER) => {
                length = length.saturating_mul(GROWTH).min(size).min(MAX_GGUF_HEADER);
            }
            Err(error) => return Err(Error::format(named.source.name(), error)),
        }
    }
}

fn tensors(gguf: &Gguf<'_>, named: &NamedFile, position: usize) -> Result<Vec<SourceTensor>, Error> {
    refuse_big_endian(gguf, named)?;
    let tensors = gguf.tensors.iter().map(|tensor| source_tensor(gguf, named, position, tensor));
    let mut tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    tensors.sort_by_key(|tensor| (tensor.offset, tensor.size));
    Ok(tensors)
}

fn facts(gguf: &Gguf<'_>, named: &NamedFile, tensors: Vec<SourceTensor>, size: u64) -> Inventory {
    let file = SourceFile {
        name: named.name.clone(),
        source: Arc::clone(&named.source),
        size,
        // A file without tensors may end before its data section would start.
        header: gguf.data_start.min(size),
        prefix: String::new(),
    };
    let is_converted = gguf.tensors.iter().any(|tensor| tensor.ollama_mxfp4_at.is_some());
    Inventory {
        format: SourceFormat::Gguf,
        files: vec![file],
        tensors,
        side_files: Vec::new(),
        architecture: gguf.text("general.architecture").unwrap_or_default().to_owned(),
        note: is_converted.then(|| ollama_mxfp4::NOTE.to_owned()),
    }
}

/// Returns the source tensor. Blocks are written as rows of bytes, plain types as they are.
fn source_tensor(
    gguf: &Gguf<'_>,
    named: &NamedFile,
    position: usize,
    tensor: &TensorInfo<'_>,
) -> Result<SourceTensor, Error> {
    let refuse = |reason: &str| Err(Error::Source(format!("`{}` has a tensor {reason}", named.source.name())));
    if tensor.name.is_empty() {
        return refuse("without a name");
    }
    let shape = tensor.shape();
    let encoding = tensor.kind.dtype().map_or(Encoding::Blocks(tensor.kind), Encoding::Plain);
    let Ok(parts) = encoding.parts(&shape, Dtype::F32) else {
        return refuse(&format!("`{}` whose shape {shape:?} is not one of {encoding}", tensor.name));
    };
    let [part] = parts.as_slice() else { return refuse("of several arrays") };
    Ok(SourceTensor {
        name: tensor.name.to_owned(),
        file: position,
        offset: gguf.data_start + tensor.offset,
        size: tensor.size,
        dtype: part.dtype,
        dims: part.shape.clone(),
        weight: tensor.name.to_owned(),
        role: Role::Weight,
        home: Home::Own,
        encoding,
        shape,
    })
}

fn refuse_big_endian(gguf: &Gguf<'_>, named: &NamedFile) -> Result<(), Error> {
    if gguf.endian == Endian::Big {
        let name = named.source.name();
        return Err(Error::Source(format!(
            "`{name}` is big-endian, its tensors too; convert it first, e.g. with gguf-py's gguf_convert_endian.py"
        )));
    }
    Ok(())
}
