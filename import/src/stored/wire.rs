//! Serialized form of stored tensors, for notes that make it unnecessary to read the headers again.

use formats::encoding::Role;
use formats::{Dtype, Encoding};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{StoredPart, StoredTensor};

#[derive(Serialize, Deserialize)]
struct WireTensor {
    name: String,
    stored_name: String,
    dtype: String,
    #[serde(default)]
    group: u64,
    shape: Vec<u64>,
    parts: Vec<WirePart>,
}

#[derive(Serialize, Deserialize)]
struct WirePart {
    role: String,
    name: String,
    blob: String,
    offset: u64,
    size: u64,
    dtype: String,
    shape: Vec<u64>,
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Weight => "weight",
        Role::Scale => "scale",
        Role::Bias => "bias",
        Role::GlobalScale => "global_scale",
    }
}

impl Serialize for StoredTensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let part = |part: &StoredPart| WirePart {
            role: role_name(part.role).to_owned(),
            name: part.name.clone(),
            blob: part.blob.to_string(),
            offset: part.offset,
            size: part.size,
            dtype: part.dtype.name().to_owned(),
            shape: part.shape.clone(),
        };
        let wire = WireTensor {
            name: self.name.clone(),
            stored_name: self.stored_name.clone(),
            dtype: self.dtype(),
            group: self.group(),
            shape: self.shape.clone(),
            parts: self.parts.iter().map(part).collect(),
        };
        wire.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for StoredTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = WireTensor::deserialize(deserializer)?;
        let plain = Dtype::parse(&wire.dtype).map(Encoding::Plain);
        let encoding = plain.or_else(|| Encoding::parse(&wire.dtype, wire.group));
        let encoding = encoding.ok_or_else(|| de::Error::custom(format!("unknown encoding `{}`", wire.dtype)))?;
        let parts = wire.parts.into_iter().map(part).collect::<Result<Vec<_>, _>>().map_err(de::Error::custom)?;
        if parts.is_empty() {
            return Err(de::Error::custom(format!("tensor `{}` has no arrays", wire.name)));
        }
        Ok(Self { name: wire.name, stored_name: wire.stored_name, encoding, shape: wire.shape, parts })
    }
}

fn part(wire: WirePart) -> Result<StoredPart, String> {
    let role = Role::ALL.into_iter().find(|role| role_name(*role) == wire.role);
    Ok(StoredPart {
        role: role.ok_or_else(|| format!("unknown role `{}`", wire.role))?,
        name: wire.name,
        blob: wire.blob.parse().map_err(|e| format!("{e}"))?,
        offset: wire.offset,
        size: wire.size,
        dtype: Dtype::parse(&wire.dtype).ok_or_else(|| format!("unknown dtype `{}`", wire.dtype))?,
        shape: wire.shape,
    })
}

#[cfg(test)]
mod tests {
    use content::Digest;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let part = |role, name: &str, dtype, shape: Vec<u64>| StoredPart {
            role,
            name: name.to_owned(),
            blob: Digest::of(b"blob"),
            offset: 128,
            size: 16,
            dtype,
            shape,
        };
        let tensor = StoredTensor {
            name: "a.weight".to_owned(),
            stored_name: "b.weight".to_owned(),
            encoding: Encoding::Affine { bits: 4, group: 32 },
            shape: vec![1, 32],
            parts: vec![
                part(Role::Weight, "a.weight", Dtype::U32, vec![1, 4]),
                part(Role::Scale, "a.weight.scale", Dtype::Bf16, vec![1, 1]),
            ],
        };
        let text = serde_json::to_string(&tensor).expect("it is written");
        assert_eq!(serde_json::from_str::<StoredTensor>(&text).expect(&text), tensor);
        for (from, to) in [("\"int4\"", "\"int9\""), ("\"scale\"", "\"scales\""), ("sha256:", "sha1:"), ("BF16", "B")] {
            let wrong = text.replace(from, to);
            assert!(wrong != text && serde_json::from_str::<StoredTensor>(&wrong).is_err(), "{wrong}");
        }
    }
}
