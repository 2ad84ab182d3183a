//! Blobs mapped into memory, and tensors in them.
//!
//! Blobs of a store never change and are replaced by nobody while a runner has them mapped: the store makes them
//! read-only, deletes them only by unlinking, and an unlinked file stays mapped. That is what makes mapping them sound.
//!
//! Arrays lie at multiples of 8 in the blobs that an import writes, anywhere in files that came whole. So nothing here
//! promises an alignment.
#![expect(unsafe_code, reason = "mapping files")]

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use formats::weight::{Arrays, Numbers};
use formats::{Dtype, Encoding, Weight};
use memmap2::Mmap;
use protocol::Array;

/// The encoding that a load plan names, where it is known.
pub(crate) fn encoding(plan: &protocol::Tensor) -> Option<Encoding> {
    Dtype::parse(&plan.dtype).map(Encoding::Plain).or_else(|| Encoding::parse(&plan.dtype, plan.group))
}

/// A tensor in mapped blobs. Clones share the mappings.
///
/// Invariant: its arrays have the lengths that encoding and shape ask for, so that [`weight`](Self::weight) succeeds.
#[derive(Clone, Debug)]
pub(crate) struct MappedTensor {
    encoding: Encoding,
    /// Logical dimensions, outermost first.
    pub(crate) shape: Vec<usize>,
    dimensions: Vec<u64>,
    data: Part,
    scale: Option<Part>,
    bias: Option<Part>,
    global_scale: Option<f32>,
}

/// An array in a mapped blob.
#[derive(Clone, Debug)]
struct Part {
    blob: Arc<Mmap>,
    offset: usize,
    size: usize,
    dtype: Dtype,
}

impl Part {
    fn bytes(&self) -> &[u8] {
        &self.blob[self.offset..self.offset + self.size]
    }

    fn numbers(&self) -> Numbers<'_> {
        Numbers { dtype: self.dtype, bytes: self.bytes() }
    }

    /// The bytes from one of `of` equal shares up to another.
    fn share(&self, from: u64, to: u64, of: u64) -> Result<Self, String> {
        let of = of as usize;
        if of == 0 || !self.size.is_multiple_of(of) {
            return Err(format!("{} bytes are not {of} equal parts", self.size));
        }
        let one = self.size / of;
        let (from, to) = (from as usize * one, to as usize * one);
        Ok(Self { offset: self.offset + from, size: to - from, ..self.clone() })
    }
}

impl MappedTensor {
    /// How its numbers are encoded.
    pub(crate) fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The tensor for readers of numbers.
    pub(crate) fn weight(&self) -> Weight<'_> {
        Weight::again(self.encoding, &self.dimensions, self.arrays())
    }

    fn checked(&self) -> Result<Weight<'_>, String> {
        Weight::new(self.encoding, &self.dimensions, self.arrays())
    }

    fn arrays(&self) -> Arrays<'_> {
        Arrays {
            data: self.data.bytes(),
            scale: self.scale.as_ref().map(Part::numbers),
            bias: self.bias.as_ref().map(Part::numbers),
            global_scale: self.global_scale,
        }
    }

    /// Some rows of a matrix, or numbers of a vector.
    ///
    /// # Errors
    /// There are no such rows, or blocks that share a scale lie across their ends.
    pub(crate) fn rows(&self, first: u64, count: u64) -> Result<Self, String> {
        let ([rows] | [rows, _]) = self.dimensions[..] else {
            return Err(format!("it has {} dimensions, rows are of 1 or 2", self.dimensions.len()));
        };
        let end = first.checked_add(count).filter(|end| *end <= rows && count > 0);
        let end = end.ok_or_else(|| format!("{count} rows from row {first} on, there are {rows}"))?;
        // Rows of codes that share a row of scales.
        let block = match self.encoding {
            Encoding::BlockFp8 { rows: block, .. } => u64::from(block),
            _ => 1,
        };
        if !first.is_multiple_of(block) || !(end.is_multiple_of(block) || end == rows) {
            return Err(format!("rows {first} to {end} cut blocks of {block} rows that share a scale"));
        }
        let mut part = self.clone();
        part.data = self.data.share(first, end, rows)?;
        part.scale = self
            .scale
            .as_ref()
            .map(|scale| scale.share(first / block, end.div_ceil(block), rows.div_ceil(block)))
            .transpose()?;
        part.bias = self.bias.as_ref().map(|bias| bias.share(first, end, rows)).transpose()?;
        (part.dimensions[0], part.shape[0]) = (count, count as usize);
        part.checked()?;
        Ok(part)
    }

    /// One matrix of a stack.
    ///
    /// # Errors
    /// There is no such matrix.
    pub(crate) fn item(&self, index: u64) -> Result<Self, String> {
        let [items, rest @ ..] = &self.dimensions[..] else { return Err("it has no dimensions".to_owned()) };
        if index >= *items || rest.is_empty() {
            return Err(format!("item {index} of a tensor of shape {:?}", self.dimensions));
        }
        let share = |part: &Part| part.share(index, index + 1, *items);
        let mut part = self.clone();
        part.data = share(&self.data)?;
        part.scale = self.scale.as_ref().map(share).transpose()?;
        part.bias = self.bias.as_ref().map(share).transpose()?;
        part.dimensions.remove(0);
        part.shape.remove(0);
        part.checked()?;
        Ok(part)
    }

    /// All its numbers: of small tensors, or for those who compute with nothing else.
    pub(crate) fn numbers(&self) -> Vec<f32> {
        let weight = self.weight();
        let mut numbers = vec![0.0; weight.rows() * weight.columns()];
        weight.decode(&mut numbers);
        numbers
    }

    /// Bytes of all arrays.
    pub(crate) fn size(&self) -> usize {
        let rest = [&self.scale, &self.bias].into_iter().flatten().map(|part| part.size);
        self.data.size + rest.sum::<usize>() + self.global_scale.map_or(0, |_| size_of::<f32>())
    }
}

/// Maps each blob once.
#[derive(Debug, Default)]
pub(crate) struct Mapper(HashMap<PathBuf, Arc<Mmap>>);

impl Mapper {
    /// The tensor that a load plan describes, checked against the blobs.
    ///
    /// # Errors
    /// Which tensor cannot be read, and why: an array beyond its blob, of another length, missing, or one too many.
    pub(crate) fn tensor(&mut self, plan: &protocol::Tensor, encoding: Encoding) -> Result<MappedTensor> {
        self.parts(plan, encoding).with_context(|| format!("tensor `{}`", plan.name))
    }

    fn parts(&mut self, plan: &protocol::Tensor, encoding: Encoding) -> Result<MappedTensor> {
        let shape = plan.shape.iter().map(|n| usize::try_from(*n)).collect::<Result<_, _>>();
        let global_scale = plan.global_scale.as_ref().map(|array| self.part(array)).transpose()?;
        let tensor = MappedTensor {
            encoding,
            shape: shape.context("its shape overflows")?,
            dimensions: plan.shape.clone(),
            data: self.part(&plan.weight)?,
            scale: plan.scale.as_ref().map(|array| self.part(array)).transpose()?,
            bias: plan.bias.as_ref().map(|array| self.part(array)).transpose()?,
            global_scale: global_scale.as_ref().map(scalar).transpose()?,
        };
        tensor.checked().map_err(|reason| anyhow!("{reason}; import or pull the model again"))?;
        Ok(tensor)
    }

    fn part(&mut self, array: &Array) -> Result<Part> {
        let dtype = Dtype::parse(&array.dtype).or_else(|| Encoding::parse(&array.dtype, 0).map(|_| Dtype::U8));
        let dtype = dtype.with_context(|| format!("an array of the type `{}`, which is not known", array.dtype))?;
        let blob = self.map(&array.path)?;
        let place = usize::try_from(array.offset).ok().zip(usize::try_from(array.size).ok());
        let inside = place.filter(|(offset, size)| offset.checked_add(*size).is_some_and(|end| end <= blob.len()));
        let (offset, size) = inside.with_context(|| {
            let path = array.path.display();
            format!("it ends beyond its blob `{path}`, which is damaged; import or pull the model again")
        })?;
        Ok(Part { blob, offset, size, dtype })
    }

    fn map(&mut self, path: &Path) -> Result<Arc<Mmap>> {
        if let Some(blob) = self.0.get(path) {
            return Ok(blob.clone());
        }
        let blob = Arc::new(map(path)?);
        self.0.insert(path.to_owned(), blob.clone());
        Ok(blob)
    }
}

/// The number of an array that has one.
fn scalar(part: &Part) -> Result<f32> {
    let (dtype, size) = (part.dtype, part.size);
    ensure!(dtype == Dtype::F32, "its global scale is of type {dtype}, expected F32");
    let bytes = part.bytes().first_chunk().filter(|_| size == 4);
    Ok(f32::from_le_bytes(*bytes.with_context(|| format!("its global scale has {size} bytes, expected 4"))?))
}

/// Maps a blob read-only.
pub(crate) fn map(path: &Path) -> Result<Mmap> {
    let file = File::open(path).with_context(|| format!("cannot open `{}`", path.display()))?;
    // SAFETY: blobs of a store are not written to after their commit, see the head of this file.
    unsafe { Mmap::map(&file) }.with_context(|| format!("cannot map `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Bytes of an array in a blob of its own, `lead` bytes behind its beginning.
    fn array(folder: &Path, name: &str, dtype: &str, lead: usize, bytes: &[u8]) -> Array {
        let path = folder.join(name);
        let mut file = File::create(&path).expect("a blob");
        file.write_all(&vec![0; lead]).and_then(|()| file.write_all(bytes)).expect("a whole blob");
        Array { path, offset: lead as u64, size: bytes.len() as u64, dtype: dtype.to_owned() }
    }

    fn plan(dtype: &str, group: u64, shape: &[u64], weight: Array) -> protocol::Tensor {
        protocol::Tensor {
            name: "w".to_owned(),
            dtype: dtype.to_owned(),
            group,
            shape: shape.to_vec(),
            weight,
            scale: None,
            bias: None,
            global_scale: None,
        }
    }

    fn tensor(plan: &protocol::Tensor) -> Result<MappedTensor> {
        Mapper::default().tensor(plan, encoding(plan).expect("a known encoding"))
    }

    fn numbers(tensor: &MappedTensor) -> Vec<f32> {
        tensor.numbers()
    }

    #[test]
    fn block_fp8_has_its_scales_in_another_blob() {
        let folder = tempfile::tempdir().expect("a folder");
        // E4M3: 1, 2, -1.5, 0.
        let codes = [0x38, 0x40, 0xbc, 0x00, 0x38, 0x38];
        let mut plan = plan("fp8_1x2", 2, &[2, 3], array(folder.path(), "codes", "F8_E4M3", 0, &codes));
        let scales: Vec<u8> = [1.0f32, 10.0, 0.5, 4.0].iter().flat_map(|n| n.to_le_bytes()).collect();
        plan.scale = Some(array(folder.path(), "scales", "F32", 0, &scales));
        let tensor = tensor(&plan).expect("a weight");
        assert_eq!(tensor.size(), 6 + 16);
        assert_eq!(numbers(&tensor), [1.0, 2.0, -15.0, 0.0, 0.5, 4.0]);
    }

    #[test]
    fn arrays_may_lie_anywhere() {
        let folder = tempfile::tempdir().expect("a folder");
        let bytes: Vec<u8> = [1.5f32, -2.0, 3.25].iter().flat_map(|n| n.to_le_bytes()).collect();
        for lead in 0..8 {
            let plan = plan("F32", 0, &[3], array(folder.path(), "plain", "F32", lead, &bytes));
            assert_eq!(numbers(&tensor(&plan).expect("a weight")), [1.5, -2.0, 3.25], "{lead} bytes before it");
        }
    }

    #[test]
    fn parts_are_read_where_they_lie() {
        let folder = tempfile::tempdir().expect("a folder");
        let floats = |count: u8| -> Vec<u8> { (0..count).flat_map(|n| f32::from(n).to_le_bytes()).collect() };
        let plain =
            tensor(&plan("F32", 0, &[4, 3], array(folder.path(), "plain", "F32", 4, &floats(12)))).expect("whole");
        let rows = plain.rows(1, 2).expect("rows");
        assert_eq!((rows.shape.as_slice(), numbers(&rows)), (&[2, 3][..], vec![3.0, 4.0, 5.0, 6.0, 7.0, 8.0]));
        let vector =
            tensor(&plan("F32", 0, &[4], array(folder.path(), "vector", "F32", 0, &floats(4)))).expect("whole");
        assert_eq!(numbers(&vector.rows(2, 2).expect("numbers")), [2.0, 3.0]);
        let stack = tensor(&plan("F32", 0, &[2, 2, 3], array(folder.path(), "stack", "F32", 0, &floats(12))));
        let item = stack.expect("whole").item(1).expect("a matrix");
        assert_eq!((item.shape.as_slice(), numbers(&item)), (&[2, 3][..], vec![6.0, 7.0, 8.0, 9.0, 10.0, 11.0]));
        // Codes of 1 with scales by row.
        let mut affine = plan("int8", 32, &[2, 32], array(folder.path(), "codes", "U32", 0, &[1; 64]));
        let scales: Vec<u8> = [2.0f32, 3.0].iter().flat_map(|n| n.to_le_bytes()).collect();
        affine.scale = Some(array(folder.path(), "scales", "F32", 0, &scales));
        affine.bias = Some(array(folder.path(), "biases", "F32", 0, &[0; 8]));
        let affine = tensor(&affine).expect("whole");
        assert_eq!(numbers(&affine.rows(1, 1).expect("a row")), [3.0; 32]);
        let mut fp8 = plan("fp8_2x2", 2, &[3, 2], array(folder.path(), "fp8", "F8_E4M3", 0, &[0x38; 6]));
        let scales: Vec<u8> = [1.0f32, 5.0].iter().flat_map(|n| n.to_le_bytes()).collect();
        fp8.scale = Some(array(folder.path(), "fp8 scales", "F32", 0, &scales));
        let fp8 = tensor(&fp8).expect("whole");
        assert_eq!(numbers(&fp8.rows(2, 1).expect("the last block")), [5.0, 5.0]);
        for (found, says) in [
            (fp8.rows(1, 1), "cut blocks of 2 rows"),
            (plain.rows(3, 2), "there are 4"),
            (plain.rows(u64::MAX, 2), "there are 4"),
            (plain.rows(0, 0), "there are 4"),
            (item.item(2), "item 2"),
            (vector.item(0), "item 0"),
        ] {
            let error = found.expect_err(says);
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn plans_that_do_not_fit_are_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let codes = || array(folder.path(), "codes", "U32", 0, &[0; 32]);
        let good = plan("int4", 64, &[1, 64], codes());
        let scale = array(folder.path(), "scale", "BF16", 0, &[0; 2]);
        let short = Array { size: 31, ..codes() };
        let beyond = Array { offset: u64::MAX, ..codes() };
        let absent = Array { path: folder.path().join("absent"), ..codes() };
        let integers = array(folder.path(), "integers", "I16", 0, &[0; 2]);
        let with = |scale: &Array, bias: &Array| protocol::Tensor {
            scale: Some(scale.clone()),
            bias: Some(bias.clone()),
            ..good.clone()
        };
        tensor(&with(&scale, &scale)).expect("a weight");
        for (plan, says) in [
            (good.clone(), "Scale"),
            (with(&codes(), &scale), "scales of type U32"),
            (with(&integers, &integers), "scales of type I16"),
            (protocol::Tensor { weight: short, ..with(&scale, &scale) }, "31 bytes"),
            (protocol::Tensor { weight: beyond, ..good.clone() }, "beyond its blob"),
            (protocol::Tensor { weight: absent, ..good.clone() }, "cannot open"),
            (protocol::Tensor { global_scale: Some(scale.clone()), ..good.clone() }, "global scale"),
            (protocol::Tensor { shape: vec![u64::MAX, 64], ..with(&scale, &scale) }, "overflows"),
        ] {
            let error = format!("{:#}", tensor(&plan).expect_err(says));
            assert!(error.starts_with("tensor `w`: ") && error.contains(says), "`{error}` should say `{says}`");
        }
    }
}
