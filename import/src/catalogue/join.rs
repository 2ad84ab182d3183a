//! Combines the arrays of blobs to weights. Pure.

use std::collections::HashMap;

use content::Digest;
use formats::Encoding;
use formats::encoding::Role;
use formats::safetensors::Header;

use super::labelled;
use crate::split_weights::{self, ArrayInfo, FoundWeight};
use crate::{Error, QuantizationConfig, StoredPart, StoredTensor};

/// Returns the tensors of blobs with these headers, in their order and under the names in the
/// headers. Arrays become a weight if the metadata of the blob, or their names and shapes, describe
/// one. Every other array is a plain tensor.
///
/// # Errors
/// The metadata of a blob describes a quantization that is unknown or that its arrays do not have.
pub fn join(blobs: &[(Digest, Header)], config: &QuantizationConfig) -> Result<Vec<StoredTensor>, Error> {
    let mut arrays: Vec<StoredPart> = Vec::new();
    let mut found = Vec::new();
    for (blob, header) in blobs {
        let first = arrays.len();
        let labelled = labelled::find(header).map_err(|reason| Error::Source(format!("blob `{blob}`: {reason}")))?;
        found.extend(labelled.into_iter().map(|weight| shifted(weight, first)));
        arrays.extend(header.tensors.iter().map(|tensor| StoredPart {
            role: Role::Weight,
            name: tensor.name.clone(),
            blob: *blob,
            offset: header.data_start + tensor.begin,
            size: tensor.size(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
        }));
    }
    found.extend(unlabelled(&arrays, &found, config));
    assembled(arrays, found)
}

fn shifted(weight: FoundWeight, by: usize) -> FoundWeight {
    let parts = weight.parts.iter().map(|(role, at)| (*role, at + by)).collect();
    FoundWeight { parts, ..weight }
}

/// Finds weights among the arrays that do not belong to a labelled weight.
fn unlabelled(arrays: &[StoredPart], found: &[FoundWeight], config: &QuantizationConfig) -> Vec<FoundWeight> {
    let mut free: Vec<bool> = vec![true; arrays.len()];
    for (_, at) in found.iter().flat_map(|weight| &weight.parts) {
        free[*at] = false;
    }
    let positions: Vec<usize> = (0..arrays.len()).filter(|at| free[*at]).collect();
    let array = |at: &usize| ArrayInfo { name: &arrays[*at].name, dtype: arrays[*at].dtype, shape: &arrays[*at].shape };
    let rest: Vec<ArrayInfo<'_>> = positions.iter().map(array).collect();
    let back = |weight: FoundWeight| {
        let parts = weight.parts.iter().map(|(role, at)| (*role, positions[*at])).collect();
        FoundWeight { parts, ..weight }
    };
    split_weights::find(&rest, config).into_iter().map(back).collect()
}

/// Returns the tensors in order; a weight has the position of its codes.
fn assembled(arrays: Vec<StoredPart>, found: Vec<FoundWeight>) -> Result<Vec<StoredTensor>, Error> {
    let mut arrays: Vec<Option<StoredPart>> = arrays.into_iter().map(Some).collect();
    let mut weights: HashMap<usize, StoredTensor> = HashMap::new();
    for weight in found {
        let Some((_, first)) = weight.parts.first().copied() else { continue };
        let part = |(role, at): &(Role, usize)| Some(StoredPart { role: *role, ..arrays[*at].take()? });
        let parts: Option<Vec<StoredPart>> = weight.parts.iter().map(part).collect();
        let parts = parts
            .ok_or_else(|| Error::Source(format!("an array of `{}` also belongs to another weight", weight.name)))?;
        let FoundWeight { name, encoding, shape, .. } = weight;
        weights.insert(first, StoredTensor { stored_name: name.clone(), name, encoding, shape, parts });
    }
    let plain = |array: StoredPart| StoredTensor {
        name: array.name.clone(),
        stored_name: array.name.clone(),
        encoding: Encoding::Plain(array.dtype),
        shape: array.shape.clone(),
        parts: vec![array],
    };
    let tensor = |(at, array): (usize, Option<StoredPart>)| weights.remove(&at).or_else(|| array.map(plain));
    Ok(arrays.into_iter().enumerate().filter_map(tensor).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use formats::Dtype;
    use formats::safetensors::{Member, canonical_header};

    use super::*;

    fn blob(arrays: &[(&str, Dtype, &[u64])], metadata: &[(&str, &str)]) -> (Digest, Header) {
        let member = |(name, dtype, shape): &(&str, Dtype, &[u64])| Member {
            name: (*name).to_owned(),
            dtype: *dtype,
            shape: shape.to_vec(),
            size: dtype.byte_count(shape).expect("a size"),
        };
        let members: Vec<Member> = arrays.iter().map(member).collect();
        let metadata: BTreeMap<String, String> =
            metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let bytes = canonical_header(&members, &metadata);
        let data: u64 = members.iter().map(|member| member.size).sum();
        (Digest::of(&bytes), Header::parse(&bytes, bytes.len() as u64 + data).expect("a header"))
    }

    fn joined(blobs: &[(Digest, Header)]) -> Vec<(String, String, Vec<u64>, Vec<Role>)> {
        let config = br#"{"quantization_config":{"weight_block_size":[16,16]}}"#;
        let tensors = join(blobs, &QuantizationConfig::from_config(config)).expect("they make tensors");
        let fact = |tensor: StoredTensor| {
            let roles = tensor.parts.iter().map(|part| part.role).collect();
            (tensor.name, tensor.encoding.to_string(), tensor.shape, roles)
        };
        tensors.into_iter().map(fact).collect()
    }

    #[test]
    fn combined_blobs_are_weights() {
        let linear = blob(
            &[
                ("a.weight", Dtype::U32, &[4, 8]),
                ("a.weight.scale", Dtype::Bf16, &[4, 2]),
                ("a.weight.bias", Dtype::Bf16, &[4, 2]),
            ],
            &[("quant_type", "int4"), ("group_size", "32")],
        );
        let bias = blob(&[("a.bias", Dtype::Bf16, &[4])], &[]);
        let scaled = blob(
            &[
                ("b.weight", Dtype::U32, &[4, 8]),
                ("b.weight.scale", Dtype::U8, &[4, 4]),
                ("b.weight.global_scale", Dtype::F32, &[]),
            ],
            &[("quant_type", "nvfp4"), ("group_size", "16")],
        );
        let blocks = blob(&[("c.weight", Dtype::U8, &[4, 36])], &[("quant_type", "q4_0"), ("group_size", "32")]);
        assert_eq!(
            joined(&[linear, bias, scaled, blocks]),
            [
                ("a.weight".to_owned(), "int4".to_owned(), vec![4, 64], vec![Role::Weight, Role::Scale, Role::Bias]),
                ("a.bias".to_owned(), "BF16".to_owned(), vec![4], vec![Role::Weight]),
                (
                    "b.weight".to_owned(),
                    "nvfp4".to_owned(),
                    vec![4, 64],
                    vec![Role::Weight, Role::Scale, Role::GlobalScale]
                ),
                ("c.weight".to_owned(), "Q4_0".to_owned(), vec![4, 64], vec![Role::Weight]),
            ]
        );
    }

    #[test]
    fn an_array_belongs_to_one_weight() {
        let twice = blob(
            &[("w", Dtype::U32, &[4, 8]), ("w.scale", Dtype::U8, &[4, 4])],
            &[
                ("w.quant_type", "nvfp4"),
                ("w.group_size", "16"),
                ("w.scale.quant_type", "q4_0"),
                ("w.scale.group_size", "32"),
            ],
        );
        let error = join(&[twice], &QuantizationConfig::from_config(b"{}")).expect_err("it is claimed twice");
        assert!(error.to_string().contains("`w"), "{error}");
    }

    #[test]
    fn weights_across_blobs() {
        let weight = blob(&[("x.weight", Dtype::F8_E4M3, &[32, 16])], &[]);
        let other = blob(&[("y.scale", Dtype::F32, &[1])], &[]);
        let scale = blob(&[("x.weight_scale_inv", Dtype::F32, &[2, 1])], &[]);
        let digests = [weight.0, scale.0];
        let blobs = [scale, other, weight];
        assert_eq!(joined(&blobs).iter().map(|t| t.0.as_str()).collect::<Vec<_>>(), ["y.scale", "x.weight"]);
        let config = QuantizationConfig::from_config(br#"{"quantization_config":{"weight_block_size":[16,16]}}"#);
        let tensors = join(&blobs, &config).expect("they make tensors");
        let found: Vec<Digest> = tensors[1].parts.iter().map(|part| part.blob).collect();
        assert_eq!(found, digests);
        assert_eq!(tensors[1].encoding, Encoding::BlockFp8 { rows: 16, columns: 16 });
    }
}
