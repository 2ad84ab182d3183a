//! Plan of an import: the blobs with their names and headers. Pure; does not read files.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use content::MediaType;
use formats::Encoding;
use formats::encoding::Role;
use formats::safetensors::{Member, canonical_header};
use manifests::media_types;

use crate::group::group;
use crate::origin::{Origin, OriginFile, OriginTensor};
use crate::{Error, Home, Inventory, SourceTensor};

/// Everything that an import will write.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Tensor blobs: one for each tensor or expert group.
    pub blobs: Vec<PlannedBlob>,
    /// Layers of headers and side files.
    pub side: Vec<SideLayer>,
    /// Ranges outside of header and tensors. The writer keeps only the ones that are not all zero.
    pub gaps: Vec<Extent>,
    /// Origin document, without the gaps.
    pub origin: Origin,
}

impl Plan {
    /// Returns the bytes of the blobs that cannot stay in the files of the source: the files are
    /// not local, or their weights are converted.
    pub fn bytes_elsewhere(&self, inventory: &Inventory) -> u64 {
        let is_elsewhere = |blob: &&PlannedBlob| {
            let mut files = blob.extents.iter().map(|extent| &inventory.files[extent.file]);
            !files.all(|file| file.source.local().is_some())
        };
        self.blobs.iter().filter(is_elsewhere).map(PlannedBlob::size).sum()
    }
}

/// Range of bytes of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Position in [`Inventory::files`].
    pub file: usize,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub size: u64,
}

/// Tensor blob to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBlob {
    /// Name of the layer: the name of a tensor or a group.
    pub name: String,
    /// Canonical header, including the length before it.
    pub header: Vec<u8>,
    /// Ranges of the source files that follow the header.
    pub extents: Vec<Extent>,
}

impl PlannedBlob {
    /// Returns the length of the blob in bytes.
    pub fn size(&self) -> u64 {
        self.header.len() as u64 + self.source_bytes()
    }

    /// Returns the bytes that are read from files.
    pub(crate) fn source_bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.size).sum()
    }
}

/// Layer that is copied from a file unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideLayer {
    /// Name of the layer.
    pub name: String,
    /// Media type of the layer.
    pub media_type: MediaType,
    /// Source of the bytes.
    pub source: SideSource,
}

/// Source of a side layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideSource {
    /// A range of a file with tensors.
    File(Extent),
    /// A whole side file: its position in [`Inventory::side_files`] and its length in bytes.
    SideFile(usize, u64),
}

/// Plans the import completely.
pub fn plan(inventory: &Inventory) -> Result<Plan, Error> {
    let named = names(inventory)?;
    Ok(Plan {
        blobs: blobs(&named)?,
        side: side_layers(inventory)?,
        gaps: gaps(inventory),
        origin: origin(inventory, &named),
    })
}

struct NamedPart<'a> {
    /// Name in the blob.
    name: String,
    /// Name from which the blob's name is derived: the tensor, or the weight to which it belongs.
    weight: &'a str,
    tensor: &'a SourceTensor,
}

impl<'a> NamedPart<'a> {
    fn new(tensor: &'a SourceTensor) -> Self {
        let (weight, suffix) = match tensor.home {
            Home::Own => (tensor.name.as_str(), ""),
            Home::Weight => (tensor.weight.as_str(), tensor.role.suffix()),
        };
        Self { name: format!("{weight}{suffix}"), weight, tensor }
    }

    fn layer(&self) -> Cow<'a, str> {
        group(self.weight).unwrap_or(Cow::Borrowed(self.weight))
    }

    /// Returns the sort key in a blob: by weight, each followed by its companions.
    fn order(&self) -> (&str, Role) {
        let role = if self.tensor.home == Home::Weight { self.tensor.role } else { Role::Weight };
        (self.weight, role)
    }

    /// True if the blob's metadata states the encoding.
    fn is_labelled(&self) -> bool {
        match self.tensor.encoding {
            Encoding::Plain(_) => false,
            // Arrays that are stored as separate tensors keep their original names and need no
            // label.
            Encoding::Blocks(_) => true,
            _ => self.tensor.home == Home::Weight && self.tensor.role == Role::Weight,
        }
    }
}

/// Returns the tensors with their names in blobs, which must be unique.
fn names(inventory: &Inventory) -> Result<Vec<NamedPart<'_>>, Error> {
    let mut taken = HashMap::new();
    inventory
        .tensors
        .iter()
        .map(|tensor| {
            let named = NamedPart::new(tensor);
            let name = &named.name;
            if name == "__metadata__" {
                return Err(Error::Source(
                    "a tensor is called `__metadata__`, which safetensors blobs cannot express".to_owned(),
                ));
            }
            if let Some(other) = taken.insert(name.clone(), &tensor.name) {
                let own = &tensor.name;
                return Err(Error::Source(format!("tensors `{other}` and `{own}` would both be called `{name}`")));
            }
            Ok(named)
        })
        .collect()
}

/// Returns the blobs in the order in which their first tensor occurs in the source.
fn blobs(named: &[NamedPart<'_>]) -> Result<Vec<PlannedBlob>, Error> {
    let mut order = Vec::new();
    let mut groups: HashMap<Cow<'_, str>, Vec<&NamedPart<'_>>> = HashMap::new();
    for tensor in named {
        let members = groups.entry(tensor.layer()).or_insert_with(|| {
            order.push(tensor.layer());
            Vec::new()
        });
        members.push(tensor);
    }
    let names: HashSet<&str> = named.iter().map(|tensor| tensor.name.as_str()).collect();
    order
        .into_iter()
        .map(|layer| {
            let mut members = groups.remove(&layer).unwrap_or_default();
            if members[0].weight != layer && names.contains(layer.as_ref()) {
                return Err(Error::Source(format!("`{layer}` is the name of a tensor and of a group")));
            }
            members.sort_by(|a, b| a.order().cmp(&b.order()));
            Ok(blob(&layer, &members))
        })
        .collect()
}

fn blob(layer: &str, members: &[&NamedPart<'_>]) -> PlannedBlob {
    let entries: Vec<Member> = members.iter().map(|named| member(named)).collect();
    PlannedBlob {
        name: layer.to_owned(),
        header: canonical_header(&entries, &metadata(members)),
        extents: members.iter().map(|named| extent(named.tensor)).collect(),
    }
}

fn extent(tensor: &SourceTensor) -> Extent {
    Extent { file: tensor.file, offset: tensor.offset, size: tensor.size }
}

fn member(named: &NamedPart<'_>) -> Member {
    let SourceTensor { dtype, dims, size, .. } = named.tensor;
    Member { name: named.name.clone(), dtype: *dtype, shape: dims.clone(), size: *size }
}

/// Returns `quant_type` and `group_size`: for the whole blob if it has one weight, else for each
/// weight.
fn metadata(members: &[&NamedPart<'_>]) -> BTreeMap<String, String> {
    let mut metadata = BTreeMap::new();
    let weights: HashSet<&str> = members.iter().map(|named| named.weight).collect();
    for named in members.iter().filter(|named| named.is_labelled()) {
        let encoding = named.tensor.encoding;
        let prefix = if weights.len() == 1 { String::new() } else { format!("{}.", named.name) };
        metadata.insert(format!("{prefix}quant_type"), encoding.quant_type().unwrap_or_default());
        metadata.insert(format!("{prefix}group_size"), encoding.group_size().to_string());
    }
    metadata
}

fn side_layers(inventory: &Inventory) -> Result<Vec<SideLayer>, Error> {
    let headers = inventory.files.iter().enumerate().map(|(position, file)| SideLayer {
        name: file.name.clone(),
        media_type: media_types::HEADER,
        source: SideSource::File(Extent { file: position, offset: 0, size: file.header }),
    });
    let files = inventory.side_files.iter().enumerate().map(|(position, file)| SideLayer {
        name: file.name.clone(),
        media_type: side_type(&file.name),
        source: SideSource::SideFile(position, file.size),
    });
    let layers: Vec<SideLayer> = headers.chain(files).collect();
    let mut seen = HashSet::new();
    match layers.iter().find(|layer| !seen.insert(layer.name.as_str())) {
        Some(twice) => Err(Error::Source(format!("there are two files called `{}`", twice.name))),
        None => Ok(layers),
    }
}

/// Returns the media type of a side file's layer, by the file's name.
pub fn side_type(name: &str) -> MediaType {
    let upper = name.to_ascii_uppercase();
    if upper.starts_with("LICENSE") || upper.starts_with("LICENCE") {
        media_types::LICENSE
    } else if is_json(name) && !upper.ends_with(".SAFETENSORS.INDEX.JSON") {
        media_types::JSON
    } else {
        media_types::FILE
    }
}

fn is_json(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

/// Returns the ranges between header, tensors and end of each file.
fn gaps(inventory: &Inventory) -> Vec<Extent> {
    let mut gaps = Vec::new();
    for (position, file) in inventory.files.iter().enumerate() {
        let mut at = file.header;
        let mut add = |from: u64, to: u64| {
            if to > from {
                gaps.push(Extent { file: position, offset: from, size: to - from });
            }
        };
        for tensor in inventory.tensors.iter().filter(|tensor| tensor.file == position) {
            add(at, tensor.offset);
            at = at.max(tensor.offset + tensor.size);
        }
        add(at, file.size);
    }
    gaps
}

fn origin(inventory: &Inventory, named: &[NamedPart<'_>]) -> Origin {
    let files = inventory.files.iter().enumerate().map(|(position, file)| OriginFile {
        name: file.name.clone(),
        size: file.size,
        header: file.header,
        tensors: named
            .iter()
            .filter(|named| named.tensor.file == position)
            .map(|named| origin_tensor(named, &file.prefix))
            .collect(),
        gaps: Vec::new(),
    });
    Origin { format: inventory.format.name().to_owned(), files: files.collect() }
}

/// Describes a tensor of a file whose tensors have that prefix in the model.
fn origin_tensor(named: &NamedPart<'_>, prefix: &str) -> OriginTensor {
    let source = named.tensor.name.strip_prefix(prefix).unwrap_or(&named.tensor.name);
    OriginTensor {
        source: Some(source.to_owned()).filter(|source| *source != named.name),
        layer: Some(named.layer().into_owned()).filter(|layer| *layer != named.name),
        name: named.name.clone(),
        offset: named.tensor.offset,
        size: named.tensor.size,
    }
}
