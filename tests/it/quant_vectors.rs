//! The codecs of MLX's encodings compared with reference vectors: every bit of codes, scales and
//! decoded values.

use std::path::Path;

use formats::codec::{self, Encoded, EncodingTarget};
use formats::safetensors::{Header, TensorInfo};
use formats::weight::{Arrays, Numbers};
use formats::{Dtype, Encoding, Weight};

use crate::support::{files, name, read, root, shared, skip};

/// The number of files in the reference data, including the tables of values.
const FILES: usize = 115;

/// One file: a source, its encoding, and the decoded values.
struct Vectors {
    name: String,
    header: Header,
    bytes: Vec<u8>,
    encoding: Encoding,
    /// The source's dtype.
    float: Dtype,
}

impl Vectors {
    fn open(path: &Path) -> Self {
        let bytes = read(path);
        let header = Header::parse(&bytes, bytes.len() as u64).expect("a safetensors header");
        let fact = |key: &str| header.metadata.get(key).map(String::as_str).expect("metadata");
        let encoding = Encoding::parse(fact("quant_type"), fact("group_size").parse().expect("a number"));
        let float = Dtype::parse(fact("source_dtype")).expect("a type");
        Self { name: name(path), encoding: encoding.expect("an encoding"), float, header, bytes }
    }

    fn tensor(&self, name: &str) -> Option<(&TensorInfo, &[u8])> {
        let tensor = self.header.tensor(name)?;
        let start = self.header.data_start;
        Some((tensor, &self.bytes[(start + tensor.begin) as usize..(start + tensor.end) as usize]))
    }

    fn part(&self, name: &str) -> &[u8] {
        self.tensor(name).unwrap_or_else(|| panic!("{} has no `{name}`", self.name)).1
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.part(name).as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    /// Returns the unquantized weight.
    fn source(&self) -> Weight<'_> {
        let (tensor, data) = self.tensor("weight").expect("a source");
        Weight::new(Encoding::Plain(tensor.dtype), &tensor.shape, Arrays { data, ..Arrays::default() }).expect("fits")
    }

    /// Returns the quantized weight.
    fn encoded(&self) -> Weight<'_> {
        let (source, _) = self.tensor("weight").expect("a source");
        let numbers = |name: &str| self.tensor(name).map(|(info, bytes)| Numbers { dtype: info.dtype, bytes });
        let arrays = Arrays {
            data: self.part("weight.q"),
            scale: numbers("scale"),
            bias: numbers("bias"),
            global_scale: self.tensor("global_scale").map(|_| self.floats("global_scale")[0]),
        };
        Weight::new(self.encoding, &source.shape, arrays).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }
}

fn decoded(weight: &Weight<'_>) -> Vec<f32> {
    let mut out = vec![0.0; weight.rows() * weight.columns()];
    weight.decode(&mut out);
    out
}

/// Asserts that the bits are equal, or both are NaN.
fn same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(same, "{what} at {at}: {found:e}, expected {expected:e}");
    }
}

fn check(vectors: &Vectors) {
    let what = &vectors.name;
    let source = vectors.source();
    let values = decoded(&source);
    let has_global_scale = vectors.tensor("global_scale").is_some();
    let target = EncodingTarget {
        encoding: vectors.encoding,
        float: vectors.float,
        global_scale: has_global_scale.then(|| codec::largest_magnitude(&values)),
    };
    let mut encoded = Encoded::default();
    codec::transcode(&source, target, &mut encoded);
    assert!(encoded.data == vectors.part("weight.q"), "{what}: other codes");
    same_numbers(vectors, "scale", &encoded.scale);
    if vectors.tensor("bias").is_some() {
        same_numbers(vectors, "bias", &encoded.bias);
    }
    let mut from_floats = Encoded::default();
    codec::encode(&values, source.columns(), target, &mut from_floats);
    assert!(from_floats == encoded, "{what}: the source's type matters");
    if let Some(multiplier) = target.multiplier() {
        same(&[multiplier], &vectors.floats("global_scale"), what);
    }

    let weight = vectors.encoded();
    let found = decoded(&weight);
    same(&found, &vectors.floats("dequant.f32"), what);
    check_rounded(vectors, &weight);
    if vectors.tensor("matmul").is_some() {
        check_products(vectors, &weight, &found);
    }
}

/// Asserts that scales or biases have the same bytes, or both are NaN.
fn same_numbers(vectors: &Vectors, name: &str, found: &[u8]) {
    let (tensor, expected) = vectors.tensor(name).expect("such a tensor");
    if tensor.dtype == Dtype::U8 {
        assert!(found == expected, "{}: other {name}", vectors.name);
        return;
    }
    let widen = |data| {
        let encoding = Encoding::Plain(tensor.dtype);
        decoded(&Weight::new(encoding, &tensor.shape, Arrays { data, ..Arrays::default() }).expect("fits"))
    };
    same(&widen(found), &widen(expected), &format!("{} {name}", vectors.name));
}

/// Asserts that decoding microscaled values to the source's dtype equals rounding their float32
/// values.
fn check_rounded(vectors: &Vectors, weight: &Weight<'_>) {
    if !matches!(vectors.encoding, Encoding::Micro(_)) {
        return;
    }
    let target = EncodingTarget { encoding: Encoding::Plain(vectors.float), float: Dtype::F32, global_scale: None };
    let mut rounded = Encoded::default();
    codec::transcode(weight, target, &mut rounded);
    same_numbers(vectors, "dequant", &rounded.data);
}

/// Compares `x · wᵀ` with exact products, within the tolerance of the reference:
/// `K · 2^-24 · Σ |x·w|`.
fn check_products(vectors: &Vectors, weight: &Weight<'_>, decoded: &[f32]) {
    let columns = weight.columns();
    let (x, expected) = (vectors.floats("x"), vectors.floats("matmul"));
    let shape = &vectors.tensor("weight").expect("a source").0.shape;
    let rows = shape[shape.len() - 2] as usize;
    for (matrix, (weights, expected)) in
        decoded.chunks(rows * columns).zip(expected.chunks(x.len() / columns * rows)).enumerate()
    {
        let rows_of_x = x.chunks(columns).flat_map(|x| weights.chunks(columns).map(move |w| (x, w)));
        for (at, ((x, w), expected)) in rows_of_x.zip(expected).enumerate() {
            let exact: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            let single: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
            let sizes: f64 = x.iter().zip(w).map(|(x, w)| (f64::from(*x) * f64::from(*w)).abs()).sum();
            let bound = columns as f64 * 2f64.powi(-24) * sizes;
            for found in [exact, f64::from(single)] {
                let off = (found - f64::from(*expected)).abs();
                assert!(off <= bound, "{} matrix {matrix}, product {at}: off by {off:e} of {bound:e}", vectors.name);
            }
        }
    }
}

#[test]
fn every_vector_of_the_reference() {
    let Some(shared) = shared() else {
        return skip("every_vector_of_the_reference", "there is no folder `shared` beside the checkout");
    };
    let mut paths = files(&shared.join("vectors/quant"), "safetensors");
    assert_eq!(paths.len(), FILES);
    paths.retain(|path| name(path) != "tables.safetensors");
    for path in paths {
        check(&Vectors::open(&path));
    }
}

#[test]
fn a_vector_of_each_type() {
    let paths = files(&root().join("tests/fixtures/quant"), "safetensors");
    assert_eq!(paths.len(), 8);
    for path in paths {
        check(&Vectors::open(&path));
    }
}
