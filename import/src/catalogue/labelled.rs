//! Weights that a blob's metadata describes: by `quant_type` and `group_size` for the whole blob,
//! or by `<name>.quant_type` and `<name>.group_size` for each weight.

use std::collections::{BTreeMap, HashMap, HashSet};

use formats::encoding::{Micro, Role};
use formats::safetensors::{Header, TensorInfo};
use formats::{Dtype, Encoding};

use crate::split_weights::FoundWeight;

/// Returns the weights that the metadata describes.
///
/// # Errors
/// The reason why the arrays do not match the metadata.
pub(super) fn find(header: &Header) -> Result<Vec<FoundWeight>, String> {
    let blob = Blob::new(header);
    let mut found = Vec::new();
    for (key, quant_type) in &header.metadata {
        let Some(name) = key.strip_suffix(".quant_type") else { continue };
        let at = blob.positions.get(name).copied();
        let at = at.ok_or_else(|| format!("its metadata has `{key}`, but it has no tensor `{name}`"))?;
        found.push(blob.weight(at, quant_type)?);
    }
    if let Some(quant_type) = header.metadata.get("quant_type").filter(|value| !value.is_empty()) {
        found.extend(blob.all(quant_type)?);
    }
    Ok(found)
}

struct Blob<'a> {
    tensors: &'a [TensorInfo],
    metadata: &'a BTreeMap<String, String>,
    positions: HashMap<&'a str, usize>,
}

impl<'a> Blob<'a> {
    fn new(header: &'a Header) -> Self {
        let positions = header.tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.as_str(), at)).collect();
        Self { tensors: &header.tensors, metadata: &header.metadata, positions }
    }

    /// Returns the weights of a blob that has one label for all of them: the tensors with the dtype
    /// of its codes. Other tensors, such as norms between experts, stay plain.
    fn all(&self, quant_type: &str) -> Result<Vec<FoundWeight>, String> {
        let companions: HashSet<String> = self.companions().collect();
        let dtype = match Encoding::parse(quant_type, 32) {
            Some(Encoding::Blocks(_)) => Dtype::U8,
            Some(Encoding::BlockFp8 { .. }) => Dtype::F8_E4M3,
            _ => Dtype::U32,
        };
        let wanted = self.tensors.iter().enumerate().filter(|(_, tensor)| {
            tensor.dtype == dtype
                && !companions.contains(&tensor.name)
                && !self.metadata.contains_key(&format!("{}.quant_type", tensor.name))
        });
        let found = wanted.map(|(at, _)| self.weight(at, quant_type)).collect::<Result<Vec<_>, _>>()?;
        if found.is_empty() && !self.tensors.is_empty() {
            return Err(format!("its metadata says `{quant_type}`, but it has no {dtype} tensor with such codes"));
        }
        Ok(found)
    }

    fn companions(&self) -> impl Iterator<Item = String> {
        let suffixes = Role::ALL.into_iter().filter(|role| *role != Role::Weight).map(Role::suffix);
        let of = |suffix: &'static str| self.tensors.iter().map(move |tensor| format!("{}{suffix}", tensor.name));
        suffixes.flat_map(of)
    }

    fn weight(&self, at: usize, quant_type: &str) -> Result<FoundWeight, String> {
        let codes = &self.tensors[at];
        let name = &codes.name;
        let companion = |role: Role| self.positions.get(format!("{name}{}", role.suffix()).as_str()).copied();
        let scale = companion(Role::Scale);
        let group = self.group(name, quant_type, codes, scale.map(|at| &self.tensors[at]))?;
        let encoding = Encoding::parse(quant_type, group);
        let encoding = encoding.ok_or_else(|| {
            format!("tensor `{name}` has the quantization `{quant_type}` in groups of {group}, which is not known")
        })?;
        let shape = encoding
            .logical_shape(&codes.shape)
            .ok_or_else(|| format!("tensor `{name}` of type {encoding} cannot have the shape {:?}", codes.shape))?;
        let float = scale.map_or(Dtype::F32, |at| self.tensors[at].dtype);
        let expected = encoding.parts(&shape, float).map_err(|e| format!("tensor `{name}`: {e}"))?;
        let mut parts = Vec::new();
        for part in expected {
            let array = if part.role == Role::Weight { Some(at) } else { companion(part.role) };
            let array = array.ok_or_else(|| {
                format!("tensor `{name}` is {encoding}, but there is no `{name}{}`", part.role.suffix())
            })?;
            let found = &self.tensors[array];
            if (found.dtype, &found.shape) != (part.dtype, &part.shape) {
                return Err(format!(
                    "tensor `{}` is {} {:?}, expected {} {:?} for {encoding} {shape:?}",
                    found.name, found.dtype, found.shape, part.dtype, part.shape
                ));
            }
            parts.push((part.role, array));
        }
        let named = |error| format!("tensor `{name}{}` is {error}", Role::Scale.suffix());
        encoding.check_scale(float).map_err(named)?;
        parts.extend(self.global_scale(name, encoding)?.map(|at| (Role::GlobalScale, at)));
        Ok(FoundWeight { name: name.clone(), encoding, shape, parts })
    }

    /// Returns the position of the tensor's global multiplier, if it has one.
    fn global_scale(&self, name: &str, encoding: Encoding) -> Result<Option<usize>, String> {
        let at = self.positions.get(format!("{name}{}", Role::GlobalScale.suffix()).as_str()).copied();
        let Some(at) = at.filter(|_| encoding == Encoding::Micro(Micro::Nvfp4)) else { return Ok(None) };
        let global = &self.tensors[at];
        if global.dtype != Dtype::F32 || global.size() != 4 {
            return Err(format!("tensor `{}` is {} {:?}, expected one F32", global.name, global.dtype, global.shape));
        }
        Ok(Some(at))
    }

    /// Returns the group size from the metadata, or from the shapes if the metadata does not state
    /// it.
    fn group(
        &self,
        name: &str,
        quant_type: &str,
        codes: &TensorInfo,
        scale: Option<&TensorInfo>,
    ) -> Result<u64, String> {
        let said = self.metadata.get(&format!("{name}.group_size")).or_else(|| self.metadata.get("group_size"));
        if let Some(text) = said {
            return text.parse().map_err(|_| format!("the group size of tensor `{name}` is `{text}`, not a number"));
        }
        let by_shape = || {
            let bits: u64 = quant_type.strip_prefix("int")?.parse().ok()?;
            let words = codes.shape.last()?.checked_mul(32)?;
            words.checked_div(bits)?.checked_div(*scale?.shape.last()?)
        };
        Ok(by_shape().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(arrays: &[(&str, Dtype, &[u64])], metadata: &[(&str, &str)]) -> Header {
        let mut at = 0;
        let tensors = arrays.iter().map(|(name, dtype, shape)| {
            let begin = at;
            at += dtype.byte_count(shape).expect("a size");
            TensorInfo { name: (*name).to_owned(), dtype: *dtype, shape: shape.to_vec(), begin, end: at }
        });
        let tensors = tensors.collect();
        let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Header { tensors, metadata, data_start: 8 }
    }

    #[test]
    fn groups_have_labels_for_each_or_for_all() {
        let arrays: &[(&str, Dtype, &[u64])] = &[
            ("e.a", Dtype::U32, &[2, 4, 8]),
            ("e.a.scale", Dtype::F16, &[2, 4, 1]),
            ("e.a.bias", Dtype::F16, &[2, 4, 1]),
            ("e.b", Dtype::U32, &[2, 4, 16]),
            ("e.b.scale", Dtype::U8, &[2, 4, 2]),
            ("e.norm", Dtype::F16, &[4]),
        ];
        let each = &[("e.a.quant_type", "int4"), ("e.a.group_size", "64"), ("e.b.quant_type", "mxfp8")];
        let found = find(&header(arrays, each)).expect("two weights");
        let facts: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.encoding.to_string(), f.shape.clone())).collect();
        assert_eq!(facts, [("e.a", "int4".to_owned(), vec![2, 4, 64]), ("e.b", "mxfp8".to_owned(), vec![2, 4, 64])]);
        let mixed = &[("quant_type", "mxfp8"), ("e.a.quant_type", "int4")];
        assert_eq!(find(&header(arrays, mixed)).expect("two weights").len(), 2, "the group of `e.a` is in its shapes");
    }

    #[test]
    fn says_what_does_not_fit() {
        let codes = ("w", Dtype::U32, &[4, 8][..]);
        let scale = ("w.scale", Dtype::Bf16, &[4, 2][..]);
        let bias = ("w.bias", Dtype::Bf16, &[4, 2][..]);
        let int4 = &[("quant_type", "int4"), ("group_size", "32")][..];
        for (arrays, metadata, expect) in [
            (vec![codes, scale], int4, "no `w.bias`"),
            (vec![codes, bias], int4, "no `w.scale`"),
            (vec![codes, scale, ("w.bias", Dtype::F16, &[4, 2])], int4, "`w.bias` is F16 [4, 2], expected BF16"),
            (vec![codes, ("w.scale", Dtype::Bf16, &[4, 1]), bias], int4, "`w.scale` is BF16 [4, 1]"),
            (vec![codes, ("w.scale", Dtype::I16, &[4, 2]), ("w.bias", Dtype::I16, &[4, 2])], int4, "expected F32"),
            (vec![("w", Dtype::Bf16, &[4, 8])], int4, "no U32 tensor"),
            (vec![codes, scale, bias], &[("quant_type", "int9")], "`int9` in groups of 14, which is not known"),
            (vec![codes, scale, bias], &[("quant_type", "int4"), ("group_size", "x")], "`x`, not a number"),
            (vec![codes], &[("v.quant_type", "int4")], "no tensor `v`"),
            (vec![("w", Dtype::U8, &[4, 19])], &[("quant_type", "q4_0")], "cannot have the shape [4, 19]"),
            (
                vec![("w", Dtype::U32, &[4, 7]), scale, bias],
                &[("w.quant_type", "int3"), ("group_size", "32")],
                "cannot have the shape",
            ),
        ] {
            let error = find(&header(&arrays, metadata)).expect_err(expect);
            assert!(error.contains(expect), "`{error}` should say `{expect}`");
        }
        assert_eq!(find(&header(&[codes, scale, bias], &[])), Ok(Vec::new()), "nobody says that it is a weight");
    }
}
