//! The difference of two models, tensor by tensor.

mod numbers;

use std::collections::{BTreeMap, HashSet};

use anyhow::{Context, Result, ensure};
use content::Digest;
use formats::Encoding;
use import::{ReadAt, StoredPart, StoredTensor};
use library::{Library, Model, Observer, ensure_wanted, layer_name};
use manifests::media_types;

use crate::values::sampled;

/// How much of a tensor is in memory at a time, in bytes.
const PIECE: u64 = 1 << 20;

/// How two models differ.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diff {
    /// Layers that are no tensors, and the config, where they differ.
    pub layers: Vec<LayerDiff>,
    /// Tensors that differ.
    pub tensors: Vec<TensorDiff>,
    /// How many tensors are equal.
    pub equal_tensors: u64,
    /// Blobs that only the second has.
    pub added_blobs: u64,
    /// Their bytes.
    pub added_bytes: u64,
}

/// A layer that differs; `None` is a model that has none of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerDiff {
    /// Its name, or what kind of layer it is.
    pub name: String,
    /// In the first model.
    pub a: Option<Digest>,
    /// In the second.
    pub b: Option<Digest>,
}

/// A tensor that differs; `None` is a model that has none of that name.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDiff {
    /// Its name.
    pub name: String,
    /// In the first model.
    pub a: Option<TensorSide>,
    /// In the second.
    pub b: Option<TensorSide>,
    /// How far its numbers are apart, where that was asked for and both models have it.
    pub values: Option<ValueDiff>,
}

/// A tensor of one of the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSide {
    /// How its numbers are written.
    pub encoding: Encoding,
    /// Outermost first.
    pub shape: Vec<u64>,
    /// Bytes of all its arrays.
    pub size: u64,
}

/// How far numbers are apart.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueDiff {
    /// They were compared: all of them, or where one of the tensors is quantized a million, in the same rows of both.
    Computed {
        /// Pairs that were compared.
        compared: u64,
        /// The largest difference.
        max: f64,
        /// The root of the mean square of differences.
        rms: f64,
        /// Pairs that differ and of which one is not finite.
        not_finite: u64,
    },
    /// They cannot be, and why.
    NotAvailable(String),
}

/// Compares two models. With `values`, tensors whose bytes differ are also compared by their numbers.
///
/// # Errors
/// A blob cannot be read, or nobody waits any more.
pub fn diff(library: &Library, a: &Model, b: &Model, values: bool, observer: &dyn Observer) -> Result<Diff> {
    let (added_blobs, added_bytes) = added(library, a, b)?;
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

/// The tensors of both models by name.
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

/// Blobs and bytes that only `b` has.
fn added(library: &Library, a: &Model, b: &Model) -> Result<(u64, u64)> {
    let there: HashSet<Digest> =
        library.needs(a.manifest.digest())?.into_iter().map(|need| need.descriptor.digest).collect();
    let new = library.needs(b.manifest.digest())?.into_iter().map(|need| need.descriptor);
    let new = new.filter(|descriptor| !there.contains(&descriptor.digest));
    Ok(new.fold((0, 0), |(blobs, bytes), descriptor| (blobs + 1, bytes + descriptor.size)))
}

/// The layers that are not tensors, and the config, where they differ.
fn layers(a: &Model, b: &Model) -> Vec<LayerDiff> {
    let named = |model: &Model| {
        let mut layers = BTreeMap::from([("config".to_owned(), model.manifest.config().digest)]);
        for layer in model.manifest.layers().iter().filter(|layer| *layer.media_type() != media_types::TENSOR) {
            let name = layer_name(layer);
            // Several licences, for instance, have no names of their own.
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

/// Whether two tensors are the same: encoding, shape and the bytes of all arrays.
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
    // The blobs differ, but so they do where only a neighbour in the same group does.
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

/// How far the numbers of two tensors are apart. Where one is quantized a million of them are decoded and compared.
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
    // A plain tensor is one array.
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
