//! The difference between two models, tensor by tensor.

mod numbers;

use std::collections::{BTreeMap, HashSet};

use content::ensure;
use content::operation::{Context, Result};
use content::{Amount, Digest, Observer};
use formats::Encoding;
use import::{ReadAt, StoredPart, StoredTensor};
use library::{Library, Model, ensure_wanted, layer_name};
use manifests::media_types;

use crate::values::sampled;

/// Bytes of a tensor that are in memory at a time.
const PIECE: u64 = 1 << 20;

/// How two models differ.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diff {
    /// Layers other than tensors, and the config, if they differ.
    pub layers: Vec<LayerDiff>,
    /// Tensors that differ.
    pub tensors: Vec<TensorDiff>,
    /// Number of equal tensors.
    pub equal_tensors: u64,
    /// Number of blobs that only the second model has.
    pub added_blobs: u64,
    /// Bytes of these blobs.
    pub added_bytes: u64,
}

/// A layer that differs. `None` means that the model has no layer of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerDiff {
    /// Name of the layer, or its kind if it has no name.
    pub name: String,
    /// In the first model.
    pub a: Option<Digest>,
    /// In the second.
    pub b: Option<Digest>,
}

/// A tensor that differs. `None` means that the model has no tensor of this name.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDiff {
    /// Its name.
    pub name: String,
    /// In the first model.
    pub a: Option<TensorSide>,
    /// In the second.
    pub b: Option<TensorSide>,
    /// Numeric difference, if it was requested and both models have the tensor.
    pub values: Option<ValueDiff>,
}

/// A tensor of one of the two models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSide {
    /// Encoding of the values.
    pub encoding: Encoding,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Bytes of all arrays of the tensor.
    pub size: u64,
}

/// The numeric difference of two tensors.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueDiff {
    /// The values were compared: all of them, or about a million if one of the tensors is
    /// quantized, from the same rows of both.
    Computed {
        /// Number of compared pairs.
        compared: u64,
        /// Largest absolute difference.
        max: f64,
        /// Root mean square of the differences.
        rms: f64,
        /// Number of pairs that differ and contain a value that is not finite.
        not_finite: u64,
    },
    /// The values cannot be compared, and why.
    NotAvailable(String),
}

/// Compares two models. If `values` is true, tensors whose bytes differ are also compared
/// numerically.
///
/// # Errors
/// A blob cannot be read, or the caller has canceled.
pub fn diff(library: &Library, a: &Model, b: &Model, values: bool, observer: &dyn Observer) -> Result<Diff> {
    let Amount { blobs: added_blobs, bytes: added_bytes } = added(library, a, b)?;
    let mut diff = Diff { layers: layers(a, b), added_blobs, added_bytes, ..Diff::default() };
    for (name, (left, right)) in paired(library, a, b)? {
        ensure_wanted(observer)?;
        if let (Some(left), Some(right)) = (&left, &right)
            && equal(library, left, right).with_context(|| format!("tensor `{name}`"))?
        {
            diff.equal_tensors += 1;
            continue;
        }
        let values = match (&left, &right) {
            (Some(left), Some(right)) if values => Some(compare(library, left, right)?),
            _ => None,
        };
        diff.tensors.push(TensorDiff { name, a: left.as_ref().map(side), b: right.as_ref().map(side), values });
    }
    Ok(diff)
}

type Pair = (Option<StoredTensor>, Option<StoredTensor>);

/// Returns the tensors of both models by name.
fn paired(library: &Library, a: &Model, b: &Model) -> Result<BTreeMap<String, Pair>> {
    let mut pairs: BTreeMap<String, Pair> = BTreeMap::new();
    for tensor in library.catalogue(&a.manifest)? {
        let pair = pairs.entry(tensor.name.clone()).or_default();
        pair.0 = Some(tensor);
    }
    for tensor in library.catalogue(&b.manifest)? {
        let pair = pairs.entry(tensor.name.clone()).or_default();
        pair.1 = Some(tensor);
    }
    Ok(pairs)
}

fn side(tensor: &StoredTensor) -> TensorSide {
    TensorSide { encoding: tensor.encoding, shape: tensor.shape.clone(), size: tensor.size() }
}

/// Returns the blobs that only `b` has.
fn added(library: &Library, a: &Model, b: &Model) -> Result<Amount> {
    let there: HashSet<Digest> =
        library.needs(a.manifest.digest())?.into_iter().map(|need| need.descriptor.digest).collect();
    let new = library.needs(b.manifest.digest())?.into_iter().map(|need| need.descriptor);
    let new = new.filter(|descriptor| !there.contains(&descriptor.digest));
    Ok(new.map(|descriptor| Amount::of_blob(descriptor.size)).sum())
}

/// Returns the layers other than tensors, and the config, if they differ.
fn layers(a: &Model, b: &Model) -> Vec<LayerDiff> {
    let named = |model: &Model| {
        let mut layers = BTreeMap::from([("config".to_owned(), model.manifest.config().digest)]);
        for layer in model.manifest.layers().iter().filter(|layer| *layer.media_type() != media_types::TENSOR) {
            let name = layer_name(layer);
            // Licenses, for instance, can occur several times and have no names.
            let free = (2..).map(|n| format!("{name} {n}"));
            let name = [name.clone()].into_iter().chain(free).find(|name| !layers.contains_key(name));
            layers.extend(name.map(|name| (name, *layer.digest())));
        }
        layers
    };
    let (left, right) = (named(a), named(b));
    let names: std::collections::BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let differ = names.into_iter().filter(|name| left.get(*name) != right.get(*name));
    differ
        .map(|name| LayerDiff { name: name.clone(), a: left.get(name).copied(), b: right.get(name).copied() })
        .collect()
}

/// Whether two tensors have the same encoding, shape and bytes in all arrays.
fn equal(library: &Library, a: &StoredTensor, b: &StoredTensor) -> Result<bool> {
    if (a.encoding, &a.shape, a.parts.len()) != (b.encoding, &b.shape, b.parts.len()) {
        return Ok(false);
    }
    for (left, right) in a.parts.iter().zip(&b.parts) {
        if !equal_bytes(library, left, right)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn equal_bytes(library: &Library, a: &StoredPart, b: &StoredPart) -> Result<bool> {
    if (a.role, a.dtype, a.size) != (b.role, b.dtype, b.size) {
        return Ok(false);
    }
    if (&a.blob, a.offset) == (&b.blob, b.offset) {
        return Ok(true);
    }
    // The blobs differ, but possibly only because another tensor of the same group does.
    let (left, right) = (library.open(&a.blob), library.open(&b.blob));
    let mut at = 0;
    while at < a.size {
        let length = PIECE.min(a.size - at);
        if piece(&*left, a, at, length)? != piece(&*right, b, at, length)? {
            return Ok(false);
        }
        at += length;
    }
    Ok(true)
}

/// Compares the values of two tensors. If one is quantized, a sample of about a million values is
/// decoded and compared.
fn compare(library: &Library, a: &StoredTensor, b: &StoredTensor) -> Result<ValueDiff> {
    let not = |reason: &str| Ok(ValueDiff::NotAvailable(reason.to_owned()));
    if a.shape != b.shape {
        return not("the shapes differ");
    }
    let (Encoding::Plain(left), Encoding::Plain(right)) = (a.encoding, b.encoding) else {
        return match (sampled(library, a)?, sampled(library, b)?) {
            (Some(a), Some(b)) => {
                let mut sum = numbers::Difference::default();
                a.into_iter().zip(b).for_each(|(x, y)| sum.add(x.into(), y.into()));
                Ok(computed(&sum))
            }
            _ => not("numbers of this type are not read"),
        };
    };
    let (Some(left), Some(right)) = (numbers::decoder(left), numbers::decoder(right)) else {
        return not("numbers of this type are not read");
    };
    // A plain tensor consists of one array.
    let (name, a, b) = (&a.name, &a.parts[0], &b.parts[0]);
    let (left_file, right_file) = (library.open(&a.blob), library.open(&b.blob));
    let (count, step) = (a.size / left.bytes, PIECE / left.bytes.max(right.bytes));
    ensure!(b.size / right.bytes == count, "tensor `{name}`: sizes and shapes do not agree");
    let mut sum = numbers::Difference::default();
    let mut at = 0;
    while at < count {
        let length = step.min(count - at);
        let left_piece = piece(&*left_file, a, at * left.bytes, length * left.bytes)?;
        let right_piece = piece(&*right_file, b, at * right.bytes, length * right.bytes)?;
        for (x, y) in left.numbers(&left_piece).zip(right.numbers(&right_piece)) {
            sum.add(x, y);
        }
        at += length;
    }
    Ok(computed(&sum))
}

fn computed(sum: &numbers::Difference) -> ValueDiff {
    ValueDiff::Computed { compared: sum.compared(), max: sum.max, rms: sum.rms(), not_finite: sum.not_finite }
}

fn piece(blob: &dyn ReadAt, array: &StoredPart, at: u64, length: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    blob.read_exact_at(&mut bytes, array.offset + at).with_context(|| {
        format!("blob `{}` is missing, or shorter than its header says; run `lode fsck`", array.blob)
    })?;
    Ok(bytes)
}
